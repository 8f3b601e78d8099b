"""Hidden units drawn from the Gaussians of a layer, ready for the next one: saturating ReLU and the constant of h~ = [h; 1] included."""

from typing import Any

import torch
from torch import Tensor

from compound.nn.matrix_gaussian import append_ones
from compound.nn.networks import LIMIT, clipped_relu
from compound.ops import layer_loops as layers
from compound.ops.jit import can_use_kernel, launch
from compound.precision import by_hand


def sample_hidden(mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:  # (members, S rows, width + 1)
    """h~ under noise (members, S, rows, width); mean and std are (members, S or 1, rows, width)."""
    if can_use_kernel(mean, std, noise):
        return _Units.apply(mean.contiguous(), std.contiguous(), noise)
    return append_ones(clipped_relu(torch.addcmul(mean, std, noise))).flatten(1, 2)


class _Units(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:  # type: ignore[override]
        members, samples, rows, width = noise.shape
        out = mean.new_empty((members, samples * rows, width + 1))
        ctx.sizes = members, mean.shape[1], samples, rows, width, LIMIT
        launch(layers.units, (mean, std, noise, out), *ctx.sizes)
        ctx.save_for_backward(out, noise)
        return out

    @staticmethod
    @by_hand
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        members, given, _, rows, width, _ = ctx.sizes
        d_mean, d_std = d_out.new_zeros((2, members, given, rows, width)).unbind()
        launch(layers.units_back, (*ctx.saved_tensors, d_out.contiguous(), d_mean, d_std), *ctx.sizes)
        return d_mean, d_std, None
