"""Draws through the last compound layer: hidden units are sampled and their layer's moments computed at once.

    h = clipped_relu(m + s ε),    g = relu(h~ A),    (scale, lr, lc) = g~ B        for each row and draw ε
    mean = V^T (scale * h~),      std = sqrt( (sum_i h~_i² exp(lr_i)) exp(lc) )

`reference` is the definition. The loop holds one row and one draw at a time in the processor's cache; torch
would write hidden units and heads of all rows and draws to memory. For prediction: there is no gradient.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from compound.ops.affine import append_ones
from compound.ops.clamp import LIMIT, clipped_relu
from compound.ops.compound_moments import MomentOptions
from compound.ops.compound_moments import reference as moments_reference
from compound.ops.jit import FASTMATH, F, array, can_use_kernel, exp, kernel, launch, loop

LANES = 16  # columns of padded weights are a multiple of it: no loop has a remainder


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
    columns, hidden, outputs = (_round_up(n) for n in (r, hyper.shape[-1] + 1, c))
    one = hyper.new_zeros((members, r, 1))  # a last hidden unit of the hypernetwork gives the 1 of g~
    one[:, -1] = 1
    parts = zip(heads.split([r, r, c], -1), (columns, columns, outputs), strict=True)
    out_mean, out_std = mean.new_empty((2, members, draws, rows, c)).unbind()
    arrays = (
        mean.contiguous(),
        std.contiguous(),
        noise.contiguous(),
        _pad(torch.cat([hyper, one], -1), columns, hidden),
        torch.cat([_pad(part, hidden, width) for part, width in parts], -1),
        _pad(basis.mT, c, columns),
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


def _round_up(count: int) -> int:
    return -(-count // LANES) * LANES


def _pad(weights: Tensor, rows: int, columns: int) -> Tensor:
    """Matrices (members, ...) with zeros appended to (members, rows, columns)."""
    return functional.pad(weights, (0, columns - weights.shape[-1], 0, rows - weights.shape[-2]))


@loop(FASTMATH, "out_mean out_std")
def draws_loop(
    mean_: int, std_: int, noise_: int, hyper_: int, heads_: int, basis_: int, out_mean_: int, out_std_: int,
    members: int, batch: int, draws: int, width: int, units: int, c: int,
    limit: float, bound: float, fan_in: bool,
) -> None:  # fmt: skip
    """`reference`, for weights that are padded with zeros; a row's numbers do not depend on other rows."""
    columns = (width + 16) // 16 * 16  # of h~, of g~, and of the heads: rounded up to LANES
    hidden = (units + 16) // 16 * 16
    total = (width + 16) // 16 * 32 + (c + 15) // 16 * 16
    mean = array(mean_, (members, batch, width))
    std = array(std_, (members, batch, width))
    noise = array(noise_, (members, draws, width))
    hyper = array(hyper_, (members, columns, hidden))
    heads = array(heads_, (members, hidden, total))
    basis = array(basis_, (members, c, columns))
    out_mean = array(out_mean_, (members, draws, batch, c))
    out_std = array(out_std_, (members, draws, batch, c))
    high, clamp, fan = F(limit), F(bound), F(width + 1 if fan_in else 1)
    h, g = np.zeros(columns, np.float32), np.zeros(hidden, np.float32)
    e = np.zeros(total, np.float32)  # scale, lr and lc; then scale * h~ in place of scale
    kept, values = np.zeros(columns + hidden + 3, np.int64), np.zeros(columns + hidden + 3, np.float32)
    h[width] = F(1)
    for m in range(members):
        for b in range(batch):
            centre, deviation = mean[m, b], std[m, b]
            for s in range(draws):
                draw = noise[m, s]
                for i in range(width):
                    h[i] = min(max(centre[i] + deviation[i] * draw[i], F(0)), high)
                g[:] = F(0)
                add_products(g, h, hyper[m], width + 1, kept, values)
                for k in range(hidden):
                    g[k] = max(g[k], F(0))
                e[:] = F(0)
                add_products(e, g, heads[m], hidden, kept, values)
                q, row = F(0), e[columns : 2 * columns]
                for i in range(columns):
                    q += h[i] * h[i] * exp(min(max(row[i], -clamp), clamp))
                    e[i] *= h[i]
                for j in range(c):
                    product, v = F(0), basis[m, j]
                    for i in range(columns):
                        product += e[i] * v[i]
                    out_mean[m, s, b, j] = product
                    variance = exp(min(max(e[2 * columns + j], -clamp), clamp))
                    out_std[m, s, b, j] = math.sqrt(q / fan * variance)


@kernel(FASTMATH)
def add_products(out: Any, x: Any, weights: Any, count: int, kept: Any, values: Any) -> None:
    """out += x[:count] weights[:count], four rows of the weights at a time, those with x = 0 left out.

    `kept` and `values` are memory for count + 3 numbers.
    """
    n = 0
    for i in range(count):
        kept[n], values[n] = i, x[i]
        n += 1 if x[i] != F(0) else 0
    for i in range(n, n + 3):
        kept[i], values[i] = 0, F(0)
    for i in range(0, n, 4):
        x0, x1, x2, x3 = values[i], values[i + 1], values[i + 2], values[i + 3]
        w0, w1, w2, w3 = weights[kept[i]], weights[kept[i + 1]], weights[kept[i + 2]], weights[kept[i + 3]]
        for j in range(len(out)):
            out[j] += (x0 * w0[j] + x1 * w1[j]) + (x2 * w2[j] + x3 * w3[j])
