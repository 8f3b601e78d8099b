"""Parts that add up, corrections that are right in expectation, quantities against sampling."""

import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.testing import assert_close

from compound.predictive import CategoricalPredictive, GaussianPredictive, OODScores, Predictive, entropy
from compound.random import named_generator

DOUBLE = torch.float64


def gaussian(seed: int = 0, outer: int = 4, inner: int = 3) -> GaussianPredictive:
    g = named_generator(seed)
    draw = lambda: torch.randn(outer, inner, 5, 2, generator=g, dtype=DOUBLE)  # noqa: E731
    return GaussianPredictive.from_draws(
        draw(), 0.1 + draw().square(), draw().square(), torch.rand(5, 1, generator=g, dtype=DOUBLE)
    )


def test_variance_shares_add_up_to_the_variance_of_the_mixture():
    """Members without draws of their own are all there is: nothing is estimated."""
    g = named_generator(0)
    means, noise = (
        torch.randn(4, 1, 5, 2, generator=g, dtype=DOUBLE),
        torch.rand(4, 1, 5, 2, generator=g, dtype=DOUBLE),
    )
    p = GaussianPredictive.from_draws(means, noise, 2 * noise, members=4)
    mixture = p.variances.mean(0) + p.means.var(0, correction=0)
    assert_close(p.variance, mixture, rtol=1e-12, atol=0)
    assert_close(p.aleatoric + p.epistemic, mixture, rtol=1e-12, atol=0)


def test_entropy_shares_add_up():
    probs = torch.softmax(2 * torch.randn(4, 3, 6, 5, generator=named_generator(1), dtype=DOUBLE), -1)
    plain = CategoricalPredictive.from_draws(probs.log())
    assert_close(plain.total, entropy(probs.mean((0, 1))), rtol=1e-12, atol=0)
    assert_close(plain.component, entropy(probs).mean((0, 1)), rtol=1e-12, atol=0)


def test_samples_follow_the_predictive():
    p, n = gaussian(), 100_000
    y = p.sample(n, named_generator(3))
    assert ((y.mean(0) - p.mean).abs() < 5 * p.std / math.sqrt(n)).all()
    low, high = p.interval(0.8)
    for edge, level in ((low, 0.1), (high, 0.9)):
        share = (y < edge).double().mean(0)
        assert (share - level).abs().max() < 5 * math.sqrt(0.09 / n)


def weighted_mixture() -> tuple[GaussianPredictive, MixtureSameFamily]:
    """Three unequal components of five rows and two targets, and the same in torch."""
    g = named_generator(7)
    means, variances = (
        2 * torch.randn(3, 5, 2, generator=g, dtype=DOUBLE),
        0.1 + torch.rand(3, 5, 2, generator=g, dtype=DOUBLE),
    )
    log_weights = torch.log_softmax(torch.randn(3, 5, 1, generator=g, dtype=DOUBLE), 0)
    parts = torch.zeros(3, 5, 2, dtype=DOUBLE)
    parts[0] = (log_weights.exp() * variances).sum(0)
    parts[1] = (log_weights.exp() * means.square()).sum(0) - (log_weights.exp() * means).sum(0).square()
    normals = Independent(Normal(means.transpose(0, 1), variances.transpose(0, 1).sqrt()), 1)
    return GaussianPredictive(*parts, means, variances, log_weights), MixtureSameFamily(
        Categorical(logits=log_weights[..., 0].T), normals
    )


def test_unequal_weights_against_torch():
    p, oracle = weighted_mixture()
    y = torch.randn(5, 2, generator=named_generator(8), dtype=DOUBLE)
    assert_close(p.log_prob(y), oracle.log_prob(y), rtol=1e-12, atol=1e-12)
    assert_close(p.mean, oracle.mean, rtol=1e-12, atol=1e-12)
    assert_close(p.variance, oracle.variance, rtol=1e-12, atol=1e-12)
    low, high = p.interval(0.9)
    assert_close(p.cdf(high) - p.cdf(low), torch.full((5, 2), 0.9, dtype=DOUBLE), rtol=0, atol=1e-6)
    q = p.rescale(1.0, 3.0)
    assert_close(q.entropy(), p.entropy() + math.log(3.0))
    assert_close(q.log_prob(1 + 3 * y), p.log_prob(y) - 2 * math.log(3.0))


