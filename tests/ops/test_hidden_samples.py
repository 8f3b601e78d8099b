"""Sampled hidden units: compiled against reference."""

import pytest
from kernel_checks import assert_matches_reference, randn

from compound.ops.clamp import LIMIT
from compound.ops.hidden_samples import reference, sample_hidden


@pytest.mark.parametrize("gaussians", [1, 3])
def test_samples_and_gradients_are_those_of_the_reference(gaussians):
    noise = randn(2, 3, 5, 4, seed=4)
    mean, std = randn(2, gaussians, 5, 4), randn(2, gaussians, 5, 4, seed=5).exp()
    mean[0, 0, 0] = 3 * LIMIT  # clipped: no gradient
    assert_matches_reference(
        lambda m, s: [sample_hidden(m, s, noise.to(m.dtype))],
        lambda m, s: [reference(m, s, noise)],
        [mean, std],
    )
