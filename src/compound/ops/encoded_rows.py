"""The first compound layer of a table for rows before their piecewise-linear encoding: bins by one look-up.

A column of x lies in one bin t of its T; bins below it are 1/2, bins above it -1/2. With the rows w_i of a
matrix for its bins, and z = clamp((x - e_t) / (e_{t+1} - e_t), 0, 1) - 1/2 in bin t,

    sum_i h_i w_i = P_t + z w_t,    P_t = (sum_{i < t} w_i - sum_{i > t} w_i) / 2,    |h|² = (T - 1) / 4 + z²

so that a column costs two rows of a matrix, however many bins it has: for the hypernetwork and for the mean,
whose inputs share one scale per group, see `grouped_moments`. The sums P are tabulated once per network.
Columns that are zero, such as indicators, cost nothing. `reference` is the definition. For prediction: there
is no gradient.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from compound.ops import grouped_moments
from compound.ops.affine import append_ones
from compound.ops.compound_moments import MomentOptions
from compound.ops.jit import F, array, can_use_kernel, kernel, launch, loop
from compound.ops.lanes import (
    add_lanes,
    address_of,
    below,
    lanes_exp,
    load,
    lowest_bit,
    maximum,
    minimum,
    splat,
    splat_at,
    store,
)
from compound.ops.sparse_rows import MASK, add_rows, find_nonzero, pad, round_up

LANES = 16


class Bins(NamedTuple):
    """What the encoding of a table knows of its columns; see `compound.nn.PiecewiseLinearEncoding`."""

    kept: Tensor  # (kept,) int64, inputs that are encoded by themselves, softly clipped
    column: Tensor  # (bins,) int64, the input of each bin; bins of an input follow each other
    left: Tensor  # (bins,) its lower edge
    slope: Tensor  # (bins,) one over its width
    counts: Tensor  # (groups,) outputs of each group that shares a scale: of kept inputs, then of bins
    clip: float  # kept inputs are x / sqrt(1 + (x / clip)²)


class Tables(NamedTuple):
    """A first layer as the loop reads it: constants of its columns, and rows of its matrices with their sums.

    Rows stand for kept inputs, the constant, the bins, and the sums P of the bins.
    """

    kept: Tensor  # (2, kept) input and group of each kept input
    binned: (
        Tensor  # (5, columns) input, group, first bin, number of bins and first edge of each binned column
    )
    edges: Tensor  # (edges,) lower edges of the bins of each column, then infinities to a multiple of 16
    slope: Tensor  # (bins,)
    squares: Tensor  # (members, groups, padded) of the members' factors on inputs
    hyper: Tensor  # (members, rows, columns)
    heads: Tensor  # (members, hidden, total)
    basis: Tensor  # (members, rows, outputs)
    sizes: tuple[int, ...]
    clip: float


def prepare(bins: Bins, scales: Tensor | None, hyper: Tensor, heads: Tensor, basis: Tensor) -> Tables:
    """Tables of a layer whose inputs are the encoded columns, times scales (members, 1, encoded) or 1.

    Shapes: weights of the hypernetwork (members, r, H) and (members, H + 1, 2 g + c), basis (members, r, c);
    r is the number of encoded columns plus 1, g that of groups plus 1.
    """
    members, r, c = basis.shape
    kept, count, groups = len(bins.kept), len(bins.column), len(bins.counts) + 1
    of_output = torch.arange(groups - 1).repeat_interleave(bins.counts.long())
    columns, sizes = torch.unique_consecutive(bins.column, return_counts=True)
    first = sizes.cumsum(0) - sizes
    padded = (sizes + LANES - 1) // LANES * LANES
    edges = torch.full((int(padded.sum()),), math.inf, dtype=torch.float32)
    begin = padded.cumsum(0) - padded
    for start, size, at in zip(first.tolist(), sizes.tolist(), begin.tolist(), strict=True):
        edges[at : at + size] = bins.left[start : start + size]
    factors = basis.new_ones(members, r, 1)
    if scales is not None:
        factors[:, :-1] = scales.mT
    first_of_groups = torch.cat([bins.counts.new_zeros(1), bins.counts.cumsum(0)]).long()
    squares = factors[:, first_of_groups, 0].square()  # (members, groups)
    binned = torch.stack([columns, of_output[kept:][first], first, sizes, begin]).float()
    total = round_up(2 * groups + c)
    one = hyper.new_zeros((members, r, 1))  # a last hidden unit of the hypernetwork gives the 1 of g~
    one[:, -1] = 1
    maps = [_with_sums(factors * matrix, kept, sizes) for matrix in (hyper, basis)]
    with_one = torch.cat([maps[0], _with_sums(one, kept, sizes)], -1)
    hidden = round_up(hyper.shape[-1] + 1)
    return Tables(
        torch.stack([bins.kept, of_output[:kept]]).float(),
        binned.contiguous(),
        edges,
        bins.slope.contiguous(),
        pad(squares.unsqueeze(1), 1, round_up(groups)).squeeze(1).contiguous(),
        pad(with_one, with_one.shape[1], hidden),
        pad(heads, hidden, total),
        pad(maps[1], with_one.shape[1], round_up(c)),
        (kept, len(columns), count, len(edges), groups, hyper.shape[-1], c),
        bins.clip,
    )


def _with_sums(matrix: Tensor, kept: int, sizes: Tensor) -> Tensor:  # (members, kept + 1 + 2 bins, columns)
    """Rows of a matrix (members, r, columns) in the order of `Tables`."""
    of_kept, of_bins, constant = matrix.split([kept, matrix.shape[1] - kept - 1, 1], 1)
    parts = []
    for part in of_bins.double().split(sizes.tolist(), 1):
        through = part.cumsum(1)
        parts.append(0.5 * ((through - part) - (through[:, -1:] - through)))
    return torch.cat([of_kept, constant, of_bins, *(part.to(matrix.dtype) for part in parts)], 1)


def encoded_rows(
    x: Tensor, tables: Tables, r: int, options: MomentOptions
) -> tuple[Tensor, Tensor]:  # (members, rows, c)
    """Means and standard deviations of the pre-activations of rows x (rows, inputs), without gradients."""
    members, c = len(tables.basis), tables.sizes[-1]
    mean, std = x.new_empty((2, members, len(x), c)).unbind()
    arrays = x.contiguous(), *tables[:8], mean, std
    launch(encoded_loop, arrays, members, *x.shape, *tables.sizes, r, tables.clip, *options[:2])
    return mean, std


def can_encode(x: Tensor, hyper: Tensor, heads: Tensor, basis: Tensor) -> bool:
    """Whether `encoded_rows` takes these."""
    return can_use_kernel(x, hyper, heads, basis) and not torch.is_grad_enabled()


def reference(
    encoded: Tensor, hyper: Tensor, heads: Tensor, basis: Tensor, counts: Tensor, options: MomentOptions
) -> tuple[Tensor, Tensor]:
    """The definition of `encoded_rows`, for encoded rows (members, rows, r - 1) and groups (g,)."""
    h = append_ones(encoded)
    g = append_ones(torch.relu(h @ hyper))
    out = grouped_moments.reference(h, g @ heads, basis, counts, options._replace(kl=False))
    return out.mean, out.std


@loop({"contract"}, "mean std")
def encoded_loop(
    x_: int, kept_: int, binned_: int, edges_: int, slope_: int, squares_: int, hyper_: int, heads_: int,
    basis_: int, mean_: int, std_: int,
    members: int, batch: int, inputs: int, kept: int, columns: int, bins: int, edge_count: int, groups: int,
    units: int, c: int, r: int, clip: float, bound: float, fan_in: bool,
) -> None:  # fmt: skip
    """`reference` after the encoding; a row's numbers do not depend on other rows."""
    hidden, outputs = (units + 32) // 32 * 32, (c + 31) // 32 * 32
    total, padded = (2 * groups + c + 31) // 32 * 32, (groups + 31) // 32 * 32
    rows = kept + 1 + 2 * bins
    x = array(x_, (batch, inputs))
    of_kept = array(kept_, (2, kept))
    binned = array(binned_, (5, columns))
    array(edges_, (edge_count,))
    slope = array(slope_, (bins,))
    array(squares_, (members, (groups + 31) // 32 * 32))
    array(hyper_, (members, kept + 1 + 2 * bins, (units + 32) // 32 * 32))
    array(heads_, (members, (units + 32) // 32 * 32, (2 * groups + c + 31) // 32 * 32))
    array(basis_, (members, kept + 1 + 2 * bins, (c + 31) // 32 * 32))
    mean = array(mean_, (members, batch, c))
    std = array(std_, (members, batch, c))
    for i in range(kept):
        if not (0 <= of_kept[0, i] < inputs and 0 <= of_kept[1, i] < groups):
            raise ValueError("a kept input is not one of the row")
    for k in range(columns):
        start, size, at = binned[2, k], binned[3, k], binned[4, k]
        if not (0 <= binned[0, k] < inputs and 0 <= binned[1, k] < groups and start >= 0 and size >= 1):
            raise ValueError("a column with bins is not one of the row")
        if not (start + size <= bins and at >= 0 and at + (size + 15) // 16 * 16 <= edge_count):
            raise ValueError("a bin of a column does not exist")
    fan = F(r if fan_in else 1)
    zero, least, most = splat(F(0)), splat(F(-bound)), splat(F(bound))
    limit = kept + 1 + 2 * columns
    index, group = np.zeros(limit, np.int64), np.zeros(limit, np.int64)  # of a row: rows of the matrices
    values, scaled = np.zeros(limit, np.float32), np.zeros(limit, np.float32)
    square = np.zeros(padded, np.float32)  # |h|² of each group
    masks = np.zeros((hidden + MASK - 1) // MASK, np.int64)
    g, e = np.zeros(MASK * len(masks), np.float32), np.zeros(total + 32, np.float32)
    out = np.zeros(outputs, np.float32)
    g_, e_, out_ = address_of(g), address_of(e), address_of(out)
    values_, scaled_, square_ = address_of(values), address_of(scaled), address_of(square)
    for b in range(batch):
        count = 0
        square[:] = F(0)
        for i in range(kept):
            value = x[b, int(of_kept[0, i])]
            if value != F(0):
                ratio = value * F(1 / clip)
                value /= math.sqrt(F(1) + ratio * ratio)
                k = int(of_kept[1, i])
                index[count], group[count], values[count] = i, k, value
                square[k] += value * value
                count += 1
        index[count], group[count], values[count] = kept, groups - 1, F(1)
        square[groups - 1] += F(1)
        count += 1
        for k in range(columns):
            value, size, start = x[b, int(binned[0, k])], int(binned[3, k]), int(binned[2, k])
            at, above, own = int(binned[4, k]), 0, splat(value)
            for j in range(0, size, 16):  # the number of edges that are not above it
                bits = below(own, load(edges_, at + j))
                above += 16 if bits == 0 else lowest_bit(bits)
                if bits != 0:
                    break
            t = max(0, min(above, size) - 1)
            z = (value - array(edges_ + 4 * (at + t), (1,))[0]) * slope[start + t]
            z = F(0) if z < F(0) else z
            z = (F(1) if z > F(1) else z) - F(0.5)
            own_group = int(binned[1, k])
            square[own_group] += F(0.25) * F(size - 1) + z * z
            index[count], group[count], values[count] = kept + 1 + start + t, own_group, z
            index[count + 1], group[count + 1], values[count + 1] = (
                kept + 1 + bins + start + t,
                own_group,
                F(1),
            )
            count += 2
        for m in range(members):
            maps_ = heads_ + 4 * m * hidden * total
            add_entries(g_, values_, index, count, hyper_ + 4 * m * rows * hidden, hidden)
            find_nonzero(g_, masks, True)
            add_rows(e_, g_, masks, maps_, total, total)
            sums = zero
            for k in range(0, groups, 16):
                variance = lanes_exp(minimum(most, maximum(least, load(e_, groups + k))))
                sums = load(square_, k) * load(squares_, m * padded + k) * variance + sums
            deviation = splat(F(math.sqrt(add_lanes(sums) / fan)))
            for n in range(count):
                scaled[n] = values[n] * e[group[n]]
            add_entries(out_, scaled_, index, count, basis_ + 4 * m * rows * outputs, outputs)
            for j in range(c):
                mean[m, b, j] = out[j]
            for j in range(0, c, 16):
                log_col = minimum(most, maximum(least, load(e_, 2 * groups + j)))
                store(out_, j, lanes_exp(splat(F(0.5)) * log_col) * deviation)
            for j in range(c):
                std[m, b, j] = out[j]


@kernel({"contract"})
def add_entries(out_: int, values_: int, index: Any, count: int, weights_: int, columns: int) -> None:
    """out = Σ_n values[n] W[index[n]] for a matrix of so many columns, a multiple of 32."""
    j = 0
    while j + 64 <= columns:
        zero = splat(F(0))
        a0, a1, a2, a3, b0, b1, b2, b3 = zero, zero, zero, zero, zero, zero, zero, zero
        for n in range(0, count - 1, 2):
            x, row_ = splat_at(values_, n), weights_ + 4 * (index[n] * columns + j)
            a0, a1 = x * load(row_, 0) + a0, x * load(row_, 16) + a1
            a2, a3 = x * load(row_, 32) + a2, x * load(row_, 48) + a3
            x, row_ = splat_at(values_, n + 1), weights_ + 4 * (index[n + 1] * columns + j)
            b0, b1 = x * load(row_, 0) + b0, x * load(row_, 16) + b1
            b2, b3 = x * load(row_, 32) + b2, x * load(row_, 48) + b3
        if count % 2 == 1:
            x, row_ = splat_at(values_, count - 1), weights_ + 4 * (index[count - 1] * columns + j)
            a0, a1 = x * load(row_, 0) + a0, x * load(row_, 16) + a1
            a2, a3 = x * load(row_, 32) + a2, x * load(row_, 48) + a3
        store(out_, j, a0 + b0)
        store(out_, j + 16, a1 + b1)
        store(out_, j + 32, a2 + b2)
        store(out_, j + 48, a3 + b3)
        j += 64
    while j < columns:
        zero = splat(F(0))
        a0, a1, b0, b1 = zero, zero, zero, zero
        for n in range(0, count - 1, 2):
            x, row_ = splat_at(values_, n), weights_ + 4 * (index[n] * columns + j)
            a0, a1 = x * load(row_, 0) + a0, x * load(row_, 16) + a1
            x, row_ = splat_at(values_, n + 1), weights_ + 4 * (index[n + 1] * columns + j)
            b0, b1 = x * load(row_, 0) + b0, x * load(row_, 16) + b1
        if count % 2 == 1:
            x, row_ = splat_at(values_, count - 1), weights_ + 4 * (index[count - 1] * columns + j)
            a0, a1 = x * load(row_, 0) + a0, x * load(row_, 16) + a1
        store(out_, j, a0 + b0)
        store(out_, j + 16, a1 + b1)
        j += 32
