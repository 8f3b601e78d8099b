"""The compound layer of given weights for rows of inputs: hypernetwork, heads and moments at once.

    g = relu(h~ A),    (scale, lr, lc) = g~ B,    h~ = [x; 1]
    mean = V^T (scale * h~),    std = sqrt( (sum_i h~_i² exp(lr_i)) exp(lc) )

`reference` is the definition. The loop holds one row at a time in the processor's cache, and leaves out what
is zero: indicator columns, and units of the hypernetwork. For prediction: there is no gradient.
"""

import math

import numpy as np
import torch
from torch import Tensor

from compound.ops.affine import append_ones
from compound.ops.compound_moments import MomentOptions
from compound.ops.compound_moments import reference as moments_reference
from compound.ops.jit import F, array, can_use_kernel, launch, loop
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
from compound.ops.sparse_rows import MASK, add_rows, find_nonzero, pad, round_up


def compound_rows(
    x: Tensor, hyper: Tensor, heads: Tensor, basis: Tensor, options: MomentOptions
) -> tuple[Tensor, Tensor]:  # (members, rows, c) each
    """Means and standard deviations of a layer's pre-activations; without gradients.

    Shapes: inputs x (members, rows, width), weights of the hypernetwork with one hidden layer (members, width
    + 1, H) and (members, H + 1, 2 r + c), basis V (members, r = width + 1, c).
    """
    if not can_use_kernel(x, hyper, heads, basis) or torch.is_grad_enabled():
        return reference(x, hyper, heads, basis, options)
    members, rows, width = x.shape
    r, c = basis.shape[1:]
    columns, hidden, outputs = round_up(r, MASK), round_up(hyper.shape[-1] + 1), round_up(c)
    one = hyper.new_zeros((members, r, 1))  # a last hidden unit of the hypernetwork gives the 1 of g~
    one[:, -1] = 1
    parts = zip(heads.split([r, r, c], -1), (columns, columns, outputs), strict=True)
    inputs = x.new_zeros(members, rows, columns)
    inputs[..., :width] = x
    inputs[..., width] = 1
    mean, std = x.new_empty((2, members, rows, outputs)).unbind()
    arrays = (
        inputs,
        pad(torch.cat([hyper, one], -1), columns, hidden),
        torch.cat([pad(part, hidden, size) for part, size in parts], -1),
        pad(basis, columns, outputs),
        mean,
        std,
    )
    launch(rows_loop, arrays, members, rows, width, hyper.shape[-1], c, *options[:2])
    return mean[..., :c].contiguous(), std[..., :c].contiguous()


def reference(
    x: Tensor, hyper: Tensor, heads: Tensor, basis: Tensor, options: MomentOptions
) -> tuple[Tensor, Tensor]:
    """The definition of `compound_rows`, for any dtype and device."""
    h = append_ones(x)
    g = append_ones(torch.relu(h @ hyper))
    out = moments_reference(h, g @ heads, basis, options._replace(kl=False))
    return out.mean, out.std


@loop({"contract"}, "mean std")
def rows_loop(
    x_: int, hyper_: int, heads_: int, basis_: int, mean_: int, std_: int,
    members: int, batch: int, width: int, units: int, c: int, bound: float, fan_in: bool,
) -> None:  # fmt: skip
    """`reference`, for arrays that are padded with zeros; a row's numbers do not depend on other rows."""
    columns = (width + 64) // 64 * 64  # of h~
    hidden = (units + 32) // 32 * 32  # of g~
    outputs = (c + 31) // 32 * 32
    total = (width + 64) // 64 * 128 + (c + 31) // 32 * 32  # of the heads
    array(x_, (members, batch, columns))
    array(hyper_, (members, columns, hidden))
    array(heads_, (members, hidden, total))
    array(basis_, (members, columns, outputs))
    array(mean_, (members, batch, outputs))
    array(std_, (members, batch, outputs))
    fan = F(width + 1 if fan_in else 1)
    zero, least, most = splat(F(0)), splat(F(-bound)), splat(F(bound))
    active, kept = np.zeros(columns // 64, np.int64), np.zeros((hidden + 63) // 64, np.int64)
    g, e, h = np.zeros(64 * len(kept), np.float32), np.zeros(total, np.float32), np.zeros(columns, np.float32)
    g_, e_, h_ = address_of(g), address_of(e), address_of(h)
    for m in range(members):
        weights_, maps_ = hyper_ + 4 * m * columns * hidden, heads_ + 4 * m * hidden * total
        v_ = basis_ + 4 * m * columns * outputs
        for b in range(batch):
            row_, start = x_ + 4 * (m * batch + b) * columns, (m * batch + b) * outputs
            find_nonzero(row_, active, False)
            add_rows(g_, row_, active, weights_, hidden, hidden)
            find_nonzero(g_, kept, True)
            for n in range(columns // 64):
                if active[n] != 0:  # heads of inputs that are all zero are not needed
                    for i in (64 * n, columns + 64 * n):
                        add_rows(e_ + 4 * i, g_, kept, maps_ + 4 * i, 64, total)
            add_rows(e_ + 8 * columns, g_, kept, maps_ + 8 * columns, outputs, total)
            square = zero
            for n in range(columns // 64):
                if active[n] != 0:
                    for i in range(64 * n, 64 * n + 64, 16):
                        value = load(row_, i)
                        variance = lanes_exp(minimum(most, maximum(least, load(e_, columns + i))))
                        square = value * value * variance + square
                        store(h_, i, load(e_, i) * value)
            variance = add_lanes(square) / fan
            add_rows(mean_ + 4 * start, h_, active, v_, outputs, outputs)
            for j in range(0, outputs, 16):
                log_col = minimum(most, maximum(least, load(e_, 2 * columns + j)))
                store(std_, start + j, lanes_exp(splat(F(0.5)) * log_col) * splat(F(math.sqrt(variance))))
