"""Guarantees by group, over time, with weights and for several targets at once; kinds of targets; files."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats as stats
import torch
from fuzz_damages import put_together, take_apart

import compound
from compound import CompoundClassifier, CompoundRegressor, Method
from compound.estimators.adaptive import AdaptiveConformal
from compound.estimators.calibration import ConformalIntervals, JointScores
from compound.estimators.target_kinds import propose_kind
from compound.predictive import FamilyPredictive, GaussianPredictive

FAST = Method("map", widths=(10,))


def quick(kind: str = "gaussian", epochs: int = 3, **options) -> CompoundRegressor:
    return CompoundRegressor(FAST, target_kind=kind, max_epochs=epochs, random_state=0, **options)


def covered(model, X, y, **options) -> np.ndarray:
    lower, upper = model.predict_interval(X, 0.9, **options)
    return (lower <= y) & (y <= upper)


def grouped(rows: int, seed: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """A tenth of the rows, group c, have twice the noise of the others, which no column tells the model."""
    rng = np.random.default_rng(seed)
    group = rng.choice(["a", "b", "c", "rare"], rows, p=[0.5, 0.395, 0.1, 0.005])
    x = rng.normal(size=rows)
    noise = np.where(group == "c", 1.9, 0.8) * rng.normal(size=rows)
    return pd.DataFrame({"x": x}), x + noise, group


def test_every_group_has_its_coverage():
    X, y, group = grouped(8000, 0)
    X_test, y_test, test_group = grouped(20_000, 1)
    plain = quick(validation_fraction=0.5).fit(X, y)
    ours = quick(validation_fraction=0.5).fit(X, y, groups=group)
    assert set(ours.group_calibrations_) == {"a", "b", "c"}  # rare has fewer calibration rows than 50
    by_plain = covered(plain, X_test, y_test)
    inside = covered(ours, X_test, y_test, groups=test_group)
    assert by_plain[test_group == "c"].mean() < 0.72
    for label in "abc":
        assert 0.87 <= inside[test_group == label].mean() <= 0.93
    rare = test_group == "rare"  # has the threshold of all rows, as groups never seen have
    assert np.array_equal(inside[rare], by_plain[rare])
    new = np.full(len(X_test), "new")
    assert np.array_equal(covered(ours, X_test, y_test, groups=new), by_plain)
    with pytest.raises(ValueError, match="give those of the rows"):
        ours.predict_interval(X_test)


def test_groups_may_be_a_column(tmp_path):
    X, y, group = grouped(1500, 0)
    X["region"] = group
    model = quick(validation_fraction=0.5).fit(X, y, groups="region")
    by_name = model.predict_interval(X[:200])
    by_array = model.predict_interval(X[:200], groups=group[:200])
    assert np.array_equal(by_name.lower, by_array.lower)
    model.save(tmp_path / "model")
    again = compound.load(tmp_path / "model")
    assert again.group_column_ == "region"
    assert np.array_equal(again.predict_interval(X[:200]).upper, by_name.upper)


def test_sets_of_every_group_have_their_coverage():
    def table(rows, seed):
        rng = np.random.default_rng(seed)
        group, x = rng.choice([1, 2], rows, p=[0.85, 0.15]), rng.normal(size=(rows, 1))
        sharp = np.where(group == 1, 6.0, 0.5)
        y = (rng.random(rows) < 1 / (1 + np.exp(-sharp * x[:, 0]))).astype(int)
        return x, y, group

    (X, y, group), (X_test, y_test, test_group) = table(6000, 0), table(12_000, 1)
    fit = CompoundClassifier(FAST, max_epochs=3, random_state=0, validation_fraction=0.5)
    plain = fit.fit(X, y).predict_set(X_test)[np.arange(len(y_test)), y_test]
    model = fit.fit(X, y, groups=group)
    inside = model.predict_set(X_test, groups=test_group)[np.arange(len(y_test)), y_test]
    assert plain[test_group == 2].mean() < 0.87
    for label in (1, 2):
        assert inside[test_group == label].mean() >= 0.87


def drifting(rows: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """The noise doubles over time."""
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, rows)
    x = rng.normal(size=(rows, 1))
    return x, x[:, 0] + (0.5 + 1.2 * t) * rng.normal(size=rows)


def test_adapted_intervals_follow_a_drift(tmp_path):
    x, y = drifting()
    start = 1000
    model = quick().fit(x[:start], y[:start], time=np.arange(start))
    plain = covered(model, x[start:], y[start:])
    ours = []
    for k in range(start, len(y), 20):  # truths arrive in batches of 20
        rows = slice(k, k + 20)
        ours.append(covered(model, x[rows], y[rows]))
        model.recalibrate(x[rows], y[rows])
        if k == start + 1000:  # the adapted state is saved
            model.save(tmp_path / "model")
            model = compound.load(tmp_path / "model")
    assert plain[-750:].mean() < 0.8
    for quarter in np.split(np.concatenate(ours), 4):
        assert 0.87 <= quarter.mean() <= 0.93
    with pytest.raises(ValueError, match="without groups"):
        quick(validation_fraction=0.5).fit(x, y, groups=np.zeros(len(y))).recalibrate(x[:5], y[:5])


def test_the_adaptation_is_the_published_recursion():
    rng = np.random.default_rng(0)
    first, scores = rng.random((100, 1)), np.abs(rng.normal(size=(60, 1))) * 2
    state = AdaptiveConformal.start(torch.from_numpy(first)).update(torch.from_numpy(scores), 0.05, 100)
    window, alpha = list(first[:, 0]), 0.1
    for score in scores[:, 0]:
        rank = int(np.ceil((len(window) + 1) * (1 - alpha) - 1e-9))
        threshold = np.inf if rank > len(window) else np.sort(window)[rank - 1]
        alpha += 0.05 * (0.1 - (score > threshold))
        window = window[1:] + [score]
    assert abs(float(state.miscoverages[3, 0]) - alpha) < 1e-12
    np.testing.assert_allclose(state.scores[:, 0], window)
    assert torch.isfinite(state.conformal_quantile(0.99)).all()


def test_the_newest_rows_are_held_out():
    x, _ = drifting(400)
    order = np.random.default_rng(1).permutation(400)
    model = quick()
    newest = model._newest(order)
    assert int(newest.sum()) == 40 and set(order[newest.numpy()]) == set(range(360, 400))
    assert torch.equal(model._holdout_weights(torch.zeros(400), 3, newest), 1 - newest.float())
    labels = torch.from_numpy((x[:, 0] > 0).astype(np.int64))
    assert torch.equal(CompoundClassifier()._drawn_rows(labels, newest), newest)


def test_boxes_hold_all_targets_at_once(tmp_path):
    def table(rows, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(rows, 2))
        noise = rng.standard_t(4, size=(rows, 3)) * [1.0, 10.0, 0.1]
        return x, x[:, :1] + noise

    (X, Y), (X_test, Y_test) = table(4000, 0), table(10_000, 1)
    model = quick(validation_fraction=0.4).fit(X, Y)
    single = covered(model, X_test, Y_test)
    assert all(abs(single[:, k].mean() - 0.9) < 0.03 for k in range(3))
    assert single.all(1).mean() < 0.8  # separate intervals are no box
    lower, upper = model.predict_region(X_test, 0.9)
    assert abs(((lower <= Y_test) & (Y_test <= upper)).all(1).mean() - 0.9) < 0.03
    model.save(tmp_path / "model")
    assert np.array_equal(compound.load(tmp_path / "model").predict_region(X_test[:9]).upper, upper[:9])


def test_joint_scores_are_the_largest_in_units_of_each_target():
    scores = torch.tensor([[1.0, 10.0], [3.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    joint = JointScores.fit(scores, torch.ones(3))
    units = scores.square().mean(0).sqrt()
    expected = (scores / units).amax(1).sort().values
    torch.testing.assert_close(joint.scores[:, 0], expected)
    torch.testing.assert_close(joint.conformal_quantile(0.5), expected[1] * units)


def test_weights_calibrate_as_repetitions_do():
    """Thresholds of scores of weight 1 or 3, and of the same scores repeated so many times."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(2000, 1, generator=generator, dtype=torch.float64)
    weights = torch.where(scores[:, 0] > 0.5, 3.0, 1.0).double()
    repeated = scores.repeat_interleave(weights.long(), 0)
    for coverage in (0.5, 0.8, 0.9, 0.95):
        by_weight = ConformalIntervals.fit([scores], 1, weights).conformal_quantile(coverage)
        by_rows = ConformalIntervals.fit([repeated], 1).conformal_quantile(coverage)
        assert abs(float(by_weight - by_rows)) < 0.005  # a few of 2,000 ranks


