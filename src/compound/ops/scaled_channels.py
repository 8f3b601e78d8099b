"""Channels of images scaled per image: what a compound convolution does around its products.

    x -> x s, x t;        m, z -> m + z c + o,        with s, t, c, o per image and channel

torch takes a pass over the images for each product and each sum in the backward pass; the loops take one.
"""

from typing import Any, cast

import torch
from torch import Tensor

from compound.ops.jit import FASTMATH, F, array, can_use_kernel, launch, loop
from compound.precision import once_differentiable


def two_scales(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """x (rows, channels, ...) scaled by `first` and by `second` (1 or rows, channels); differentiable.

    Compiled where possible.
    """
    if can_use_kernel(x, first, second) and x.is_contiguous() and len(first) == len(second) == len(x):
        return cast(tuple[Tensor, Tensor], _TwoScales.apply(x, first.contiguous(), second.contiguous()))
    return two_scales_reference(x, first, second)


def two_scales_reference(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The definition of `two_scales`, for any dtype and device."""
    return x * per_channel(first, x), x * per_channel(second, x)


def add_scaled(mean: Tensor, noise: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """mean + noise * scale + offset for images and numbers per channel (1 or rows, channels).

    Differentiable; compiled where possible. `mean` is overwritten.
    """
    tensors = mean, noise, scale, offset
    contiguous = mean.is_contiguous() and noise.is_contiguous()
    if can_use_kernel(*tensors) and contiguous and len(scale) == len(offset) == len(mean):
        return cast(Tensor, _AddScaled.apply(mean, noise, scale.contiguous(), offset.contiguous()))
    return add_scaled_reference(*tensors)


def add_scaled_reference(mean: Tensor, noise: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """The definition of `add_scaled`, for any dtype and device."""
    return torch.addcmul(mean, noise, per_channel(scale, noise)) + per_channel(offset, noise)


def per_channel(values: Tensor, images: Tensor) -> Tensor:
    """Values (rows, channels) with an axis for each axis of the images."""
    return values.view(*values.shape, *[1] * (images.ndim - 2))


class _TwoScales(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        ctx.save_for_backward(x, first, second)
        ctx.sizes = first.numel(), x[0, 0].numel()
        outs = torch.empty_like(x), torch.empty_like(x)
        launch(two_scales_loop, (x, first, second, *outs), *ctx.sizes)
        return outs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_first: Tensor, d_second: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        x, first, second = ctx.saved_tensors
        gradients = torch.empty_like(x), torch.empty_like(first), torch.empty_like(second)
        arrays = (x, first, second, d_first.contiguous(), d_second.contiguous(), *gradients)
        launch(two_scales_backward_loop, arrays, *ctx.sizes)
        return gradients


class _AddScaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, noise: Tensor, scale: Tensor, offset: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(noise, scale)
        ctx.sizes = scale.numel(), noise[0, 0].numel()
        launch(add_scaled_loop, (mean, noise, scale, offset), *ctx.sizes)
        ctx.mark_dirty(mean)
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        noise, scale = ctx.saved_tensors
        d_out = d_out.contiguous()
        gradients = torch.empty_like(noise), torch.empty_like(scale), torch.empty_like(scale)
        launch(add_scaled_backward_loop, (noise, scale, d_out, *gradients), *ctx.sizes)
        return d_out, *gradients


@loop(FASTMATH, "out_first out_second")
def two_scales_loop(
    x_: int, first_: int, second_: int, out_first_: int, out_second_: int, channels: int, positions: int
) -> None:
    """`two_scales`, with images and their channels as one axis."""
    x = array(x_, (channels, positions))
    first = array(first_, (channels,))
    second = array(second_, (channels,))
    out_first = array(out_first_, (channels, positions))
    out_second = array(out_second_, (channels, positions))
    for c in range(channels):
        values, one, other, s, t = x[c], out_first[c], out_second[c], first[c], second[c]
        for i in range(positions):
            one[i] = values[i] * s
            other[i] = values[i] * t


@loop(FASTMATH, "d_x d_s d_t")
def two_scales_backward_loop(
    x_: int, first_: int, second_: int, d_first_: int, d_second_: int, d_x_: int, d_s_: int, d_t_: int,
    channels: int, positions: int,
) -> None:  # fmt: skip
    """Gradients of `two_scales_loop`."""
    x = array(x_, (channels, positions))
    first = array(first_, (channels,))
    second = array(second_, (channels,))
    d_first = array(d_first_, (channels, positions))
    d_second = array(d_second_, (channels, positions))
    d_x = array(d_x_, (channels, positions))
    d_s = array(d_s_, (channels,))
    d_t = array(d_t_, (channels,))
    for c in range(channels):
        values, one, other, out, s, t = x[c], d_first[c], d_second[c], d_x[c], first[c], second[c]
        sum_s, sum_t = F(0), F(0)
        for i in range(positions):
            out[i] = one[i] * s + other[i] * t
            sum_s += one[i] * values[i]
            sum_t += other[i] * values[i]
        d_s[c], d_t[c] = sum_s, sum_t


@loop(FASTMATH, "mean")
def add_scaled_loop(
    mean_: int, noise_: int, scale_: int, offset_: int, channels: int, positions: int
) -> None:
    """`add_scaled`, with images and their channels as one axis."""
    mean = array(mean_, (channels, positions))
    noise = array(noise_, (channels, positions))
    scale = array(scale_, (channels,))
    offset = array(offset_, (channels,))
    for c in range(channels):
        out, values, s, o = mean[c], noise[c], scale[c], offset[c]
        for i in range(positions):
            out[i] += values[i] * s + o


@loop(FASTMATH, "d_noise d_scale d_offset")
def add_scaled_backward_loop(
    noise_: int, scale_: int, d_out_: int, d_noise_: int, d_scale_: int, d_offset_: int,
    channels: int, positions: int,
) -> None:  # fmt: skip
    """Gradients of `add_scaled_loop`; that of the mean is the output's own."""
    noise = array(noise_, (channels, positions))
    scale = array(scale_, (channels,))
    d_out = array(d_out_, (channels, positions))
    d_noise = array(d_noise_, (channels, positions))
    d_scale = array(d_scale_, (channels,))
    d_offset = array(d_offset_, (channels,))
    for c in range(channels):
        values, d, out, s = noise[c], d_out[c], d_noise[c], scale[c]
        total, product = F(0), F(0)
        for i in range(positions):
            out[i] = d[i] * s
            product += d[i] * values[i]
            total += d[i]
        d_scale[c], d_offset[c] = product, total
