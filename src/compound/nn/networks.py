"""The deterministic network: affine maps with ReLU between them, several networks side by side."""

import math
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Generator, Tensor, nn

from compound.ops.affine import NARROW, linear
from compound.ops.clamp import clamp_inputs, clipped_relu
from compound.ops.gaussian_noise import standard_normal


class Linear(nn.Module):
    """One affine map per member (one generator each); initial weights N(0, gain / inputs), biases 0."""

    def __init__(self, inputs: int, outputs: int, generators: Sequence[Generator], gain: float = 2.0):
        super().__init__()
        self.inputs = inputs
        self.outputs = outputs
        members = len(generators)
        noise = standard_normal(generators, (members, inputs, outputs), torch.empty(0, dtype=torch.float32))
        self.weight = nn.Parameter(math.sqrt(gain / inputs) * noise)  # (members, in, out)
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs, dtype=torch.float32))

    def forward(self, h: Tensor) -> Tensor:  # (members, rows, in) -> (members, rows, out)
        if len(self.weight) == 1:  # a batched product has overhead of its own
            return self.forward_single(h.squeeze(0)).unsqueeze(0)
        if self.outputs <= NARROW:
            return linear(h, self.weight) + self.bias
        return torch.baddbmm(self.bias, h, self.weight)

    def forward_single(self, h: Tensor) -> Tensor:  # (rows, in) -> (rows, out)
        """`forward` of a single member, without the members' axis."""
        return torch.addmm(self.bias.squeeze(0), h, self.weight.squeeze(0))


class Network(nn.Module):
    """One network per member (one generator each), with the same widths from inputs to outputs.

    It maps x (rows, in), or one x per member (members, rows, in), to outputs f (members, rows, out).
    """

    def __init__(self, widths: Sequence[int], generators: Sequence[Generator]):
        super().__init__()
        pairs = list(zip(widths, widths[1:], strict=False))
        gains = [2.0] * (len(pairs) - 1) + [1.0]  # the last map feeds no ReLU
        layers = zip(pairs, gains, strict=True)
        self.stack = nn.ModuleList(Linear(a, b, generators, gain) for (a, b), gain in layers)

    @property
    def layers(self) -> list[Linear]:
        return cast(list[Linear], list(self.stack))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_clamped(clamp_inputs(x))

    def forward_clamped(self, h: Tensor) -> Tensor:
        """`forward` of inputs that are clamped already."""
        *first, last = self.layers
        if len(last.weight) == 1 and h.ndim == 2:  # every squeeze and unsqueeze costs time
            for layer in first:
                h = clipped_relu(layer.forward_single(h))
            return last.forward_single(h).unsqueeze(0)
        h = h.expand(len(last.weight), -1, -1)  # (members, rows, in)
        for layer in first:
            h = clipped_relu(layer(h))
        return last(h)


def l2_penalty(parameters: Iterable[Tensor], factor: Tensor | float) -> Tensor:  # (members,)
    """factor / 2 |θ|² of each member, over parameters (members, in, out).

    It is the negative log-density of a Gaussian prior with precision `factor`, up to a constant.
    """
    return 0.5 * factor * torch.stack([p.square().sum((1, 2)) for p in parameters]).sum(0)
