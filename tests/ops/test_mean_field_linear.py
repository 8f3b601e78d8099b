"""Draws and KL of a layer with independent Gaussian weights: compiled against the reference."""

import pytest
import torch
from kernel_checks import assert_matches_reference, randn
from torch.testing import assert_close

from compound.ops.mean_field_linear import mean_field_linear, reference, weight_statistics


@pytest.mark.parametrize("outputs", [3, 20])  # narrow products are computed as their transposes
@pytest.mark.parametrize("draws", [1, 2])
def test_draws_kl_and_gradients_are_those_of_the_reference(outputs, draws):
    noise = randn(draws, 6, outputs, seed=3)
    assert_matches_reference(
        lambda h, *a: mean_field_linear(h, *a, noise.float().to(h.dtype, copy=True), 0.4),
        lambda *a: reference(*a, noise.float().double(), 0.4),
        [randn(6, 4), randn(5, outputs), randn(5, outputs, seed=2) - 2],
    )


def test_gradient_of_the_reference():
    noise = randn(2, 6, 3, seed=3)
    inputs = [v.requires_grad_() for v in (randn(6, 4), randn(5, 3), randn(5, 3, seed=2) - 2)]
    torch.autograd.gradcheck(lambda *a: reference(*a, noise, 0.4), inputs)


def test_statistics_of_weights():
    mean, log_std = randn(7, 5).float(), randn(7, 5, seed=2).float() - 3
    statistics = weight_statistics(mean, log_std)
    mean, log_std = mean.double(), log_std.double()
    variance = (2 * log_std).exp()
    exact = variance, mean.square().sum(1), variance.sum(), log_std.sum()
    for ours, correct in zip(statistics, exact, strict=True):
        assert_close(torch.as_tensor(ours).double(), correct, rtol=1e-5, atol=1e-6)
