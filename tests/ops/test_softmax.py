"""Expected softmax of Gaussian logits against Monte Carlo and a fine grid."""

import math

import pytest
import torch
from torch.testing import assert_close

from compound.ops.softmax import expected_softmax
from compound.random import named_generator


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 10.0, 30.0])
def test_expected_softmax_against_monte_carlo(scale):
    g = named_generator(12)
    mean = 2 * torch.randn(2, 5, generator=g, dtype=torch.float64)
    std = scale * torch.rand(2, 5, generator=g, dtype=torch.float64) + 1e-2
    out = expected_softmax(mean, std)
    assert_close(out.sum(-1), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-8)
    n = 200_000
    draws = torch.softmax(mean + std * torch.randn(n, 2, 5, generator=g, dtype=torch.float64), -1)
    assert ((out - draws.mean(0)).abs() < 5 * draws.std(0) / math.sqrt(n) + 1e-9).all()


def test_expected_softmax_of_two_classes_is_the_logistic_normal_integral():
    mean = torch.tensor([[0.7, -0.4]], dtype=torch.float64)
    std = torch.tensor([[1.3, 0.8]], dtype=torch.float64)
    gap_mean, gap_std = 1.1, math.sqrt(1.3**2 + 0.8**2)
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    exact = torch.trapezoid(
        torch.sigmoid(gap_mean + gap_std * z) * torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi), z
    )
    assert_close(expected_softmax(mean, std)[0, 0], exact, rtol=0, atol=1e-9)
