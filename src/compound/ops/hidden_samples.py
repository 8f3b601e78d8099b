"""Hidden units drawn from the Gaussians of a layer, ready as the next layer's h~ = [h; 1]."""

from typing import Any, cast

import torch
from torch import Tensor

from compound.ops.affine import append_ones
from compound.ops.clamp import LIMIT, clipped_relu
from compound.ops.jit import FASTMATH, F, array, can_use_kernel, launch, loop
from compound.precision import once_differentiable


def sample_hidden(mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:  # (members, S rows, width + 1)
    """[clipped_relu(mean + std * noise); 1] for S draws: compiled where possible, differentiable.

    Shapes: standard normal noise (members, S, rows, width), mean and std (members, S or 1, rows, width).
    """
    if can_use_kernel(mean, std, noise):
        return cast(Tensor, _SampleHidden.apply(mean.contiguous(), std.contiguous(), noise))
    return reference(mean, std, noise)


def reference(mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
    """The definition of `sample_hidden`, for any dtype and device."""
    return append_ones(clipped_relu(torch.addcmul(mean, std, noise))).flatten(1, 2)


class _SampleHidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:  # type: ignore[override]
        members, samples, rows, width = noise.shape
        out = mean.new_empty((members, samples * rows, width + 1))
        ctx.sizes = members, mean.shape[1], samples, rows, width, LIMIT
        launch(sample_loop, (mean, std, noise, out), *ctx.sizes)
        ctx.save_for_backward(out, noise)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        members, gaussians, _, rows, width, _ = ctx.sizes
        d_mean, d_std = d_out.new_zeros((2, members, gaussians, rows, width)).unbind()
        arrays = (*ctx.saved_tensors, d_out.contiguous(), d_mean, d_std)
        launch(sample_backward_loop, arrays, *ctx.sizes)
        return d_mean, d_std, None


@loop(FASTMATH, "out")
def sample_loop(
    mean_: int, std_: int, noise_: int, out_: int,
    members: int, gaussians: int, samples: int, rows: int, width: int, limit: float,
) -> None:  # fmt: skip
    """[clamp(mean + std * noise, 0, limit); 1] for S draws; `gaussians` per row is S, or 1 for all draws."""
    mean = array(mean_, (members, gaussians, rows, width))
    std = array(std_, (members, gaussians, rows, width))
    noise = array(noise_, (members, samples, rows, width))
    out = array(out_, (members, samples, rows, width + 1))
    high = F(limit)
    if gaussians < 1:
        raise ValueError("there is no Gaussian to draw hidden units from")
    for m in range(members):
        for s in range(samples):
            for b in range(rows):
                centre, deviation = mean[m, s % gaussians, b], std[m, s % gaussians, b]
                draw, result = noise[m, s, b], out[m, s, b]
                for j in range(width):
                    result[j] = min(max(centre[j] + deviation[j] * draw[j], F(0)), high)
                result[width] = F(1)


@loop(FASTMATH, "d_mean d_std")
def sample_backward_loop(
    out_: int, noise_: int, d_out_: int, d_mean_: int, d_std_: int,
    members: int, gaussians: int, samples: int, rows: int, width: int, limit: float,
) -> None:  # fmt: skip
    """Gradients of `sample_loop` with respect to mean and std, accumulated over the draws."""
    d_mean = array(d_mean_, (members, gaussians, rows, width))
    d_std = array(d_std_, (members, gaussians, rows, width))
    out = array(out_, (members, samples, rows, width + 1))
    noise = array(noise_, (members, samples, rows, width))
    d_out = array(d_out_, (members, samples, rows, width + 1))
    high = F(limit)
    if gaussians < 1:
        raise ValueError("there is no Gaussian to draw hidden units from")
    for m in range(members):
        for s in range(samples):
            for b in range(rows):
                unit, draw, d = out[m, s, b], noise[m, s, b], d_out[m, s, b]
                grad_mean, grad_std = d_mean[m, s % gaussians, b], d_std[m, s % gaussians, b]
                for j in range(width):
                    slope = d[j] if F(0) < unit[j] < high else F(0)
                    grad_mean[j] += slope
                    grad_std[j] += slope * draw[j]
