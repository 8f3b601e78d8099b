"""Channels scaled per image: the compiled operations against their definitions."""

import pytest
from kernel_checks import assert_matches_reference, randn

from compound.ops.scaled_channels import (
    add_scaled,
    add_scaled_reference,
    two_scales,
    two_scales_reference,
)


@pytest.mark.parametrize("axes", [(7,), (5, 3)])
def test_scaled_channels_and_gradients_are_those_of_the_reference(axes):
    inputs = [randn(4, 3, *axes), randn(4, 3, seed=1), randn(4, 3, seed=2)]
    assert_matches_reference(two_scales, two_scales_reference, inputs)


@pytest.mark.parametrize("axes", [(7,), (5, 3)])
def test_scaled_noise_and_gradients_are_those_of_the_reference(axes):
    images = randn(4, 3, *axes), randn(4, 3, *axes, seed=3)
    assert_matches_reference(
        lambda mean, *others: (add_scaled(mean.clone(), *others),),
        lambda *inputs: (add_scaled_reference(*inputs),),
        [*images, randn(4, 3, seed=1), randn(4, 3, seed=2)],
    )
