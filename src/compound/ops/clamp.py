"""Bounds on inputs and hidden units, beyond any ordinary value, that keep products from overflowing."""

import torch
from torch import Tensor
from torch.nn import functional

from compound.ops.jit import can_use_kernel

LIMIT = 1e4  # four orders of magnitude beyond standardised inputs


def clamp_inputs(x: Tensor) -> Tensor:
    """x clamped to ±LIMIT; x itself where nothing lies beyond, which saves a copy."""
    if x.requires_grad or x.numel() == 0 or not can_use_kernel(x):
        return x.clamp(-LIMIT, LIMIT)
    low, high = torch.aminmax(x)  # NaN where x holds any
    return x if low >= -LIMIT and high <= LIMIT else x.clamp(-LIMIT, LIMIT)


def clipped_relu(a: Tensor) -> Tensor:
    """ReLU clipped at LIMIT."""
    return functional.hardtanh(a, 0.0, LIMIT)