def test_weights_train_as_repetitions_do():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 1))
    kind = rng.random(1500) < 0.5
    y = np.where(kind, 2.0, -1.0) * x[:, 0] + 0.3 * rng.normal(size=1500)
    weights = np.where(kind, 3, 1)
    grid = np.linspace(-1.5, 1.5, 30)[:, None]
    by_weight = quick(epochs=30).fit(x, y, sample_weight=weights).predict(grid)
    by_rows = quick(epochs=15).fit(np.repeat(x, weights, 0), np.repeat(y, weights)).predict(grid)
    plain = quick(epochs=30).fit(x, y).predict(grid)
    slope = np.polyfit(grid[:, 0], by_weight, 1)[0]
    assert abs(slope - np.polyfit(grid[:, 0], by_rows, 1)[0]) < 0.15
    assert abs(slope - 1.25) < 0.15 and abs(np.polyfit(grid[:, 0], plain, 1)[0] - 0.5) < 0.15


def test_class_weights_are_sample_weights():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 1))
    y = np.where(rng.random(900) < 1 / (1 + np.exp(3 - x[:, 0])), "yes", "no")
    options = {"max_epochs": 10, "random_state": 0}
    plain = CompoundClassifier(FAST, **options).fit(x, y)
    balanced = CompoundClassifier(FAST, class_weight="balanced", **options).fit(x, y)
    given = {"yes": 1 / (2 * (y == "yes").mean()), "no": 1 / (2 * (y == "no").mean())}
    same = CompoundClassifier(FAST, class_weight=given, **options).fit(x, y)
    assert balanced.predict_proba(x)[:, 1].mean() > 0.35 > 0.15 > plain.predict_proba(x)[:, 1].mean()
    np.testing.assert_allclose(balanced.predict_proba(x), same.predict_proba(x))
    label = (y == "yes").astype(int)
    assert balanced.predict_set(x)[np.arange(900), label].mean() > 0.86  # of the rows as they are