def test_samples_follow_unequal_weights():
    p, n = weighted_mixture()[0], 100_000
    y = p.sample(n, named_generator(9))
    assert ((y.mean(0) - p.mean).abs() < 5 * p.std / math.sqrt(n)).all()
    for level in (0.1, 0.5, 0.9):
        share = (y < p.quantile(level)).double().mean(0)
        assert (share - level).abs().max() < 5 * math.sqrt(level * (1 - level) / n)
    product = (y - p.mean).prod(-1)  # both targets of a row come from the same component
    exact = (p.log_weights.squeeze(-1).exp() * (p.means - p.mean).prod(-1)).sum(0)
    assert ((product.mean(0) - exact).abs() < 5 * product.std(0) / math.sqrt(n)).all()


def test_joining_chunks_keeps_the_weights():
    p = weighted_mixture()[0]
    fields = (p.component, p.mixing, p.posterior)
    parts = [
        GaussianPredictive(
            *(f[rows] for f in fields), p.means[:, rows], p.variances[:, rows], p.log_weights[:, rows]
        )
        for rows in (slice(0, 2), slice(2, 5))
    ]
    assert torch.equal(Predictive.concat(parts).log_weights, p.log_weights)


def test_samples_of_classes_follow_the_probabilities():
    p = CategoricalPredictive.from_draws(
        torch.log_softmax(torch.randn(1, 1, 3, 4, generator=named_generator(4)), -1)
    )
    y = p.sample(50_000, named_generator(5))
    share = torch.stack([(y == k).float().mean(0) for k in range(4)], -1)
    assert (share - p.probs).abs().max() < 5 * math.sqrt(0.25 / 50_000)
    assert torch.equal(p.label, p.probs.argmax(-1))


def test_rescaling_is_a_change_of_units():
    p, shift, scale = (
        gaussian(),
        torch.tensor([2.0, -1.0], dtype=DOUBLE),
        torch.tensor([3.0, 0.5], dtype=DOUBLE),
    )
    q = p.rescale(shift, scale)
    y = torch.randn(5, 2, generator=named_generator(6), dtype=DOUBLE)
    assert_close(q.log_prob(shift + scale * y), p.log_prob(y) - scale.log().sum())
    assert_close(q.quantile(0.3), shift + scale * p.quantile(0.3), rtol=0, atol=1e-5)
    assert_close(q.total, scale.square() * p.total)
    assert_close(q.entropy(), p.entropy() + scale.log())


def test_joining_chunks_keeps_rows_in_order():
    p = gaussian()
    parts = [
        GaussianPredictive(
            p.component[rows], p.mixing[rows], p.posterior[rows], p.means[:, rows], p.variances[:, rows]
        )
        for rows in (slice(0, 2), slice(2, 5))
    ]
    joined = Predictive.concat(parts)
    assert torch.equal(joined.means, p.means) and torch.equal(joined.posterior, p.posterior)


@pytest.mark.parametrize("coverage", [0.0, 1.0, 1.5])
def test_impossible_coverage_is_refused(coverage):
    with pytest.raises(ValueError, match="coverage is"):
        gaussian().interval(coverage)


def test_probabilities_that_underflow_keep_a_finite_log():
    answer = CategoricalPredictive.from_draws(torch.tensor([[[[0.0, -1e4]]]]))
    assert torch.isfinite(answer.log_prob(torch.tensor([1]))).all() and answer.total == 0


def classes_predictive(rows: int = 6) -> CategoricalPredictive:
    logs = torch.log_softmax(2 * torch.randn(4, 3, rows, 5, generator=named_generator(11), dtype=DOUBLE), -1)
    scores = OODScores(torch.arange(rows, dtype=DOUBLE), threshold=2.5)
    return replace(CategoricalPredictive.from_draws(logs), ood=scores)


