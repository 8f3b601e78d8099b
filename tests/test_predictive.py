"""Parts that add up, corrections that are right in expectation, quantities against sampling."""

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.testing import assert_close

from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive, entropy
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
