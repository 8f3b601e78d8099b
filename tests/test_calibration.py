"""Calibration of intervals, sets and probabilities, and false-positive rates of outlier detection."""

import conformal
import numpy as np
import pytest
import torch
from scipy.special import ndtri
from scipy.stats import norm, t
from sklearn.base import clone
from test_estimators import CLASSIFIER, REGRESSOR, line

from compound import CategoricalPredictive, CompoundRegressor, GaussianPredictive, Method, named_generator
from compound.estimators import base
from compound.estimators.calibration import ConformalIntervals, ConformalSets, TemperatureScaler
from compound.estimators.conformal_scores import aps_score, z_score
from compound.estimators.member_holdout import member_holdout_weights
from compound.estimators.prediction import n_draws, predictives, to_float64
from compound.estimators.validation import encode_table
from compound.ood.detector import OODDetector
from compound.ood.distance import Distance
from compound.train.holdout import holdout_weights


def mixture(rows: int = 7, targets: int = 2, draws: int = 6) -> GaussianPredictive:
    means = 3 * torch.randn(draws, rows, targets, generator=named_generator(0, "m")).double()
    variances = torch.rand(draws, rows, targets, generator=named_generator(0, "v")).double() + 0.01
    none = torch.zeros(rows, targets, dtype=torch.float64)
    return GaussianPredictive(none, none, none, means, variances)


def weighted() -> GaussianPredictive:
    even = mixture()
    weights = torch.log_softmax(torch.randn(6, 7, 1, generator=named_generator(0, "w")).double(), 0)
    return GaussianPredictive(
        even.component, even.mixing, even.posterior, even.means, even.variances, weights
    )