def test_ordered_classes_predict_with_one_number(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 1))
    latent = 1.5 * x[:, 0] + rng.normal(size=3000)
    y = np.array(["low", "mid", "high"])[np.digitize(latent, [-1, 1])]
    order = ["low", "mid", "high"]
    model = CompoundClassifier(FAST, ordinal=order, max_epochs=40, random_state=0).fit(x, y)
    assert model.classes_.tolist() == order and model.model_.task.family == "ordinal"
    grid = np.linspace(-2, 2, 9)[:, None]
    from scipy.stats import norm

    edges = np.array([-np.inf, -1, 1, np.inf])
    truth = np.diff(norm.cdf(edges - 1.5 * grid), axis=1)
    assert np.abs(model.predict_proba(grid) - truth).mean() < 0.05
    model.save(tmp_path / "model")
    again = compound.load(tmp_path / "model")
    assert again.get_params()["ordinal"] == order
    assert np.array_equal(again.predict_proba(grid), model.predict_proba(grid))
    with pytest.raises(ValueError, match="none of the classes"):
        CompoundClassifier(FAST, ordinal=["low", "mid"]).fit(x, y)


@pytest.mark.parametrize("kind", ["student-t", "log-normal", "negative-binomial", "poisson", "weibull"])
def test_every_kind_is_calibrated_and_saved(kind, tmp_path):
    def table(rows, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(rows, 1))
        a = 0.7 * x[:, 0]
        y = {
            "student-t": a + 0.5 * rng.standard_t(3, rows),
            "log-normal": np.exp(a + 0.5 * rng.normal(size=rows)),
            "weibull": np.exp(a) * rng.weibull(1.5, rows),
            "poisson": rng.poisson(np.exp(1 + a)),
            "negative-binomial": rng.negative_binomial(2, 2 / (2 + np.exp(1.5 + a))),
        }[kind]
        return x, y.astype(float)

    (X, y), (X_test, y_test) = table(2000, 0), table(4000, 1)
    model = quick(kind, epochs=20, validation_fraction=0.4).fit(X, 100 * y if kind == "log-normal" else y)
    y_test = 100 * y_test if kind == "log-normal" else y_test
    inside = covered(model, X_test, y_test).mean()
    if "poisson" in kind or "binomial" in kind:
        assert 0.87 <= inside < 0.97  # whole numbers: rather more
        assert all(np.array_equal(b, np.round(b)) for b in model.predict_interval(X_test[:50]))
    else:
        assert abs(inside - 0.9) < 0.03
    p = model.predict_dist(X_test[:20])
    assert isinstance(p, FamilyPredictive)
    np.testing.assert_allclose(p.total, p.component + p.mixing + p.posterior)
    model.save(tmp_path / "model")
    again = compound.load(tmp_path / "model")
    assert again.target_kind_ == kind and again.get_params()["target_kind"] == kind
    for before, after in zip(
        model.predict_interval(X_test[:20]), again.predict_interval(X_test[:20]), strict=True
    ):
        assert np.array_equal(before, after)


