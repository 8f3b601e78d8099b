"""Moments of compound layers whose inputs share scales and variances in groups."""

import itertools

import pytest
import torch
from kernel_checks import assert_matches_reference, randn
from torch.testing import assert_close

from compound.ops import compound_moments
from compound.ops.compound_moments import MomentOptions
from compound.ops.grouped_moments import grouped_moments, reference, repeat_heads

COUNTS = torch.tensor([1.0, 3.0, 2.0, 1.0])
INPUTS = [randn(2, 5, 7), randn(2, 5, 2 * 4 + 3), randn(2, 7, 3)]


@pytest.mark.parametrize(
    ("kl", "fan_in", "bound"), list(itertools.product((True, False), (True, False), (10.0, 0.7)))
)
def test_compiled_moments_and_gradients_are_those_of_the_reference(kl, fan_in, bound):
    """At 0.7 many log-variances are clamped."""
    options = MomentOptions(bound, fan_in, kl)
    assert_matches_reference(
        lambda x, h, v: grouped_moments(x, 1 * h, v, COUNTS.to(h), options),  # 1 * h: its memory is reused
        lambda x, h, v: reference(x, h, v, COUNTS, options),
        INPUTS,
    )


def test_the_moments_and_the_kl_are_those_of_the_weight_matrices():
    """By loops over inputs and outputs, in float64."""
    options = MomentOptions(10.0, True, True)
    x, heads, basis = INPUTS
    out = reference(x, heads, basis, COUNTS, options)
    group = [0, 1, 1, 1, 2, 2, 3]
    for m, b, j in itertools.product(range(2), range(5), range(3)):
        s, lr, lc = heads[m, b].split([4, 4, 3])
        mean = sum(s[k] * x[m, b, i] * basis[m, i, j] for i, k in enumerate(group))
        variance = sum(x[m, b, i] ** 2 * lr[k].exp() for i, k in enumerate(group)) * lc[j].exp() / 7
        assert_close(out.mean[m, b, j], mean)
        assert_close(out.std[m, b, j] ** 2, variance)
    for m, b in itertools.product(range(2), range(5)):
        s, lr, lc = heads[m, b].split([4, 4, 3])
        row, col = lr[group].exp() / 7, lc.exp()
        weights = torch.distributions.Normal(
            s[group, None] * basis[m], (row[:, None] * col).sqrt(), validate_args=False
        )
        prior = torch.distributions.Normal(torch.zeros(7, 3).double(), torch.full((7, 3), 7**-0.5).double())
        assert_close(out.kl[m, b], torch.distributions.kl_divergence(weights, prior).sum())


def test_groups_of_one_are_no_groups():
    options = MomentOptions(10.0, True, True)
    x, heads, basis = randn(2, 5, 4).float(), randn(2, 5, 11).float(), randn(2, 4, 3).float()
    expected = compound_moments.compound_moments(x, heads, basis, options)
    for one, other in zip(
        grouped_moments(x, heads.clone(), basis, torch.ones(4), options), expected, strict=True
    ):
        assert_close(one, other)
    assert torch.equal(repeat_heads(heads, torch.ones(4), 4), heads)


@pytest.mark.parametrize("counts", [[1.0, 3.0, 2.0], [1.0, 3.0, 2.0, 2.0]])
def test_groups_that_do_not_cover_the_inputs_are_refused(counts):
    x, heads, basis = (value.float() for value in INPUTS)
    with pytest.raises(ValueError, match="the layer 7"):
        grouped_moments(x, heads, basis, torch.tensor(counts), MomentOptions(10.0, True, True))
