"""Closed forms against dense algebra, in float64."""

import math

import pytest
import torch
from oracles import dense, vec
from torch.distributions import Independent, MixtureSameFamily, Normal, kl_divergence
from torch.distributions.categorical import Categorical
from torch.testing import assert_close

from compound.distributions import (
    MatrixNormal,
    mixture_cdf,
    mixture_entropy,
    mixture_log_prob,
)
from compound.random import named_generator


def some(seed: int, rows: int = 3, cols: int = 4, batch: tuple[int, ...] = ()) -> MatrixNormal:
    g = named_generator(seed, "some")
    numbers = lambda *shape: torch.randn(*batch, *shape, generator=g, dtype=torch.float64)  # noqa: E731
    return MatrixNormal(numbers(rows, cols), numbers(rows).exp(), numbers(cols).exp())


@pytest.mark.parametrize("seed", range(5))
def test_closed_forms_match_the_dense_gaussian(seed):
    p, q = some(seed), some(seed + 100)
    w = q.rsample(generator=named_generator(seed, "w"))
    assert_close(p.log_prob(w), dense(p).log_prob(vec(w)), rtol=1e-8, atol=1e-8)
    assert_close(p.entropy(), dense(p).entropy(), rtol=1e-8, atol=1e-8)
    assert_close(kl_divergence(p, q), kl_divergence(dense(p), dense(q)), rtol=1e-8, atol=1e-8)
    assert_close(dense(p).covariance_matrix.diagonal(), vec(p.variance), rtol=1e-12, atol=0)


def test_kl_to_independent_normals():
    p = some(1)
    q = Normal(torch.tensor(0.3, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64))
    ones = torch.ones(3, dtype=torch.float64), 2 * torch.ones(4, dtype=torch.float64)
    assert_close(
        kl_divergence(p, q),
        kl_divergence(p, MatrixNormal(torch.full((3, 4), 0.3, dtype=torch.float64), *ones)),
    )


def test_the_law_does_not_know_how_scale_is_shared_between_the_factors():
    p = some(2)
    same = MatrixNormal(p.mean, 7 * p.row, p.col / 7)
    assert_close(kl_divergence(p, same), torch.zeros((), dtype=torch.float64), atol=1e-12, rtol=0)
    assert_close(p.entropy(), same.entropy())


def test_batches_equal_single_laws():
    p, q = some(3, batch=(2, 5)), some(4)
    w = p.rsample((6,), generator=named_generator(0))
    one = MatrixNormal(p.mean[1, 3], p.row[1, 3], p.col[1, 3])
    assert_close(p.log_prob(w)[2, 1, 3], one.log_prob(w[2, 1, 3]))
    assert_close(p.entropy()[1, 3], one.entropy())
    assert_close(kl_divergence(p, q)[1, 3], kl_divergence(one, q))
    expanded = q.expand((2, 5))
    assert expanded.batch_shape == (2, 5) and expanded.event_shape == (3, 4)
    assert_close(kl_divergence(p, expanded), kl_divergence(p, q))


def test_draws_have_the_moments_of_the_law_and_come_from_the_generator():
    p, n = some(5, 2, 3), 200_000
    before = torch.get_rng_state()
    w = p.rsample((n,), generator=named_generator(1, "draws"))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(w, p.rsample((n,), generator=named_generator(1, "draws")))
    assert ((w.mean(0) - p.mean).abs() < 5 * p.stddev / math.sqrt(n)).all()
    assert ((w.var(0) / p.variance - 1).abs() < 5 * math.sqrt(2 / n)).all()
    flat = vec((w - p.mean) / p.stddev)
    off = (flat.T @ flat / n).fill_diagonal_(0)
    assert off.abs().max() < 5 / math.sqrt(n)


def test_gradients_reach_mean_and_factors():
    tensors = [t.requires_grad_() for t in (some(6).mean, some(6).row, some(6).col)]
    torch.autograd.gradcheck(lambda m, r, c: kl_divergence(MatrixNormal(m, r, c), some(7)), tensors)
    torch.autograd.gradcheck(
        lambda m, r, c: MatrixNormal(m, r, c).rsample(generator=named_generator(2)), tensors
    )


