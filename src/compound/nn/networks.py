"""The plain network: affine maps with ReLU between them, several independent networks side by side."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from compound.compat import foreach_mul, foreach_norm
from compound.ops.gaussian_noise import standard_normal
from compound.ops.jit import can_use_kernel, largest, launch
from compound.ops.moments import matmul
from compound.precision import full_precision

LIMIT = 1e4  # inputs and hidden units saturate here, four orders beyond standard units: no product overflows


def clamp_inputs(x: Tensor) -> Tensor:
    """Inputs held within ±LIMIT."""
    return x.clamp(-LIMIT, LIMIT)


def clamp_if_needed(x: Tensor) -> Tensor:
    """`clamp_inputs` for training rows, which nearly always are: a look is cheaper than a copy. Not for traces."""
    if can_use_kernel(x) and x.is_contiguous():
        return x if launch(largest, (x,), x.numel()) <= LIMIT else clamp_inputs(x)
    low, high = torch.aminmax(x)
    return x if low.item() >= -LIMIT and high.item() <= LIMIT else clamp_inputs(x)


def clipped_relu(a: Tensor) -> Tensor:
    """ReLU that saturates far beyond any ordinary value."""
    return functional.hardtanh(a, 0.0, LIMIT)


class Linear(nn.Module):
    """Affine maps of several members; He's start with the true fan-in, biases at 0."""

    def __init__(self, inputs: int, outputs: int, streams: Sequence[Generator], gain: float = 2.0):
        super().__init__()
        self.inputs, self.outputs, members = inputs, outputs, len(streams)
        start = standard_normal(streams, (members, inputs, outputs), torch.empty(0, dtype=torch.float32))
        self.weight = nn.Parameter(math.sqrt(gain / inputs) * start)  # (members, in, out)
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs, dtype=torch.float32))

    def forward(self, h: Tensor) -> Tensor:  # (members, rows, in) -> (members, rows, out)
        if len(self.weight) == 1:  # the batched product has a cost of its own
            return self.alone(h.squeeze(0)).unsqueeze(0)
        if self.outputs <= 16:  # where `matmul` turns the product round
            return cast(Tensor, NarrowLinear.apply(h, self.weight, self.bias))
        return torch.baddbmm(self.bias, h, self.weight)

    def alone(self, h: Tensor) -> Tensor:  # (rows, in) -> (rows, out)
        """Of a single member, without its axis."""
        return torch.addmm(self.bias.squeeze(0), h, self.weight.squeeze(0))


class Network(nn.Module):
    """x (rows, in), or one for each member (members, rows, in) -> f (members, rows, out)."""

    def __init__(self, widths: Sequence[int], streams: Sequence[Generator]):
        super().__init__()
        pairs = list(zip(widths, widths[1:], strict=False))
        gains = [2.0] * (len(pairs) - 1) + [1.0]  # the last map feeds no ReLU
        self.stack = nn.ModuleList(
            Linear(a, b, streams, gain) for (a, b), gain in zip(pairs, gains, strict=True)
        )

    @property
    def layers(self) -> list[Linear]:
        return cast(list[Linear], list(self.stack))

    def forward(self, x: Tensor) -> Tensor:
        return self.within(clamp_inputs(x))

    def within(self, h: Tensor) -> Tensor:
        """Of inputs that are saturated already."""
        *first, last = self.layers
        if len(last.weight) == 1 and h.ndim == 2:  # every axis that comes and goes costs time
            for layer in first:
                h = clipped_relu(layer.alone(h))
            return last.alone(h).unsqueeze(0)
        h = h.expand(len(last.weight), -1, -1)  # (members, rows, in)
        for layer in first:
            h = clipped_relu(layer(h))
        return last(h)


def l2_penalty(parameters: Iterable[Tensor], factor: Tensor | float) -> Tensor:  # (members,)
    """factor / 2 |θ|² of each member, over parameters (members, in, out): a Gaussian prior of that precision, but for a constant."""
    return cast(Tensor, _HalfSquares.apply(factor, *parameters))


class NarrowLinear(torch.autograd.Function):
    """h W + b for few outputs, which go faster as few rows, forth and back."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(h, weight)
        return matmul(h, weight).add_(bias)

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        h, weight = ctx.saved_tensors
        (d,) = gradients
        return (
            torch.bmm(d, weight.mT) if ctx.needs_input_grad[0] else None,
            matmul(h.mT, d),
            d.sum(1, keepdim=True),
        )


class _HalfSquares(torch.autograd.Function):
    """By hand: one product per parameter on the way back."""

    @staticmethod
    def forward(ctx: Any, factor: Tensor | float, *parameters: Tensor) -> Tensor:
        ctx.factor = factor
        ctx.save_for_backward(*parameters)
        if len(parameters[0]) == 1:
            return 0.5 * factor * torch.stack(foreach_norm(parameters)).square().sum().reshape(1)
        norms = torch.stack(
            [torch.linalg.vector_norm(p, dim=(1, 2)) for p in parameters]
        )  # (parameters, members)
        return 0.5 * factor * norms.square().sum(0)

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        slope = ctx.factor * gradients[0]  # (members,)
        if len(slope) == 1:
            return None, *foreach_mul(ctx.saved_tensors, slope.squeeze(0))
        return None, *(slope.view(-1, 1, 1) * p for p in ctx.saved_tensors)
