"""Draws through the last compound layer: hidden units are sampled and their layer's moments computed at once.

    h = clipped_relu(m + s ε),    g = relu(h~ A),    (scale, lr, lc) = g~ B        for each row and draw ε
    mean = V^T (scale * h~),      std = sqrt( (sum_i h~_i² exp(lr_i)) exp(lc) )

`reference` is the definition. The loop holds one row and one draw at a time in the processor's cache; torch
would write hidden units and heads of all rows and draws to memory. For prediction: there is no gradient.
"""

import math

import numpy as np
import torch
from torch import Tensor

from compound.ops.affine import append_ones
from compound.ops.clamp import LIMIT, clipped_relu
from compound.ops.compound_moments import MomentOptions
from compound.ops.compound_moments import reference as moments_reference
from compound.ops.jit import F, array, can_use_kernel, exp, launch, loop
from compound.ops.lanes import (
    add_lanes,
    address_of,
    lanes_exp,
    load,
    maximum,
    minimum,
    splat,
    store,
)
from compound.ops.sparse_rows import add_rows, find_nonzero, pad, round_up


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
    columns, hidden = round_up(r), round_up(hyper.shape[-1] + 1)
    one = hyper.new_zeros((members, r, 1))  # a last hidden unit of the hypernetwork gives the 1 of g~
    one[:, -1] = 1
    scale, log_row, log_col = heads.split([r, r, c], -1)
    out_mean, out_std = mean.new_empty((2, members, draws, rows, c)).unbind()
    arrays = (
        _with_one(mean, columns),
        pad(std, rows, columns),
        pad(noise, draws, columns),
        pad(torch.cat([hyper, one], -1), columns, hidden),
        pad(torch.cat([pad(scale, scale.shape[1], columns), log_row, log_col], -1), hidden, _total(r, c)),
        pad(basis.mT, c, columns),
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


def _total(r: int, c: int) -> int:
    """Columns of the heads: scale, padded; then lr and lc, so that lc takes the place of padding."""
    return round_up(r) + round_up(r + c)


def _with_one(mean: Tensor, columns: int) -> Tensor:
    """Means of hidden units (members, rows, width) with the 1 of h~, padded by zeros."""
    out = mean.new_zeros((*mean.shape[:2], columns))
    out[..., : mean.shape[-1]] = mean
    out[..., mean.shape[-1]] = 1
    return out


@loop({"contract"}, "out_mean out_std")
def draws_loop(
    mean_: int, std_: int, noise_: int, hyper_: int, heads_: int, basis_: int, out_mean_: int, out_std_: int,
    members: int, batch: int, draws: int, width: int, units: int, c: int,
    limit: float, bound: float, fan_in: bool,
) -> None:  # fmt: skip
    """`reference`, for arrays that are padded with zeros; a row's numbers do not depend on other rows."""
    columns = (width + 32) // 32 * 32  # of h~
    hidden = (units + 32) // 32 * 32  # of g~
    total = (width + 32) // 32 * 32 + (width + c + 32) // 32 * 32  # of the heads
    array(mean_, (members, batch, columns))
    array(std_, (members, batch, columns))
    array(noise_, (members, draws, columns))
    array(hyper_, (members, columns, hidden))
    array(heads_, (members, hidden, total))
    array(basis_, (members, c, columns))
    out_mean = array(out_mean_, (members, draws, batch, c))
    out_std = array(out_std_, (members, draws, batch, c))
    fan = F(width + 1 if fan_in else 1)
    zero, high, least, most = splat(F(0)), splat(F(limit)), splat(F(-bound)), splat(F(bound))
    active, kept = np.zeros((columns + 63) // 64, np.int64), np.zeros((hidden + 63) // 64, np.int64)
    h, g = np.zeros(64 * len(active), np.float32), np.zeros(64 * len(kept), np.float32)
    e = np.zeros(total, np.float32)
    h_, g_, e_ = address_of(h), address_of(g), address_of(e)
    for m in range(members):
        weights_, maps_ = hyper_ + 4 * m * columns * hidden, heads_ + 4 * m * hidden * total
        for b in range(batch):
            centre_, deviation_ = (
                mean_ + 4 * (m * batch + b) * columns,
                std_ + 4 * (m * batch + b) * columns,
            )
            for s in range(draws):
                draw_ = noise_ + 4 * (m * draws + s) * columns
                for i in range(0, columns, 16):
                    value = load(deviation_, i) * load(draw_, i) + load(centre_, i)
                    store(h_, i, minimum(high, maximum(zero, value)))
                find_nonzero(h_, active, False)
                add_rows(g_, h_, active, weights_, hidden, hidden)
                find_nonzero(g_, kept, True)
                add_rows(e_, g_, kept, maps_, total, total)
                square = zero
                for i in range(0, columns, 16):
                    value = load(h_, i)
                    variance = lanes_exp(minimum(most, maximum(least, load(e_, columns + i))))
                    square = value * value * variance + square
                    store(h_, i, load(e_, i) * value)
                variance = add_lanes(square) / fan
                for j in range(c):
                    product, v_ = zero, basis_ + 4 * (m * c + j) * columns
                    for i in range(0, columns, 16):
                        product = load(h_, i) * load(v_, i) + product
                    out_mean[m, s, b, j] = add_lanes(product)
                    log_col = min(max(e[columns + width + 1 + j], F(-bound)), F(bound))
                    out_std[m, s, b, j] = math.sqrt(variance * exp(log_col))
