"""Moments of compound layers: compiled against reference, clamped log-variances, reused memory."""

import itertools

import pytest
import torch
from kernel_checks import assert_all_close, assert_matches_reference, gradients_of, randn
from torch.testing import assert_close

from compound.ops.compound_moments import MomentOptions, compound_moments, reference
from compound.ops.gaussian_noise import standard_normal
from compound.random import named_generator

INPUTS = [randn(2, 5, 4), randn(2, 5, 11), randn(2, 4, 3)]


@pytest.mark.parametrize(
    ("kl", "fan_in", "bound"), list(itertools.product((True, False), (True, False), (10.0, 0.7)))
)
def test_compiled_moments_and_gradients_are_those_of_the_reference(kl, fan_in, bound):
    """At 0.7 many log-variances are clamped."""
    options = MomentOptions(bound, fan_in, kl)
    assert_matches_reference(
        lambda *a: compound_moments(*a, options), lambda *a: reference(*a, options), INPUTS
    )


def test_heads_are_overwritten_only_on_request():
    options = MomentOptions(10.0, True, True)
    x, heads, basis = (value.float() for value in INPUTS)
    before = heads.clone()
    expected = compound_moments(x, heads, basis, options)
    assert torch.equal(heads, before)
    scaled = gradients_of(lambda x, h, v: compound_moments(x, 1 * h, v, options), [x, heads, basis])
    again = gradients_of(
        lambda x, h, v: compound_moments(x, 1 * h, v, options, overwrite_heads=True), [x, heads, basis]
    )
    for one, other in zip(again, scaled, strict=True):
        assert torch.equal(one, other)
    assert_all_close(again[:3], expected, 0)


@pytest.mark.parametrize("kl", [True, False])
@pytest.mark.parametrize("bound", [10.0, 0.05])  # at 0.05 most log-variances are clamped
def test_gradient_of_the_reference(kl, bound):
    g = named_generator(3)
    shapes = ((2, 5, 4), (2, 5, 10), (2, 4, 2))
    inputs = [torch.randn(*s, generator=g, dtype=torch.float64).requires_grad_() for s in shapes]
    for fan_in in (True, False):
        options = MomentOptions(bound, fan_in, kl)
        torch.autograd.gradcheck(
            lambda *a, options=options: [t for t in reference(*a, options) if t.numel()], inputs
        )


@pytest.mark.parametrize(
    ("scale", "logs"), [(1.0, 0.2), (1.0, -0.2), (9.0, 0.01), (1.0, 0.01)]
)  # too high, too low, only s large
def test_log_variances_are_clamped_to_their_bound(scale, logs):
    x, heads, basis = (
        standard_normal(named_generator(k), shape, torch.empty(0).double())
        for k, shape in enumerate(((1, 5, 4), (1, 5, 10), (1, 4, 2)))
    )
    s, log = scale * heads[..., :4], logs * heads[..., 4:].abs()
    clamped = reference(x, torch.cat([s, log], -1), basis, MomentOptions(0.1, True, True))
    expected = reference(x, torch.cat([s, log.clamp(-0.1, 0.1)], -1), basis, MomentOptions(20.0, True, True))
    assert bool((log.abs() > 0.1).any()) == (abs(logs) == 0.2)
    for a, b in zip(clamped, expected, strict=True):
        assert_close(a, b, rtol=1e-12, atol=1e-12)
