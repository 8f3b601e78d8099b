"""Draws of h~ W without W: compiled against reference, and rows that share a weight matrix."""

import torch
from kernel_checks import assert_matches_reference, randn
from torch.testing import assert_close

from compound.ops import noisy_affine as op
from compound.ops.gaussian_noise import standard_normal
from compound.random import named_generator

NOISE, BLOCKS = randn(2, 5, 6, seed=3), (1, 2, 3)
INPUTS = [randn(2, 5, 4), randn(2, 4, 6), 0.5 * randn(2, 3, 4), 0.5 * randn(2, 6)]


def test_compiled_draws_and_gradients_are_those_of_the_reference():
    assert_matches_reference(
        lambda x, *factors: [op.noisy_affine(x, *factors, NOISE.to(x.dtype), BLOCKS)],
        lambda x, *factors: [op.reference(x, *factors, NOISE, BLOCKS)],
        INPUTS,
    )


def test_gradient_of_the_reference():
    inputs = [value.clone().requires_grad_() for value in INPUTS]
    torch.autograd.gradcheck(lambda x, *factors: op.reference(x, *factors, NOISE, BLOCKS), inputs)


def test_equal_inputs_that_share_a_matrix_give_equal_outputs():
    noise = standard_normal(named_generator(11), (6, 4), torch.empty(0, dtype=torch.float64))
    x = torch.ones(2, 3, dtype=torch.float64).repeat(3, 1)
    out = op.scaled_noise(x, torch.ones(3, dtype=torch.float64), noise, 3).unflatten(0, (3, 2))
    assert_close(out[0], out[2], atol=1e-3, rtol=0)
