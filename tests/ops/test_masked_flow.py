"""The masked flow: compiled against reference."""

import pytest
import torch
from kernel_checks import assert_matches_reference, randn

from compound.ops.masked_flow import masked_flow, reference


@pytest.mark.parametrize(("inputs", "draws", "steps"), [(6, 3, 2), (5, 1, 1)])
def test_flow_and_gradients_are_those_of_the_reference(inputs, draws, steps):
    hidden, masks = 4, randn(steps, draws, inputs, seed=2)
    bias = 0.5 * randn(steps, hidden + 2 * inputs)
    bias[0, -inputs:] = torch.linspace(-30, 30, inputs)  # gates that are closed, and open
    parameters = [randn(steps, inputs, hidden), randn(steps, hidden, 2 * inputs), bias]
    assert_matches_reference(
        lambda z, *p: masked_flow(z, masks.to(z.dtype), *p),
        lambda z, *p: reference(z, masks, *p),
        [randn(draws, inputs), *parameters],
        scaled_atol=2e-6,
    )
