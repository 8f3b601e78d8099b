"""The auxiliary posterior r(z | W): compiled density and gradients against autograd of the reference."""

import pytest
import torch
from kernel_checks import assert_all_close, randn
from torch.testing import assert_close

from compound.ops.auxiliary_posterior import BOUND, backward, forward, reference


@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_density_and_gradients_are_those_of_the_reference(scale):
    """At 40 log-precisions exceed their bound."""
    groups, d, c = 3, 6, 5
    vectors = randn(5, d)
    vectors[4] *= scale
    inputs = [randn(groups, d), randn(groups, d, seed=1), randn(d, c), randn(d, c, seed=2).exp(), vectors]
    noise, d_bound = randn(groups, c), randn(groups, seed=3)
    single = [value.float() for value in inputs]
    log_density, saved = forward(*single, noise.float())
    gradients = backward(saved, single[4], d_bound.float())

    double = [value.double().requires_grad_() for value in single]
    z, z_flowed, mean, variance, vectors = double
    exact = reference(*double, noise.float().double())
    assert_all_close([log_density], [exact], 2e-5)
    loss = -0.5 * (exact * d_bound).sum()
    d_z_flowed, d_z, d_variance, d_vectors = torch.autograd.grad(loss, (z_flowed, z, variance, vectors))
    assert_all_close([gradients.z_flowed, gradients.vectors], [d_z_flowed, d_vectors[3:]], 2e-5)
    # c^T W enters through its mean c^T (z M) and its variance c²^T S²
    projector = vectors[2].detach()
    d_mean = projector * (gradients.projection.double() @ mean.detach().T)
    d_var = torch.outer(projector.square(), 0.5 * gradients.projection_var.double())
    assert_all_close([d_mean, d_var], [d_z, d_variance], 5e-5)


def test_log_precisions_are_clamped_to_their_bound():
    vectors = randn(5, 6).float()
    vectors[4] = torch.tensor([400.0, -400.0, 0.1, 0.2, 0.3, 0.4])
    mean = randn(6, 5, seed=4).float() + 0.5
    variance = torch.full((6, 5), 0.4)
    z, z_flowed = randn(2, 6).float(), randn(2, 6, seed=1).float()
    _, saved = forward(z, z_flowed, mean, variance, vectors, torch.zeros(2, 5))
    log_precision = (saved.weighted_residual / saved.residual).log()
    assert_close(log_precision[:, :2].abs(), torch.full((2, 2), BOUND), rtol=1e-5, atol=0)
    assert (log_precision[:, 2:].abs() < 1).all()