@pytest.mark.parametrize("predictive", [mixture(), weighted()])
@pytest.mark.parametrize("z", [-2.0, -0.3, 0.0, 1.6])
def test_quantiles_invert_the_cdf(predictive, z):
    (actual,) = predictive.z_quantiles(torch.full((1, 2), z, dtype=torch.float64))
    torch.testing.assert_close(actual, predictive.quantile(float(norm.cdf(z))), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        predictive.cdf(actual), torch.full_like(actual, float(norm.cdf(z))), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("z", [-30.0, -9.0, 0.5, 12.0, 30.0])
def test_the_score_inverts_the_quantile_in_the_tails(z):
    predictive = weighted()
    torch.testing.assert_close(
        z_score(predictive, predictive.z_quantiles(torch.full((1, 2), z, dtype=torch.float64))[0]),
        torch.full((7, 2), abs(z)).double(),
        rtol=1e-6 if abs(z) < 6 else 1e-9,
        atol=0,
    )


def test_a_members_predictive_is_its_part_of_the_mixture():
    predictive, index = mixture(draws=6), torch.tensor([0, 2, 1, 1, 0, 2, 2])
    member = predictive.of_members(index, 3)
    for row, k in enumerate(index.tolist()):
        assert torch.equal(member.means[:, row], predictive.means[2 * k : 2 * k + 2, row])
        assert torch.equal(member.variances[:, row], predictive.variances[2 * k : 2 * k + 2, row])


@pytest.mark.parametrize("count,coverage", [(19, 0.9), (10, 0.9), (100, 0.95)])
def test_conformal_quantiles_have_the_exact_coverage(count, coverage):
    """Exchangeable scores: a new one is below the rank-th of n with probability rank / (n + 1)."""
    draw = torch.Generator().manual_seed(0)
    trials = 4000
    inside = 0
    for _ in range(trials):
        scores = torch.rand(count + 1, 1, generator=draw, dtype=torch.float64).square()
        inside += int(
            scores[-1, 0] <= ConformalIntervals.fit([scores[:-1]], 1).conformal_quantile(coverage)[0]
        )
    expected = np.ceil((count + 1) * coverage - 1e-9) / (count + 1)
    assert abs(inside / trials - expected) < 4 * np.sqrt(expected * (1 - expected) / trials)


def naive_quantile(scores: torch.Tensor, weights: torch.Tensor, coverage: float) -> float:
    """Tibshirani et al. (2019): quantile of Σ p_i δ(s_i) + p δ(∞), p ~ w, new row of weight Σw² / Σw."""
    new = weights.square().sum() / weights.sum()
    mass = 0.0
    for value, weight in sorted(zip(scores.tolist(), weights.tolist(), strict=True)):
        mass += weight / float(weights.sum() + new)
        if mass >= coverage - 1e-12:
            return value
    return np.inf


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
def test_weighted_ranks_follow_the_definition(coverage):
    scores = torch.rand(40, 2, generator=named_generator(0, "s")).double()
    weights = torch.rand(40, generator=named_generator(0, "w")).double().square() + 0.01
    intervals = ConformalIntervals.fit([scores[:15], scores[15:]], 2, weights)
    assert intervals.conformal_quantile(coverage).tolist() == [
        naive_quantile(column, weights, coverage) for column in scores.T
    ]
    assert ConformalSets.fit(scores[:, 0], weights).conformal_quantile(coverage) == naive_quantile(
        scores[:, 0], weights, coverage
    )
    assert (
        intervals.effective_rows == pytest.approx(float(weights.sum() ** 2 / weights.square().sum()))
        and intervals.effective_rows < 40
    )
    for weight in (1.0, 0.3):  # equal weights have no effect
        even = ConformalIntervals.fit([scores], 2, torch.full((40,), weight))
        assert torch.equal(
            even.conformal_quantile(coverage),
            ConformalIntervals.fit([scores], 2).conformal_quantile(coverage),
        ) and even.effective_rows == pytest.approx(40)


def test_weights_correct_for_biased_sampling():
    """Rows with a large score are sampled a quarter as often, and have four times the weight."""
    random, trials, coverage = np.random.default_rng(0), 1500, 0.9
    weighted_coverage, plain_coverage = [], []
    for _ in range(trials):
        population = random.exponential(size=600)
        weights = np.where(population > 1.5, 4.0, 1.0)
        sampled = random.random(600) < 1 / weights
        scores, weights = torch.from_numpy(population[sampled]), torch.from_numpy(weights[sampled])
        weighted_coverage.append(
            1 - np.exp(-ConformalSets.fit(scores, weights).conformal_quantile(coverage))
        )  # of new rows, exactly
        plain_coverage.append(1 - np.exp(-ConformalSets.fit(scores).conformal_quantile(coverage)))
    error = 4 * np.std(weighted_coverage) / np.sqrt(trials)
    largest = 4 / 600  # the largest part of all weights that a row has: ranks cannot be finer
    assert coverage - error < np.mean(weighted_coverage) < coverage + largest + error
    assert np.mean(plain_coverage) < 0.8


def test_few_rows_give_wide_intervals_at_high_coverage():
    scores = ConformalIntervals.fit([torch.tensor([[0.5], [4.0], [1.0]], dtype=torch.float64)], 1)
    assert scores.conformal_quantile(0.75)[0] == 4.0  # the third of three
    assert scores.conformal_quantile(0.99)[0] > 4.0
    assert ConformalIntervals.fit([torch.full((3, 1), 0.1, dtype=torch.float64)], 1).conformal_quantile(0.9)[
        0
    ] == pytest.approx(ndtri(0.95))
    assert ConformalIntervals.fit([torch.full((1, 1), 2.0, dtype=torch.float64)], 1).conformal_quantile(0.9)[
        0
    ] == pytest.approx(2 * t.ppf(0.95, 1))
    assert ConformalIntervals.fit([], 1).conformal_quantile(0.9)[0] == pytest.approx(ndtri(0.95))
    with pytest.raises(ValueError, match="coverage"):
        scores.conformal_quantile(1.0)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_few_rows_have_their_coverage_where_scores_are_gaussian(count):
    """Whatever the model's scale; the largest of so few scores, rescaled, would cover 0.83 to 0.90."""
    random, trials = np.random.default_rng(count), 2000
    scores = torch.from_numpy(np.abs(3 * random.normal(size=(trials, count, 1))))
    covered = [
        2 * norm.cdf(float(ConformalIntervals.fit([trial], 1).conformal_quantile(0.9)[0]) / 3) - 1
        for trial in scores
    ]  # of new rows, exactly
    assert np.mean(covered) > 0.9 - 4 * np.std(covered) / np.sqrt(trials)


def test_intervals_are_calibrated_though_the_model_is_overconfident():
    x, y = line(1000)
    overconfident = CompoundRegressor(Method("map", noise=0.02), max_epochs=10, random_state=0).fit(
        x, y
    )  # true noise: 0.3 standard deviations of y
    fresh, y_new = line(2000, seed=1)
    low, high = overconfident.predict_interval(fresh)
    uncalibrated = overconfident.predict_dist(fresh).interval(0.9)
    coverage = lambda lower, upper: ((y_new >= lower) & (y_new <= upper)).mean()  # noqa: E731
    assert coverage(uncalibrated[0][:, 0].numpy(), uncalibrated[1][:, 0].numpy()) < 0.3
    tolerance = 4 * np.sqrt(0.09 / 100 + 0.09 / 2000)  # 100 calibration rows, 2000 test rows
    assert abs(coverage(low, high) - 0.9) < tolerance


def test_few_rows_are_held_out_by_one_member_each_and_of_many_some_by_all(monkeypatch):
    x, y = line(200)
    small = clone(REGRESSOR).set_params(random_state=0, max_epochs=1)  # two members
    assert len(small.fit(x, y).intervals_.scores) == 2 * 20
    separate = small.intervals_.scores
    monkeypatch.setattr("compound.estimators.member_holdout.COMMON_FROM", 200)
    monkeypatch.setattr("compound.estimators.member_holdout.MIN_COMMON", 12)
    assert len(small.fit(x, y).intervals_.scores) == 12
    data = encode_table(small, x), torch.from_numpy((y - small.shift_) / small.scale_).float().unsqueeze(1)
    held = small._holdout_weights(data[1], 2) == 0  # (members, rows)
    assert (
        held.sum(1).tolist() == [20, 20]
        and int(held.all(0).sum()) == 12
        and int(held.any(0).sum()) == 12 + 2 * 8
    )
    both = held.all(0)
    predictive = to_float64(
        small.model_.predict(data[0][both], named_generator(small.seed_, "ask"), *n_draws(small.model_))
    )  # all members together
    torch.testing.assert_close(
        small.intervals_.scores,
        z_score(predictive, data[1][both].double()).sort(0).values,
        rtol=1e-4,
        atol=1e-4,
    )
    assert not torch.equal(separate[:12], small.intervals_.scores)


@pytest.mark.parametrize(
    "rows,common,each",
    [(4999, 0, 499), (5000, 500, 500), (16_000, 800, 1600), (60_000, 2000, 6000), (400_000, 4000, 40_000)],
)
def test_rows_held_out_in_common(rows, common, each):
    held = member_holdout_weights(rows, 5, 0.1, seed=3) == 0
    assert int(held.all(0).sum()) == common and held.sum(1).tolist() == [each] * 5
    assert int(held.any(0).sum()) == common + 5 * (
        each - common
    )  # the others are held out by one member each
    assert not torch.equal(held, member_holdout_weights(rows, 5, 0.1, seed=4) == 0)
    assert torch.equal(member_holdout_weights(rows, 1, 0.1, seed=3), holdout_weights(rows, 1, 0.1, seed=3))


def test_the_aps_score_is_the_probability_of_likelier_classes():
    probs = torch.tensor([[0.2, 0.5, 0.3], [0.25, 0.25, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(
        aps_score(probs), torch.tensor([[0.8, 0.0, 0.5], [0.5, 0.75, 0.0]], dtype=torch.float64)
    )


@pytest.mark.parametrize("exaggerated", [0.5, 4.0])
def test_sets_are_calibrated_though_the_probabilities_are_not(exaggerated):
    """A new label is in the set with probability 0.9 to 0.9 + 1 / (n + 1), whatever the probabilities."""
    logits = torch.randn(6000, 5, generator=named_generator(0, "logits")).double()
    labels = torch.multinomial(torch.softmax(logits, -1), 1, generator=named_generator(0, "labels"))
    scores = aps_score(torch.softmax(exaggerated * logits, -1))
    label_scores = scores.gather(-1, labels).squeeze(-1)
    max_score = ConformalSets.fit(label_scores[:3000]).conformal_quantile(0.9)
    assert abs((label_scores[3000:] <= max_score).double().mean() - 0.9) < 4 * np.sqrt(0.9 * 0.1 * 2 / 3000)
    assert (
        abs((label_scores[3000:] < 0.9).double().mean() - 0.9) > 0.04
    )  # the probabilities themselves are not calibrated
    assert bool(((scores <= max_score).sum(-1) >= 1).all())


def test_few_labels_give_the_set_of_all_classes():
    few = ConformalSets.fit(torch.tensor([0.0, 0.4, 0.1]))
    assert (few.conformal_quantile(0.5), few.conformal_quantile(0.75), few.conformal_quantile(0.9)) == (
        pytest.approx(0.1),
        pytest.approx(0.4),
        np.inf,
    )
    assert ConformalSets.fit(torch.zeros(0)).conformal_quantile(0.9) == np.inf
    with pytest.raises(ValueError, match="coverage"):
        few.conformal_quantile(0.0)


def test_a_classifier_calibrates_its_sets_on_held_out_rows():
    g = named_generator(0, "overlap")
    x = torch.randn(2500, 2, generator=g).numpy()
    y = (x[:, 0] + torch.randn(2500, generator=g).numpy() > 0).astype(int) + (
        x[:, 1] > 1
    )  # three classes that overlap
    model = clone(CLASSIFIER).set_params(random_state=0).fit(x[:500], y[:500])
    sets = model.predict_set(x[500:], 0.8)
    held = (model._holdout_weights(torch.from_numpy(y[:500]), 1) == 0).numpy()  # a tenth of every class
    probs, labels = model.predict_proba(x[:500][held]), y[:500][held]
    likelier = [row[row > row[label]].sum() for row, label in zip(probs, labels, strict=True)]
    np.testing.assert_allclose(model.sets_.scores, np.sort(likelier), atol=1e-12)
    inside = sets[np.arange(2000), y[500:]].mean()
    assert abs(inside - 0.8) < 4 * np.sqrt(0.8 * 0.2 * (1 / 50 + 1 / 2000))
    assert set(sets.sum(1)) <= {1, 2, 3} and (model.predict_set(x, 0.99) >= model.predict_set(x, 0.5)).all()


def test_sets_are_calibrated_where_many_classes_are_rare(monkeypatch):
    """Two fifths of the rows are in classes of about six: an earlier version covered 68%."""
    monkeypatch.setattr(base, "fit_detector", conformal.skip_detector)
    measured = np.array(conformal.measure(conformal.Classes(600, rare=0.4), 16))
    coverage, error = measured[:, 0].mean(), measured[:, 0].std() / 4
    assert coverage > 0.87 - 3 * error and measured[:, 2].mean() == 60
    assert measured[:, 1].mean() < 30  # of about 43 classes


def test_intervals_are_calibrated_where_weights_matter(monkeypatch):
    monkeypatch.setattr(base, "fit_detector", conformal.skip_detector)
    kind = conformal.Targets(1000, skew=0.7, steps=100)
    weighted, plain = (np.array(conformal.measure(kind, 20, use)) for use in (True, False))
    error = weighted[:, 0].std() / np.sqrt(20)
    assert 0.87 - 3 * error < weighted[:, 0].mean() < 0.94 + 3 * error and 50 < weighted[:, 2].mean() < 100
    gain = weighted[:, 0] - plain[:, 0]  # noise grows with the weight: unweighted, 82% are covered
    assert (plain[:, 2] == 100).all() and gain.mean() > 3 * gain.std() / np.sqrt(20)


def test_the_last_row_of_a_class_is_trained_on_and_counts_as_not_covered():
    x, _ = line(300)
    y = np.r_[
        np.repeat([0, 1], 100), 2 + np.arange(100)
    ]  # a third of the rows are the only ones of their class
    weight = np.linspace(1, 2, 300)
    model = (
        clone(CLASSIFIER)
        .set_params(random_state=0, max_epochs=1, validation_fraction=0.2)
        .fit(x, y, sample_weight=weight)
    )
    held = (model._holdout_weights(torch.from_numpy(y), 1) == 0).numpy()
    assert held[:200].sum() == 40 and not held[200:].any()
    scores, weights = model.sets_.scores.numpy(), model.sets_.weights.numpy()
    assert (scores == 1).sum() == 20 and len(scores) == 60
    np.testing.assert_array_equal(np.sort(weights[scores < 1]), weight[held])
    assert model.predict_set(x, 0.9).all()  # a third of new rows may be of a class never seen
    assert model.n_calibration_ == pytest.approx(weights.sum() ** 2 / (weights**2).sum())


def test_the_temperature_corrects_overconfidence():
    logits = 2 * torch.randn(4000, 3, generator=named_generator(0, "logits")).double()
    labels = torch.multinomial(torch.softmax(logits, -1), 1, generator=named_generator(0, "labels")).squeeze(
        1
    )
    scaler = TemperatureScaler.fit(torch.softmax(3 * logits, -1), labels)
    assert abs(np.log(scaler.value / 3)) < 0.1
    assert abs(np.log(TemperatureScaler.fit(torch.softmax(3 * logits[:2], -1), labels[:2]).value)) < 1
    assert TemperatureScaler.fit(torch.zeros(0, 3), labels[:0]).value == 1


def test_the_temperature_weights_rows():
    logits = 2 * torch.randn(3000, 3, generator=named_generator(0, "logits")).double()
    labels = torch.multinomial(torch.softmax(logits, -1), 1, generator=named_generator(0, "labels")).squeeze(
        1
    )
    exaggerated = torch.arange(3000) % 3 == 0
    probs = torch.softmax(torch.where(exaggerated[:, None], 3.0, 1.0) * logits, -1)
    weights = torch.where(exaggerated, 5, 1)
    repeats = torch.arange(3000).repeat_interleave(weights)
    weighted, repeated, plain = (
        TemperatureScaler.fit(*args)
        for args in ((probs, labels, weights), (probs[repeats], labels[repeats]), (probs, labels))
    )
    assert (
        abs(np.log(weighted.value / repeated.value)) < 0.026
    )  # one step of the grid: with fewer effective rows the prior counts more
    assert weighted.value > 1.2 * plain.value


def test_a_classifiers_temperature_uses_the_weights_of_held_out_rows():
    x, y = line(400)
    label, weight = y > 1000, np.where(np.arange(400) % 4 == 0, 20.0, 1.0)
    label[::4] = ~label[::4]  # heavy rows contradict the others
    model = clone(CLASSIFIER).set_params(random_state=0, max_epochs=5).fit(x, label, sample_weight=weight)
    labels = torch.from_numpy(label.astype(np.int64))
    held = model._holdout_weights(labels, 1) == 0
    probs = torch.cat(
        [
            predictive.probs
            for predictive in predictives(model.model_, encode_table(model, x)[held], model.seed_)
        ]
    )
    weighted, plain = (
        TemperatureScaler.fit(probs, labels[held], w).value for w in (torch.from_numpy(weight)[held], None)
    )
    assert model.temperature_.value == pytest.approx(weighted) and abs(np.log(weighted / plain)) > 0.05


def test_components_at_a_temperature_sum_to_the_entropy():
    predictive = CategoricalPredictive.from_draws(
        torch.log_softmax(torch.randn(4, 5, 6, 3, generator=named_generator(0, "a")), -1).double()
    )
    warm = TemperatureScaler(2.0)(predictive)
    torch.testing.assert_close(warm.total, warm.entropy())
    torch.testing.assert_close(warm.epistemic / warm.total, predictive.epistemic / predictive.total)
    assert torch.equal(warm.label, predictive.label) and bool((warm.total > predictive.total).all())


def test_outliers_and_the_stated_rate_of_false_positives_are_flagged():
    x, y = line(1000)
    model = clone(REGRESSOR).set_params(random_state=0, max_epochs=1, false_positive_rate=0.05).fit(x, y)
    fresh, _ = line(4000, seed=1)
    rate = model.is_ood(fresh).mean()
    assert abs(rate - 0.05) < 4 * np.sqrt(0.05 * 0.95 * (1 / 1000 + 1 / 4000))
    assert model.is_ood(fresh[:100] + 20).all()
    assert (model.ood_score(fresh) > model.threshold_).mean() == rate


def test_outliers_of_a_classifier_depend_on_the_inputs_only():
    x, y = line(300)
    model = clone(CLASSIFIER).set_params(random_state=0, max_epochs=1).fit(x, y > 1000)
    assert model.is_ood(x + 20).all() and model.is_ood(x).mean() < 0.05


def test_the_threshold_lies_where_a_new_row_is_beyond_it_at_the_stated_rate(monkeypatch):
    """n distances leave n + 1 intervals, each equally likely for a new one: here at 1, 2, ... n."""
    monkeypatch.setattr(Distance, "fit", lambda self, x, generator: torch.arange(1.0, len(x) + 1).flip(0))
    for rows, rate, promised in ((99, 0.01, False), (498, 0.01, False), (499, 0.01, True), (150, 0.05, True)):
        detector = OODDetector.fit(torch.zeros(rows, 1), rate, named_generator(0))
        assert detector.promised == promised and detector.threshold == pytest.approx((rows + 1) * (1 - rate))
    few = OODDetector.fit(
        torch.zeros(24, 1), 0.01, named_generator(0)
    )  # the farthest is exceeded four times too often
    assert not few.promised and few.threshold == pytest.approx(24 * 2)


def test_a_threshold_from_few_rows_has_at_most_the_stated_rate(monkeypatch):
    """With the heaviest tails allowed, P(d > t) = 1 / t², the mean rate over tables is the stated one."""
    rates = []
    for seed in range(400):
        training, fresh = (
            np.random.default_rng([seed, part]).pareto(2, rows) + 1 for part, rows in enumerate((15, 1000))
        )
        monkeypatch.setattr(
            Distance,
            "fit",
            lambda self, x, generator, training=training: torch.from_numpy(training),
        )
        rates.append((fresh > OODDetector.fit(torch.zeros(15, 1), 0.01, named_generator(0)).threshold).mean())
    assert abs(np.mean(rates) - 0.01) < 4 * np.std(rates) / 20


@pytest.mark.parametrize("kind", ["normal", "heavy", "correlated"])
def test_false_positive_rates_hold_where_rows_are_few_per_column(kind):
    """90 rows of 60 columns: with whitening or units fitted to the same rows 70 to 99% were flagged."""

    def table(rows: int, g: np.random.Generator) -> np.ndarray:
        x = g.standard_t(3, (rows, 60)) if kind == "heavy" else g.standard_normal((rows, 60))
        return x[:, :12] @ mixed + 0.3 * x if kind == "correlated" else x

    rates = []
    for seed in range(10):
        g = np.random.default_rng(seed)
        mixed = g.standard_normal((12, 60))
        x, fresh = table(90, g), table(1000, g)
        training, new = (torch.from_numpy((rows - x.mean(0)) / x.std(0)).float() for rows in (x, fresh))
        detector = OODDetector.fit(training, 0.05, named_generator(seed))
        rates.append((detector.scores(new) > detector.threshold).float().mean().item())
    assert 0.025 < np.mean(rates) < 0.1  # standard deviations: 0.023 for a table, 0.007 for the mean
