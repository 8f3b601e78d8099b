"""The compound layer for rows of inputs: compiled against reference."""

import pytest
import torch
from kernel_checks import assert_all_close, randn

from compound.ops.compound_moments import MomentOptions
from compound.ops.compound_rows import compound_rows, reference


def arguments(members, rows, width, hyper, c):
    """Inputs of which most are 0, as indicators are, and weights that reach the bounds of log-variances."""
    x = randn(members, rows, width) * (randn(members, rows, width, seed=1) > 0.5)
    weights = randn(members, width + 1, hyper, seed=2) / width**0.5
    heads = randn(members, hyper + 1, 2 * (width + 1) + c, seed=3) / hyper**0.5
    return [x, weights, heads, randn(members, width + 1, c, seed=4)]


@pytest.mark.parametrize("sizes", [(5, 7, 133, 50, 50), (2, 3, 200, 20, 100), (1, 1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("fan_in, bound", [(True, 10.0), (False, 0.5)])
def test_moments_of_rows_are_those_of_the_reference(sizes, fan_in, bound):
    options = MomentOptions(bound, fan_in, False)
    single = [value.float() for value in arguments(*sizes)]
    with torch.no_grad():
        ours = compound_rows(*single, options)
        exact = reference(*(value.double() for value in single), options)
    assert_all_close(ours, exact, 2e-5)


def test_a_row_does_not_depend_on_the_others():
    x, *weights = [value.float() for value in arguments(2, 9, 70, 5, 3)]
    options = MomentOptions(10.0, True, False)
    with torch.no_grad():
        together = compound_rows(x, *weights, options)
        alone = compound_rows(x[:, 4:5], *weights, options)
    for one, all_rows in zip(alone, together, strict=True):
        assert torch.equal(one, all_rows[:, 4:5])


def test_weights_that_are_not_finite_are_seen():
    x, hyper, heads, basis = [value.float() for value in arguments(1, 2, 5, 4, 2)]
    hyper[0, 5, 1] = torch.nan
    with torch.no_grad():
        assert all(
            part.isnan().any()
            for part in compound_rows(x, hyper, heads, basis, MomentOptions(10.0, True, False))
        )