@pytest.mark.parametrize("choice", [2, -1, slice(1, 4), [4, 0], torch.arange(5) % 2 == 0], ids=str)
def test_rows_of_a_predictive_answer_as_they_did_among_the_others(choice):
    p, _ = weighted_mixture()
    q = classes_predictive(5)
    rows = torch.arange(5)[choice].reshape(-1)
    y = torch.randn(5, 2, generator=named_generator(12), dtype=DOUBLE)
    assert len(p[choice]) == len(q[choice]) == len(rows)
    assert_close(p[choice].log_prob(y[rows]), p.log_prob(y)[rows], rtol=0, atol=0)
    assert_close(p[choice].total, p.total[rows], rtol=0, atol=0)
    assert_close(q[choice].probs, q.probs[rows], rtol=0, atol=0)
    assert q[choice].is_ood.equal(q.is_ood[rows])


def test_rows_joined_again_keep_their_scores():
    q = classes_predictive()
    joined = Predictive.concat([q[:2], q[2:]])
    assert_close(joined.probs, q.probs, rtol=0, atol=0)
    assert joined.is_ood.tolist() == [False, False, False, True, True, True]
    assert joined.to(torch.float32).ood.scores.dtype == joined.to(torch.float32).probs.dtype == torch.float32
    assert [len(row) for row in q] == [1] * 6  # iteration ends


def test_a_predictive_without_scores_says_so():
    with pytest.raises(ValueError, match="no out-of-distribution scores"):
        gaussian().is_ood  # noqa: B018
    with pytest.raises(IndexError, match="row 5 of a predictive of 5 rows"):
        gaussian()[5]


def test_sets_are_the_fewest_classes_that_reach_the_coverage():
    p = classes_predictive(200)
    for coverage in (0.5, 0.9):
        for probs, inside in zip(p.probs.tolist(), p.sets(coverage).tolist(), strict=True):
            total, expected = 0.0, [False] * 5
            for k in sorted(range(5), key=lambda k: -probs[k]):
                if total < coverage:
                    expected[k] = True
                total += probs[k]
            assert inside == expected
    conformal = replace(p, conformal=lambda coverage: 0.0)
    assert (conformal.sets(0.9).sum(1) == 1).all()  # the likeliest class alone has a score of 0
    with pytest.raises(ValueError, match="coverage is 1"):
        p.sets(1.0)


def test_intervals_take_the_quantiles_of_the_conformal_z():
    p, _ = weighted_mixture()
    assert_close(p.sets(0.8), p.interval(0.8), rtol=0, atol=0)
    wide = replace(p, conformal=lambda coverage: torch.tensor([1.0, 2.0]))
    for bound, sign in zip(wide.sets(0.8), (-1, 1), strict=True):
        level = torch.special.ndtr(sign * torch.tensor([1.0, 2.0], dtype=DOUBLE))
        assert_close(p.cdf(bound), level.expand(5, 2), rtol=0, atol=1e-6)


def test_plots_show_the_density_and_the_set():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    p, _ = weighted_mixture()
    axis = p.plot(3, target=1)
    y, density = (torch.tensor(v) for v in axis.lines[0].get_data())
    row = torch.zeros(len(y), 5, 2, dtype=DOUBLE)
    row[:, 3, 1] = y
    marginal = MixtureSameFamily(
        Categorical(logits=p.log_weights[:, 3, 0]), Normal(p.means[:, 3, 1], p.variances[:, 3, 1].sqrt())
    )
    assert_close(density, marginal.log_prob(y).exp(), rtol=1e-9, atol=1e-12)
    assert abs(torch.trapezoid(density, y) - 1) < 0.01
    lengths = [line.get_xdata()[1] - line.get_xdata()[0] for line in axis.lines[1:4]]
    assert abs(lengths[2] - 2 * float(p.std[3, 1])) < 1e-9  # the last bar is the whole standard deviation
    q = classes_predictive()
    bars = q.plot(1, coverage=0.5).patches
    assert [bar.get_height() for bar in bars] == q.probs[1].tolist()
    coloured = [bar.get_facecolor() != bars[int(q.probs[1].argmin())].get_facecolor() for bar in bars]
    assert coloured == q.sets(0.5)[1].tolist()
