"""Draws through the last compound layer: compiled against reference."""

import pytest
import torch
from kernel_checks import assert_all_close, randn

from compound.ops.clamp import LIMIT
from compound.ops.compound_draws import compound_draws, reference
from compound.ops.compound_moments import MomentOptions


def arguments(members, rows, draws, width, hyper, c):
    """Hidden units with one clipped row, and weights that reach the bounds of the log-variances."""
    mean, std = randn(members, rows, width), 0.5 * randn(members, rows, width, seed=1).exp()
    mean[0, 0] = 3 * LIMIT
    weights = randn(members, width + 1, hyper, seed=2) / width**0.5
    heads = randn(members, hyper + 1, 2 * (width + 1) + c, seed=3) / hyper**0.5
    basis = randn(members, width + 1, c, seed=4)
    return [mean, std, randn(members, draws, width, seed=5), weights, heads, basis]


@pytest.mark.parametrize("sizes", [(5, 7, 6, 50, 20, 1), (2, 3, 1, 17, 16, 20), (1, 1, 4, 1, 1, 2)], ids=str)
@pytest.mark.parametrize("fan_in, bound", [(True, 10.0), (False, 0.5)])
def test_moments_of_draws_are_those_of_the_reference(sizes, fan_in, bound):
    options = MomentOptions(bound, fan_in, False)
    single = [value.float() for value in arguments(*sizes)]
    with torch.no_grad():
        ours = compound_draws(*single, options)
        exact = reference(*(value.double() for value in single), options)
    for one, other in zip(ours, exact, strict=True):
        scale = other.abs().amax((0, 1, 3), keepdim=True)  # of each row: one is clipped
        assert_all_close([one / scale], [other / scale], 2e-5)


def test_a_row_does_not_depend_on_the_others():
    parts = [value.float() for value in arguments(2, 9, 4, 10, 5, 3)]
    options = MomentOptions(10.0, True, False)
    with torch.no_grad():
        together = compound_draws(*parts, options)
        alone = compound_draws(parts[0][:, 4:5], parts[1][:, 4:5], *parts[2:], options)
    for one, all_rows in zip(alone, together, strict=True):
        assert torch.equal(one, all_rows[:, :, 4:5])