def test_censored_times_are_calibrated():
    def table(rows, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(rows, 1))
        time = 10 * np.exp(0.5 * x[:, 0]) * rng.weibull(1.5, rows)
        censoring = rng.exponential(25, rows)
        return x, np.minimum(time, censoring), time <= censoring, time

    X, y, event, _ = table(3000, 0)
    X_test, _, _, truth = table(5000, 1)
    model = quick("auto", epochs=30, validation_fraction=0.4).fit(X, y, event=event)
    assert model.target_kind_ == "weibull" and len(model.horizons_) == 3
    assert abs(covered(model, X_test, truth).mean() - 0.9) < 0.03
    survival = model.predict_survival(X_test, [5.0, 10.0])
    expected = np.exp(-((np.array([5.0, 10.0]) / (10 * np.exp(0.5 * X_test))) ** 1.5))
    assert np.abs(survival - expected).mean() < 0.05
    naive = quick("weibull", epochs=30).fit(X, y)  # as if censored times were times of events
    assert naive.predict(X_test).mean() < 0.85 * model.predict(X_test).mean()
    structured = np.array(list(zip(event, y, strict=True)), dtype=[("event", bool), ("time", float)])
    same = quick("auto", epochs=30, validation_fraction=0.4).fit(X, structured)
    np.testing.assert_allclose(same.predict(X_test[:5]), model.predict(X_test[:5]))


@pytest.mark.parametrize("kind", ["weibull", "log-normal"])
def test_times_may_be_expected_long_after_the_last_one_seen(kind):
    """Four in five rows are censored: bounds that follow the times seen would hide who lives long."""
    rng = np.random.default_rng(0)
    X, new = rng.normal(size=(600, 2)), rng.normal(size=(400, 2))
    scale = 100 * np.exp(1.5 * X[:, 0])
    if kind == "weibull":
        time, alive = scale * rng.weibull(1.0, 600), np.exp(-0.1 * np.exp(-1.5 * new[:, 0]))
    else:
        time = scale * np.exp(rng.normal(size=600))
        alive = stats.norm.sf(np.log(0.1) - 1.5 * new[:, 0])
    end = rng.uniform(5, 20, 600)
    model = quick(kind, epochs=60).fit(X, np.minimum(time, end), event=time <= end)
    found = model.predict_survival(new, 10)[:, 0]
    assert abs(found.mean() - alive.mean()) < 0.03 and found.max() > 0.98


@pytest.mark.parametrize(
    "y,kind",
    [
        (np.random.default_rng(0).normal(size=500), "gaussian"),
        (np.random.default_rng(0).poisson(3, 500), "negative-binomial"),
        (np.exp(2 * np.random.default_rng(0).normal(size=500)), "log-normal"),
        (np.arange(500), "gaussian"),
        (np.random.default_rng(0).integers(18, 90, 500), "gaussian"),
        (50 + 5 * np.random.default_rng(0).normal(size=500), "gaussian"),
    ],
)
def test_kinds_are_proposed_where_they_are_clear(y, kind):
    assert propose_kind(y.astype(float)).kind == kind


def test_values_that_do_not_suit_a_kind_are_refused():
    x, ones = np.zeros((20, 1)), np.ones(20)
    for kind, y, message in [
        ("log-normal", np.arange(20.0), "needs numbers above 0"),
        ("poisson", np.arange(20) + 0.5, "needs whole numbers"),
        ("unknown", ones, "target_kind is 'unknown': use one of auto, gaussian"),
    ]:
        with pytest.raises(ValueError, match=message):
            quick(kind).fit(x, y)
    with pytest.raises(ValueError, match="event needs times"):
        quick("poisson").fit(x, ones, event=ones)
    with pytest.raises(ValueError, match="event holds 2"):
        quick("weibull").fit(x, ones, event=2 * ones)
    with pytest.raises(ValueError, match="laplace predicts Gaussian targets"):
        CompoundRegressor("laplace", target_kind="weibull").fit(x, ones)


def test_models_of_the_layout_before_have_the_same_bits(tmp_path):
    """What was saved without kinds, groups and boxes: their entries are optional."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    model = quick().fit(x, x[:, 0])
    model.save(tmp_path / "model")
    parts = take_apart(tmp_path / "model")
    new = {"adaptive", "groups", "group_column", "roles", "target_names", "target_kind", "horizons"}
    saved = parts.frame["config"]
    config = {name: value for name, value in saved.items() if name not in new}
    config["layout"] = 7
    config["parameters"] = {k: v for k, v in config["parameters"].items() if k != "target_kind"}
    config["model"] = {**config["model"], "task": {"kind": "regression", "size": 1}}
    put_together(tmp_path / "model", parts._replace(frame={**parts.frame, "config": config}))
    old = compound.load(tmp_path / "model")
    assert isinstance(old.predict_dist(x[:3]), GaussianPredictive)
    for before, after in zip(model.predict_interval(x), old.predict_interval(x), strict=True):
        assert np.array_equal(before, after)
    assert np.array_equal(old.predict_region(x[:4]).lower, old.predict_interval(x[:4]).lower)
    old.fit(x, x[:, 0])
