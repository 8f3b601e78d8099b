"""Inputs are clamped to ±LIMIT, copied only where something lies beyond."""

import math

import pytest
import torch

from compound.ops.clamp import LIMIT, clamp_inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beyond", [None, 2 * LIMIT, -2 * LIMIT, math.inf, -math.inf, math.nan])
def test_values_are_those_of_clamp(dtype, beyond):
    x = torch.linspace(-LIMIT, LIMIT, 12, dtype=dtype).reshape(3, 4)
    if beyond is not None:
        x[1, 2] = beyond
    torch.testing.assert_close(clamp_inputs(x), x.clamp(-LIMIT, LIMIT), rtol=0, atol=0, equal_nan=True)


def test_rows_within_the_limit_are_not_copied_and_gradients_are_kept():
    x = torch.full((2, 3), LIMIT)
    assert clamp_inputs(x) is x
    assert clamp_inputs(x[:0]).shape == (0, 3)
    leaf = torch.full((2, 3), 2 * LIMIT, requires_grad=True)
    clamp_inputs(leaf).sum().backward()
    assert torch.equal(leaf.grad, torch.zeros(2, 3))
