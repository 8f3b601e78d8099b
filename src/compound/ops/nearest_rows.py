"""Distances from the nearest rows of a sample, found without measuring all of them.

    d_k(x) = the k-th smallest |x - x_i|,    |x - x_i| >= |A'(x - x_i)|

A holds the first AXES principal axes of the sample. With these bounds few rows are left whose distance must
be computed from all features. Rows whose coordinates are alike lie in one leaf of 16: leaves whose boxes are
too far away are skipped, and so is the rest of a leaf as soon as all its rows are too far.

`reference` is the definition. The search is exact: bounds have a margin for their rounding, and the distances
themselves are computed from differences. So they do not depend on how the search was ordered.
"""

import math
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from compound.ops.jit import F, array, can_use_kernel, kernel, launch, loop
from compound.ops.lanes import (
    LANES,
    add_lanes,
    address_of,
    below,
    load,
    lowest_bit,
    maximum,
    minimum,
    splat,
    splat_at,
    store,
)
from compound.ops.padding import with_copies, without_copies

AXES = 32
BOXED = 16  # coordinates that a box bounds
FAR = 1e17  # coordinate of padding
SLACK = (1.001, 2e-8)  # of bounds: factor, and part of (|x| + largest |x_i|)² that rounding may change


class RowIndex(NamedTuple):
    """A sample in the order of its leaves."""

    centre: Tensor  # (features,)
    axes: Tensor  # (features, AXES); zeros beyond the number of features
    radius: float  # largest distance of a row of the sample from the centre
    size: int  # rows of the sample
    boxes: Tensor  # (leaves, 2, BOXED) smallest and largest coordinates
    leaves: Tensor  # (leaves, AXES, 16) coordinates of 16 rows
    rows: Tensor  # (16 leaves, features rounded up to 32) the rows themselves, padded with zeros

    @classmethod
    def build(cls, sample: Tensor) -> Self:
        """The index of rows (rows, features)."""
        count, features = sample.shape
        centre = sample.double().mean(0).to(sample.dtype)
        centred = (sample - centre).double()
        vectors = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :AXES]
        axes = sample.new_zeros(features, AXES)
        axes[:, : vectors.shape[1]] = vectors.to(sample.dtype)
        coordinates = project(sample, centre, axes).numpy()
        leaves = -(-count // LANES)
        order = np.full(LANES * leaves, count)
        order[:count] = _leaf_order(coordinates)
        padded = np.concatenate([coordinates, np.full((1, AXES), FAR, np.float32)])[order]
        tiles = padded.reshape(leaves, LANES, AXES)
        boxes = np.stack([tiles[..., :BOXED].min(1), tiles[..., :BOXED].max(1)], 1)  # (leaves, 2, BOXED)
        rows = sample.new_zeros(count + 1, _round_up(features))
        rows[:count, :features] = sample
        return cls(
            centre,
            axes,
            float(centred.square().sum(1).max().sqrt()),
            count,
            torch.from_numpy(np.ascontiguousarray(boxes)),
            torch.from_numpy(np.ascontiguousarray(tiles.transpose(0, 2, 1))),
            rows[torch.from_numpy(order)],
        )


def project(x: Tensor, centre: Tensor, axes: Tensor) -> Tensor:  # (rows, AXES)
    """Coordinates of rows x (rows, features) along the axes."""
    return (x - centre) @ axes


def _leaf_order(
    coordinates: "np.ndarray[tuple[int, int], np.dtype[np.float32]]",
) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Row numbers such that every 16 rows are near to each other: halves along the widest coordinate."""
    order = np.arange(len(coordinates))
    parts = [(0, len(order))]
    while parts:
        begin, end = parts.pop()
        if end - begin <= LANES:
            continue
        part = order[begin:end]
        values = coordinates[part]
        widest = int(np.argmax(np.ptp(values, axis=0)))
        half = max(1, round((end - begin) / (2 * LANES))) * LANES  # leaves are full, but for the last
        order[begin:end] = part[np.argpartition(values[:, widest], half)]
        parts += [(begin, begin + half), (begin + half, end)]
    return order


def _round_up(count: int) -> int:
    return -(-count // (2 * LANES)) * 2 * LANES


def nearest_distances(x: Tensor, sample: Tensor, index: RowIndex | None, count: int) -> Tensor:
    """The `count` smallest distances (rows, count), ascending, of rows x (rows, features) from a sample.

    `index` is that of the sample; without one, all distances are computed. `count` is at most the number of
    rows of the sample (sampled, features).
    """
    if index is None or not can_use_kernel(x, sample):
        return reference(x, sample, count)
    features, padded, live = x.shape[1], index.rows.shape[1], without_copies(x)
    rows = x.new_zeros(live, padded)
    rows[:, :features] = x[:live]
    coordinates = project(x[:live], index.centre, index.axes)
    out = x.new_empty(live, count)
    arrays = rows, coordinates.contiguous(), index.boxes, index.leaves, index.rows, out
    sizes = live, padded, AXES, BOXED, len(index.boxes), index.size, count
    launch(nearest_loop, arrays, *sizes, index.radius, *SLACK)
    return with_copies(out, len(x), 0)


def reference(x: Tensor, sample: Tensor, count: int) -> Tensor:  # (rows, count)
    """The definition of `nearest_distances`, for any dtype and device."""
    squares = torch.addmm(sample.square().sum(-1), x, sample.T, alpha=-2)  # less |x|²: to find neighbours
    near = sample[squares.topk(count, largest=False).indices]
    return (x.unsqueeze(1) - near).square().sum(-1).sqrt().sort(-1).values  # without cancellation


@loop({"contract"}, "out")
def nearest_loop(
    x_: int, coordinates_: int, boxes_: int, leaves_: int, sample_: int, out_: int,
    batch: int, width: int, axes: int, boxed: int, count_leaves: int, sampled: int, count: int,
    radius: float, factor: float, rounding: float,
) -> None:  # fmt: skip
    """Ascending distances from the nearest rows of a sample in the order of its leaves.

    16 rows at a time go through the leaves, so that a leaf is read once for all of them.
    """
    array(x_, (batch, width))
    coordinates = array(coordinates_, (batch, axes))
    array(boxes_, (count_leaves, 2, boxed))
    array(leaves_, (count_leaves, axes, 16))
    array(sample_, (count_leaves * 16, width))
    out = array(out_, (batch, count))
    if count_leaves < 1 or count < 1:
        raise ValueError("there is no row to be near to")
    bounds = np.empty((count_leaves, 16), np.float32)  # squared, of each leaf's box
    middles = np.empty((count_leaves, 16), np.float32)  # from the middles of boxes, twice, squared
    squares = np.empty((16, count), np.float32)  # smallest so far, ascending
    limits, margins = np.empty(16, np.float32), np.empty(16, np.float32)  # of squares that are of interest
    own, least = np.zeros((boxed, 16), np.float32), np.empty(16, np.float32)
    bounds_, limits_, own_, least_ = (
        address_of(bounds),
        address_of(limits),
        address_of(own),
        address_of(least),
    )
    squares_, middles_ = address_of(squares), address_of(middles)
    for begin in range(0, batch, 16):
        live = min(16, batch - begin)
        squares[:] = F(math.inf)
        limits[:] = F(math.inf)
        for k in range(live):
            length = F(0)
            for i in range(axes):
                length += coordinates[begin + k, i] * coordinates[begin + k, i]
            for i in range(boxed):
                own[i, k] = coordinates[begin + k, i]
            reach = F(math.sqrt(length)) + F(radius)
            margins[k] = F(rounding) * reach * reach
        lowest = splat(F(math.inf))
        for leaf in range(count_leaves):
            total, central, box_ = splat(F(0)), splat(F(0)), boxes_ + 8 * leaf * boxed
            for i in range(boxed):
                q = load(own_, 16 * i)
                under, over = splat_at(box_, i) - q, q - splat_at(box_, boxed + i)
                gap, shift = maximum(maximum(under, over), splat(F(0))), under - over  # twice from the middle
                total, central = gap * gap + total, shift * shift + central
            store(bounds_, 16 * leaf, total)
            store(middles_, 16 * leaf, central)
            lowest = minimum(lowest, central)
        store(least_, 0, lowest)
        for k in range(live):  # the nearest leaf and its neighbours first: then the limit is nearly final
            nearest = 0
            while middles[nearest, k] != least[k] and nearest < count_leaves - 1:
                nearest += 1
            for leaf in range(max(0, nearest - 2), min(count_leaves, nearest + 3)):
                if bounds[leaf, k] <= limits[k]:
                    tile, rows = leaves_ + 64 * leaf * axes, sample_ + 64 * leaf * width
                    row, place = x_ + 4 * (begin + k) * width, coordinates_ + 4 * (begin + k) * axes
                    found, valid = squares_ + 4 * k * count, sampled - 16 * leaf
                    sizes = (count, valid, width, axes)
                    limits[k] = visit(tile, rows, row, place, found, sizes, limits[k], F(factor), margins[k])
                    bounds[leaf, k] = F(math.inf)
        for leaf in range(count_leaves):
            wanted = below(load(bounds_, 16 * leaf), load(limits_, 0)) & ((1 << live) - 1)
            while wanted != 0:
                k = lowest_bit(wanted)
                wanted &= wanted - 1
                tile, rows = leaves_ + 64 * leaf * axes, sample_ + 64 * leaf * width
                row, place = x_ + 4 * (begin + k) * width, coordinates_ + 4 * (begin + k) * axes
                found, valid = squares_ + 4 * k * count, sampled - 16 * leaf
                sizes = (count, valid, width, axes)
                limits[k] = visit(tile, rows, row, place, found, sizes, limits[k], F(factor), margins[k])
        for k in range(live):
            for i in range(count):
                out[begin + k, i] = math.sqrt(squares[k, i])


@kernel({"contract"})
def visit(
    tile: int, rows: int, row: int, place: int, found: int, sizes: tuple[int, int, int, int],
    limit: Any, factor: Any, margin: Any,
) -> Any:  # fmt: skip
    """Insert the rows of one leaf into a row's smallest squared distances; returns the new limit.

    The leaf has 16 rows, of which the first `valid` are no padding, and their coordinates, in `tile`.
    """
    count, valid, width, axes = sizes
    total, most = splat(F(0)), splat(limit)
    kept = 0
    for i in range(0, axes, 16):
        s0, s1, s2, s3 = total, splat(F(0)), splat(F(0)), splat(F(0))
        for j in range(i, i + 16, 4):
            g0, g1 = load(tile, 16 * j) - splat_at(place, j), load(tile, 16 * j + 16) - splat_at(place, j + 1)
            g2 = load(tile, 16 * j + 32) - splat_at(place, j + 2)
            g3 = load(tile, 16 * j + 48) - splat_at(place, j + 3)
            s0, s1, s2, s3 = g0 * g0 + s0, g1 * g1 + s1, g2 * g2 + s2, g3 * g3 + s3
        total = (s0 + s1) + (s2 + s3)
        kept = below(total, most)
        if kept == 0:
            break
    squares = array(found, (count,))
    last = count - 1
    while kept != 0:
        k = lowest_bit(kept)
        kept &= kept - 1
        candidate = rows + 4 * k * width
        s0 = splat(F(0))
        s1 = s0
        for i in range(0, width, 32):
            g0, g1 = load(row, i) - load(candidate, i), load(row, i + 16) - load(candidate, i + 16)
            s0, s1 = g0 * g0 + s0, g1 * g1 + s1
        square = add_lanes(s0 + s1)
        if k < valid and square < squares[last]:
            j = last
            while j > 0 and squares[j - 1] > square:
                squares[j] = squares[j - 1]
                j -= 1
            squares[j] = square
            limit = factor * squares[last] + margin
    return limit
