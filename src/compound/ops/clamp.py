"""Bounds on inputs and hidden units, beyond any ordinary value, that keep products from overflowing."""

from torch import Tensor
from torch.nn import functional

LIMIT = 1e4  # four orders of magnitude beyond standardised inputs


def clamp_inputs(x: Tensor) -> Tensor:
    """x clamped to ±LIMIT."""
    return x.clamp(-LIMIT, LIMIT)


def clipped_relu(a: Tensor) -> Tensor:
    """ReLU clipped at LIMIT."""
    return functional.hardtanh(a, 0.0, LIMIT)
