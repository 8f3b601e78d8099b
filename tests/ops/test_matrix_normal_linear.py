"""Draws and KL of a matrix-normal layer: the autograd function against the reference."""

import pytest
from kernel_checks import assert_all_close, gradients_of, randn

from compound.ops.matrix_normal_linear import matrix_normal_linear, reference


@pytest.mark.parametrize("outputs", [3, 20])  # narrow products are computed as their transposes
@pytest.mark.parametrize("draws", [1, 2])
def test_draws_kl_and_gradients_are_those_of_the_reference(outputs, draws):
    noise = randn(draws, 6, outputs, seed=3)
    inputs = [randn(6, 4), randn(5, outputs), 0.5 * randn(1, 5), 0.5 * randn(outputs)]
    exact = gradients_of(lambda *a: reference(*a, noise, 0.4), inputs)
    ours = gradients_of(lambda *a: matrix_normal_linear(*a, noise.clone(), 0.4), inputs)
    assert_all_close(ours, exact, 1e-12)
    single = [value.float() for value in inputs]
    ours = gradients_of(lambda *a: matrix_normal_linear(*a, noise.float(), 0.4), single)
    assert_all_close(ours, exact, 2e-5)
