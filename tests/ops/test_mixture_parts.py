"""The mixture of members' draws and its parts: compiled, reference, and the definition from nested draws."""

import pytest
import torch
from kernel_checks import assert_all_close, randn

from compound.ops.mixture_parts import mixture_parts, reference
from compound.predictive import GaussianPredictive


@pytest.mark.parametrize("sizes", [(5, 16, 32, 8), (1, 4, 16, 2), (3, 6, 16, 6), (2, 4, 16, 1)], ids=str)
@pytest.mark.parametrize("tau", [1.0, 0.3])
def test_parts_are_those_of_nested_draws(sizes, tau):
    members, draws, columns, paired = sizes
    means = 100 + randn(members, 1, columns) + 0.5 * randn(members, draws, columns, seed=1)
    variances, noise = randn(members, draws, columns, seed=2).exp(), randn(members, columns, seed=3).exp()
    inputs = [value.float() for value in (means, variances, noise)]
    with torch.no_grad():
        ours = mixture_parts(*inputs, tau, paired)
    exact = reference(*(value.double() for value in inputs), tau, paired)
    for one, other, error in zip(ours, exact, (1e-6, 1e-6, 1e-3, 1e-3), strict=True):  # of means near 100
        assert_all_close([one], [other], error)
    centre = means.float().double().mean(1, keepdim=True)
    scaled = centre + tau * (means.float().double() - centre)
    predictive = GaussianPredictive.from_draws(
        scaled.unsqueeze(-1),
        noise.float().double()[:, None, :, None],
        tau**2 * variances.float().double().unsqueeze(-1),
        members=members,
        paired=paired,
    )
    torch.testing.assert_close(exact.mixing, predictive.mixing[:, 0])
    torch.testing.assert_close(exact.posterior, predictive.posterior[:, 0])
    torch.testing.assert_close(exact.means.flatten(0, 1), predictive.means[..., 0])
    torch.testing.assert_close(exact.variances.flatten(0, 1), predictive.variances[..., 0])
