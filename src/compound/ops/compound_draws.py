"""Draws through the last compound layer: hidden units are sampled and their layer's moments computed at once.

    h = clipped_relu(m + s ε),    g = relu(h~ A),    (scale, lr, lc) = g~ B        for each row and draw ε
    mean = V^T (scale * h~),      std = sqrt( (sum_i h~_i² exp(lr_i)) exp(lc) )

`reference` is the definition. In the loop a vector holds 16 draws: 16 of one row, or 8 of a row and 8 of the
next one. What is zero in all of them is left out, units of the layer and of its hypernetwork. Sums go
through the units in order, and zeros change no sum: so a row's numbers do not depend on the row beside it.
torch would write hidden units and heads of all rows and draws to memory. For prediction: there is no
gradient.
"""

import math

import numpy as np
import torch
from torch import Tensor

from compound.ops.affine import append_ones
from compound.ops.clamp import LIMIT, clipped_relu
from compound.ops.compound_moments import MomentOptions
from compound.ops.compound_moments import reference as moments_reference
from compound.ops.jit import F, array, can_use_kernel, launch, loop
from compound.ops.lanes import (
    address_of,
    differ,
    lanes_exp,
    load,
    load_halves,
    maximum,
    minimum,
    splat,
    splat_at,
    splat_halves,
    store,
)
from compound.ops.sparse_rows import pad, round_up

HALF = 8  # draws of a row are taken so many at a time
TOGETHER = 8  # units whose sums are held in registers


def compound_draws(
    mean: Tensor, std: Tensor, noise: Tensor, hyper: Tensor, heads: Tensor, basis: Tensor,
    options: MomentOptions,
) -> tuple[Tensor, Tensor]:  # (members, draws, rows, c) each  # fmt: skip
    """Means and standard deviations of a layer's outputs, given draws of its inputs; without gradients.

    Shapes: mean and std of the hidden units (members, rows, width), standard normal noise (members, draws,
    width), weights of the hypernetwork with one hidden layer (members, width + 1, H) and (members, H + 1,
    2 r + c), basis V (members, r = width + 1, c).
    """
    if not can_use_kernel(mean, std, noise, hyper, heads, basis) or torch.is_grad_enabled():
        return reference(mean, std, noise, hyper, heads, basis, options)
    members, draws, width = noise.shape
    rows, r, c = mean.shape[1], width + 1, basis.shape[-1]
    padded = pad(noise, round_up(draws, HALF), width)
    out_mean, out_std = mean.new_empty((2, members, draws, rows, c)).unbind()
    arrays = (
        mean.contiguous(),
        std.contiguous(),
        padded.unflatten(1, (-1, HALF)).transpose(2, 3).contiguous(),  # (members, halves, width, HALF)
        pad(hyper, r, round_up(hyper.shape[-1], TOGETHER)),
        heads.contiguous(),
        basis.contiguous(),
        out_mean,
        out_std,
    )
    sizes = members, rows, draws, width, hyper.shape[-1], c
    launch(draws_loop, arrays, *sizes, LIMIT, *options[:2])
    return out_mean, out_std


