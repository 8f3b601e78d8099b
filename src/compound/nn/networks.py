"""The plain network: affine maps with ReLU between them, several independent networks side by side."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from compound.types import normal

LIMIT = 1e4  # inputs and hidden units saturate here, four orders beyond standard units: no product overflows


def hidden(a: Tensor) -> Tensor:
    """ReLU that saturates far beyond any ordinary value."""
    return functional.hardtanh(a, 0.0, LIMIT)


class Linear(nn.Module):
    """Affine maps of several members; He's start with the true fan-in, biases at 0."""

    def __init__(self, inputs: int, outputs: int, streams: Sequence[Generator], gain: float = 2.0):
        super().__init__()
        self.inputs, self.outputs, members = inputs, outputs, len(streams)
        start = normal(streams, (members, inputs, outputs), torch.empty(0))
        self.weight = nn.Parameter(math.sqrt(gain / inputs) * start)  # (members, in, out)
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))

    def forward(self, h: Tensor) -> Tensor:  # (members, rows, in) -> (members, rows, out)
        if len(self.weight) == 1:  # the batched product has a cost of its own
            return torch.addmm(self.bias[0], h[0], self.weight[0]).unsqueeze(0)
        return torch.baddbmm(self.bias, h, self.weight)


class Network(nn.Module):
    """x (rows, in) -> f (members, rows, out)."""

    def __init__(self, widths: Sequence[int], streams: Sequence[Generator]):
        super().__init__()
        pairs = list(zip(widths, widths[1:], strict=False))
        gains = [2.0] * (len(pairs) - 1) + [1.0]  # the last map feeds no ReLU
        self.stack = nn.ModuleList(Linear(a, b, streams, gain) for (a, b), gain in zip(pairs, gains, strict=True))

    @property
    def layers(self) -> list[Linear]:
        return cast(list[Linear], list(self.stack))

    def forward(self, x: Tensor) -> Tensor:
        *first, last = self.layers
        h = x.clamp(-LIMIT, LIMIT).expand(len(last.weight), -1, -1)  # (members, rows, in)
        for layer in first:
            h = hidden(layer(h))
        return last(h)
