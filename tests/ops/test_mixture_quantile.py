"""Quantiles of mixtures: compiled and reference against root finding in float64."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr, logsumexp
from torch.testing import assert_close

from compound.ops import mixture_quantile
from compound.ops.jit import launch
from compound.ops.mixture_quantile import ERFCX, mixture_quantiles, quantile_loop, reference
from compound.random import named_generator

DOUBLE = torch.float64
Z = torch.tensor([-4.7534, -1.645, -0.3, 0.0, 0.7, 1.645, 4.7534], dtype=DOUBLE).unsqueeze(-1)


def mixture(draws, spread, scales, seed=0, rows=24):
    """Means with a standard deviation of `spread`, log-variances with one of `scales`, and log-weights."""
    noise = torch.randn(3, draws, rows, 1, generator=named_generator(seed, "mixture"), dtype=DOUBLE)
    return spread * noise[0], (scales * noise[1]).exp(), torch.log_softmax(2 * noise[2], 0)


def exact_quantile(z, means, variances, log_weights):
    """The root of log F(y) - log Φ(z) for one mixture of arrays (draws,); upper ones by symmetry."""
    if z > 0:
        return -exact_quantile(-z, -means, variances, log_weights)
    stds = np.sqrt(variances)

    def excess(y):
        return logsumexp(log_weights + log_ndtr((y - means) / stds)) - log_ndtr(z)

    low, high = (means + z * stds).min(), (means + z * stds).max()
    return low if high - low < 1e-12 else brentq(excess, low - 1e-9, high + 1e-9, xtol=1e-14, rtol=1e-15)


def std_of(means, variances, log_weights):
    weights = log_weights.exp()
    centre = (weights * means).sum(0)
    return (weights * (variances + (means - centre).square())).sum(0).sqrt()


MIXTURES = [(1, 2.0, 1.0), (3, 0.2, 0.1), (40, 0.5, 0.5), (200, 1.0, 0.3), (17, 3.0, 2.0), (5, 100.0, 4.0)]


@pytest.mark.parametrize("draws, spread, scales", MIXTURES, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_quantiles_are_roots_of_the_cdf(draws, spread, scales, weighted):
    """Within 1e-6 standard deviations; or, where density is nearly 0, within 1e-6 of the level."""
    means, variances, log_weights = mixture(draws, spread, scales)
    given = log_weights if weighted else None
    log_weights = log_weights if weighted else torch.full_like(log_weights, -np.log(draws))
    ours = mixture_quantiles(Z, means, variances, given)
    definition = torch.stack([reference(z, means, variances, given) for z in Z])
    parts = (means[..., 0].numpy(), variances[..., 0].numpy(), log_weights[..., 0].numpy())
    for level, z in enumerate(Z[:, 0].tolist()):
        exact = np.array([exact_quantile(z, *(p[:, i] for p in parts)) for i in range(means.shape[1])])
        exact = torch.from_numpy(exact)
        std = std_of(means, variances, log_weights)[:, 0]
        near = (ours[level, :, 0] - exact).abs() <= 1e-6 * (std + exact.abs() * 0.2)
        side = -1.0 if z > 0 else 1.0
        log_cdfs = torch.special.log_ndtr(side * (ours[level] - means) / variances.sqrt())
        log_cdf = torch.logsumexp(log_weights + log_cdfs, 0)[:, 0]
        right_level = (log_cdf - float(log_ndtr(-abs(z)))).abs() <= 1e-6
        assert bool((near | right_level).all())
        assert bool(((definition[level, :, 0] - exact).abs() <= 1e-9 * (std + exact.abs())).all())


def test_a_column_does_not_depend_on_the_others_or_on_other_levels():
    arrays = [part[..., 0].float() for part in mixture(40, 0.3, 0.2, rows=37)]
    weights = arrays[2].exp()

    def quantiles(columns, levels):
        z = Z[levels].float()
        out = torch.empty(len(z), columns.stop - columns.start)
        parts = [part[:, columns].contiguous() for part in (arrays[0], arrays[1].exp(), weights)]
        sizes = 40, out.shape[1], 1, len(z), True
        launch(quantile_loop, (*parts, z, torch.special.ndtr(-z.abs()), out), *sizes)
        return out

    together = quantiles(slice(0, 37), slice(0, 7))
    assert bool(torch.isfinite(together).all())
    for columns in (slice(0, 1), slice(5, 22), slice(36, 37)):
        assert torch.equal(quantiles(columns, slice(2, 4)), together[2:4, columns])


def test_targets_have_levels_of_their_own():
    means, variances, _ = mixture(12, 1.0, 0.3, rows=10)
    two = torch.cat([means, 3 * means + 1], -1), torch.cat([variances, 9 * variances], -1)
    z = torch.tensor([[-1.0, 2.0]], dtype=DOUBLE)
    (both,) = mixture_quantiles(z, *two, None)
    assert_close(both[:, :1], mixture_quantiles(z[:, :1], means, variances, None)[0])
    (other,) = mixture_quantiles(z[:, 1:], means, variances, None)
    assert_close(both[:, 1:], 1 + 3 * other, rtol=1e-5, atol=1e-6)


def test_units_far_from_zero_keep_their_digits():
    means, variances, _ = mixture(20, 1.0, 0.3)
    plain = mixture_quantiles(Z, means, variances, None)
    moved = mixture_quantiles(Z, 1e9 + 1e3 * means, 1e6 * variances, None)
    assert_close((moved - 1e9) / 1e3, plain, rtol=0, atol=1e-5)


def test_extreme_levels_are_those_of_the_reference():
    means, variances, _ = mixture(9, 1.0, 0.3)
    for z in (-30.0, 12.0):
        level = torch.tensor([[z]], dtype=DOUBLE)
        assert torch.equal(
            mixture_quantiles(level, means, variances, None)[0], reference(level[0], means, variances)
        )


def test_the_reference_takes_few_newton_steps(monkeypatch):
    """Not bisection to the last bit: rounding must not lead back to the middle of the bracket."""
    means, variances, _ = mixture(50, 3.0, 0.0, rows=400)
    variances = variances * torch.rand(variances.shape, generator=named_generator(0, "v")) + 0.01
    calls, log_ndtr_of_torch = [], torch.special.log_ndtr
    monkeypatch.setattr(
        mixture_quantile.torch.special, "log_ndtr", lambda t: calls.append(1) or log_ndtr_of_torch(t)
    )
    for z in (-2.5, -0.3, 1.6):
        calls.clear()
        reference(torch.tensor([z], dtype=DOUBLE), means, variances)
        assert len(calls) <= 21


def test_the_polynomial_is_the_scaled_complementary_error_function():
    a = np.geomspace(1e-6, 1e3, 1000)
    polynomial = np.polynomial.Polynomial(np.float64(ERFCX))
    np.testing.assert_allclose(polynomial((a - 2) / (a + 2)) / (1 + 2 * a), erfcx(a), rtol=2e-7)