def reference(
    mean: Tensor, std: Tensor, noise: Tensor, hyper: Tensor, heads: Tensor, basis: Tensor,
    options: MomentOptions,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The definition of `compound_draws`, for any dtype and device."""
    h = append_ones(clipped_relu(mean.unsqueeze(1) + std.unsqueeze(1) * noise.unsqueeze(2)))
    g = append_ones(torch.relu(h @ hyper.unsqueeze(1)))
    out = moments_reference(h, g @ heads.unsqueeze(1), basis.unsqueeze(1), options._replace(kl=False))
    return out.mean, out.std


@loop({"contract"}, "out_mean out_std")
def draws_loop(
    mean_: int, std_: int, noise_: int, hyper_: int, heads_: int, basis_: int, out_mean_: int, out_std_: int,
    members: int, batch: int, draws: int, width: int, units: int, c: int,
    limit: float, bound: float, fan_in: bool,
) -> None:  # fmt: skip
    """`reference`; the noise is that of 8 draws at a time, transposed."""
    r, halves, columns = width + 1, (draws + 7) // 8, (units + 7) // 8 * 8
    total = 2 * r + c
    array(mean_, (members, batch, width))
    array(std_, (members, batch, width))
    array(noise_, (members, (draws + 7) // 8, width, 8))
    array(hyper_, (members, width + 1, (units + 7) // 8 * 8))
    array(heads_, (members, units + 1, 2 * (width + 1) + c))
    array(basis_, (members, width + 1, c))
    out_mean = array(out_mean_, (members, draws, batch, c))
    out_std = array(out_std_, (members, draws, batch, c))
    fan = F(1 / (width + 1) if fan_in else 1)
    zero, one, high, least, most = (
        splat(F(0)),
        splat(F(1)),
        splat(F(limit)),
        splat(F(-bound)),
        splat(F(bound)),
    )
    active, kept = np.zeros(r + 4, np.int64), np.zeros(columns, np.int64)  # numbers of units that are not 0
    h, g = np.zeros((r + 4, 16), np.float32), np.zeros((columns, 16), np.float32)
    moments = np.zeros((2, 16), np.float32)
    h_, g_, moments_ = address_of(h), address_of(g), address_of(moments)
    groups = batch * halves
    for m in range(members):
        centres_, deviations_ = mean_ + 4 * m * batch * width, std_ + 4 * m * batch * width
        draws_, weights_ = noise_ + 32 * m * halves * width, hyper_ + 4 * m * r * columns
        maps_, v_ = heads_ + 4 * m * (units + 1) * total, basis_ + 4 * m * r * c
        bias_ = maps_ + 4 * units * total
        for first in range(0, groups, 2):
            second = min(first + 1, groups - 1)
            b0, d0, b1, d1 = first // halves, first % halves, second // halves, second % halves
            count = 0
            for i in range(width):
                value = splat_halves(centres_, b0 * width + i, b1 * width + i) + splat_halves(
                    deviations_, b0 * width + i, b1 * width + i
                ) * load_halves(draws_, (d0 * width + i) * 8, (d1 * width + i) * 8)
                value = minimum(high, maximum(zero, value))  # in this order NaN stays NaN
                store(h_, 16 * count, value)
                active[count] = i
                count += 1 if differ(value, zero) != 0 else 0
            store(h_, 16 * count, one)
            active[count] = width
            count += 1
            rounded = (count + 3) // 4 * 4
            for n in range(count, rounded):
                store(h_, 16 * n, zero)
                active[n] = width
            some = 0
            for j in range(0, columns, 8):
                a0, a1, a2, a3, a4, a5, a6, a7 = zero, zero, zero, zero, zero, zero, zero, zero
                for n in range(count):
                    x, w_ = load(h_, 16 * n), weights_ + 4 * (active[n] * columns + j)
                    a0, a1 = x * splat_at(w_, 0) + a0, x * splat_at(w_, 1) + a1
                    a2, a3 = x * splat_at(w_, 2) + a2, x * splat_at(w_, 3) + a3
                    a4, a5 = x * splat_at(w_, 4) + a4, x * splat_at(w_, 5) + a5
                    a6, a7 = x * splat_at(w_, 6) + a6, x * splat_at(w_, 7) + a7
                for k in range(8):
                    value = a0
                    a0, a1, a2, a3, a4, a5, a6 = a1, a2, a3, a4, a5, a6, a7
                    value = maximum(zero, value)
                    store(g_, 16 * some, value)
                    kept[some] = j + k
                    some += 1 if differ(value, zero) != 0 else 0
            square = zero
            for n in range(0, rounded, 4):
                i0, i1, i2, i3 = active[n], active[n + 1], active[n + 2], active[n + 3]
                s0, s1, s2, s3 = (
                    splat_at(bias_, i0),
                    splat_at(bias_, i1),
                    splat_at(bias_, i2),
                    splat_at(bias_, i3),
                )
                logs_ = bias_ + 4 * r
                l0, l1, l2, l3 = (
                    splat_at(logs_, i0),
                    splat_at(logs_, i1),
                    splat_at(logs_, i2),
                    splat_at(logs_, i3),
                )
                for k in range(some):
                    x, w_ = load(g_, 16 * k), maps_ + 4 * kept[k] * total
                    s0, s1 = x * splat_at(w_, i0) + s0, x * splat_at(w_, i1) + s1
                    s2, s3 = x * splat_at(w_, i2) + s2, x * splat_at(w_, i3) + s3
                    l0, l1 = x * splat_at(w_, r + i0) + l0, x * splat_at(w_, r + i1) + l1
                    l2, l3 = x * splat_at(w_, r + i2) + l2, x * splat_at(w_, r + i3) + l3
                for k in range(4):
                    value = load(h_, 16 * (n + k))
                    variance = lanes_exp(minimum(most, maximum(least, l0)))
                    square = value * value * variance + square
                    store(h_, 16 * (n + k), value * s0)
                    s0, s1, s2, l0, l1, l2 = s1, s2, s3, l1, l2, l3
            square = square * splat(fan)
            for j in range(c):
                product = zero
                for n in range(count):
                    product = load(h_, 16 * n) * splat_at(v_, active[n] * c + j) + product
                log_col = splat_at(bias_, 2 * r + j)
                for k in range(some):
                    log_col = load(g_, 16 * k) * splat_at(maps_, kept[k] * total + 2 * r + j) + log_col
                store(moments_, 0, product)
                store(moments_, 16, square * lanes_exp(minimum(most, maximum(least, log_col))))
                for k in range(min(8, draws - 8 * d0)):
                    out_mean[m, 8 * d0 + k, b0, j] = moments[0, k]
                    out_std[m, 8 * d0 + k, b0, j] = math.sqrt(moments[1, k])
                for k in range(min(8, draws - 8 * d1)):
                    out_mean[m, 8 * d1 + k, b1, j] = moments[0, 8 + k]
                    out_std[m, 8 * d1 + k, b1, j] = math.sqrt(moments[1, 8 + k])