def test_bad_arguments_are_named():
    ones = torch.ones(3)
    with pytest.raises(ValueError, match="row holds"):
        MatrixNormal(torch.zeros(3, 2), -ones, torch.ones(2), validate_args=True)
    with pytest.raises(ValueError, match=r"mean is \(3, 2\)"):
        MatrixNormal(torch.zeros(3, 2), ones, ones)


@pytest.fixture
def mixture():
    g = named_generator(8)
    means = 3 * torch.randn(7, 4, 2, generator=g, dtype=torch.float64)
    variances = torch.rand(7, 4, 2, generator=g, dtype=torch.float64) * 2 + 0.05
    return means, variances


def test_mixture_log_prob_and_cdf(mixture):
    means, variances = mixture
    y = torch.randn(4, 2, generator=named_generator(9), dtype=torch.float64)
    weights = Categorical(torch.ones(4, 7, dtype=torch.float64))
    joint = MixtureSameFamily(
        weights, Independent(Normal(means.transpose(0, 1), variances.transpose(0, 1).sqrt()), 1)
    )
    assert_close(mixture_log_prob(y, means, variances), joint.log_prob(y), rtol=1e-10, atol=1e-10)
    each = MixtureSameFamily(weights, Normal(means[..., 1].T, variances[..., 1].T.sqrt()))
    assert_close(mixture_cdf(y, means, variances)[:, 1], each.cdf(y[:, 1]), rtol=1e-10, atol=1e-10)


def test_entropy_by_a_fine_grid(mixture):
    means, variances = mixture
    grid = torch.linspace(-20, 20, 40_001, dtype=torch.float64)
    for row, target in ((0, 0), (2, 1), (3, 0)):
        m, v = means[:, row : row + 1, target : target + 1], variances[:, row : row + 1, target : target + 1]
        logs = torch.stack(
            [mixture_log_prob(grid.reshape(-1, 1), m.expand(-1, len(grid), 1), v.expand(-1, len(grid), 1))]
        ).squeeze()
        exact = -torch.trapezoid(logs.exp() * logs, grid)
        assert_close(mixture_entropy(means, variances, points=96)[row, target], exact, rtol=0, atol=1e-4)


@pytest.fixture
def log_weights():  # (7, 4, 1)
    return torch.log_softmax(2 * torch.randn(7, 4, 1, generator=named_generator(10), dtype=torch.float64), 0)


def test_weighted_mixture_against_torch(mixture, log_weights):
    means, variances = mixture
    y = torch.randn(4, 2, generator=named_generator(11), dtype=torch.float64)
    weights = Categorical(logits=log_weights[..., 0].T)
    joint = MixtureSameFamily(
        weights, Independent(Normal(means.transpose(0, 1), variances.transpose(0, 1).sqrt()), 1)
    )
    assert_close(
        mixture_log_prob(y, means, variances, log_weights), joint.log_prob(y), rtol=1e-10, atol=1e-10
    )
    for target in (0, 1):
        each = MixtureSameFamily(weights, Normal(means[..., target].T, variances[..., target].T.sqrt()))
        assert_close(
            mixture_cdf(y, means, variances, log_weights)[:, target],
            each.cdf(y[:, target]),
            rtol=1e-10,
            atol=1e-10,
        )
        grid = torch.linspace(-20, 20, 40_001, dtype=torch.float64)
        logs = each.log_prob(grid.unsqueeze(-1))  # (grid, rows)
        exact = -torch.trapezoid(logs.exp() * logs, grid, dim=0)
        for points, error in ((24, 5e-3), (96, 1e-4)):
            assert_close(
                mixture_entropy(means, variances, log_weights, points)[:, target], exact, rtol=0, atol=error
            )


def test_even_weights_change_nothing(mixture):
    even = torch.full((7, 4, 1), -math.log(7), dtype=torch.float64)
    y = torch.randn(4, 2, generator=named_generator(12), dtype=torch.float64)
    for function in (mixture_log_prob, mixture_cdf):
        assert_close(function(y, *mixture, even), function(y, *mixture), rtol=1e-12, atol=1e-14)
    assert_close(mixture_entropy(*mixture, even), mixture_entropy(*mixture), rtol=1e-12, atol=1e-14)


def test_entropy_of_one_gaussian_is_exact():
    variance = torch.tensor([[[4.0]]], dtype=torch.float64)
    assert_close(
        mixture_entropy(torch.ones_like(variance), variance).squeeze(),
        Normal(0.0, torch.tensor(2.0, dtype=torch.float64)).entropy(),
    )
