"""Products x W inside compiled loops, over the numbers of x that are not zero.

Masks hold one bit for each number, 64 in one integer. Columns of W are taken 128, 64 or 32 at a time: their
sums stay in registers. Fewer columns have two or four sets of sums, so that a row of W need not wait for the
sums with the row before it. W is padded: its columns are a multiple of 32, and so are `out` and x.
"""

from typing import Any

from torch import Tensor
from torch.nn import functional

from compound.ops.jit import F, kernel
from compound.ops.lanes import differ, load, lowest_bit, maximum, splat, splat_at, store

COLUMNS = 32  # the columns of padded weights are a multiple of it
MASK = 64  # numbers of a mask


def round_up(count: int, unit: int = COLUMNS) -> int:
    """The smallest multiple of `unit` that is not below `count`."""
    return -(-count // unit) * unit


def pad(weights: Tensor, rows: int, columns: int) -> Tensor:  # (..., rows, columns)
    """Matrices with zeros appended."""
    return functional.pad(weights, (0, columns - weights.shape[-1], 0, rows - weights.shape[-2]))


@kernel({"contract"})
def find_nonzero(x_: int, masks: Any, rectify: bool) -> None:
    """Masks of the numbers of x, 64 each, that are not zero; with `rectify` x becomes max(x, 0) before."""
    zero = splat(F(0))
    for n in range(len(masks)):
        bits = 0
        for k in range(4):
            i = 64 * n + 16 * k
            value = load(x_, i)
            if rectify:
                value = maximum(zero, value)  # in this order NaN stays NaN
                store(x_, i, value)
            bits |= differ(value, zero) << (16 * k)
        masks[n] = bits


@kernel({"contract"})
def add_rows(out_: int, x_: int, masks: Any, weights_: int, columns: int, stride: int) -> None:
    """out = x W for the first `columns` columns of W, a multiple of 32; its rows are `stride` apart."""
    j = 0
    while j + 128 <= columns:
        _add_128(out_ + 4 * j, x_, masks, weights_ + 4 * j, 4 * stride)
        j += 128
    if j + 64 <= columns:
        _add_64(out_ + 4 * j, x_, masks, weights_ + 4 * j, 4 * stride)
        j += 64
    if j < columns:
        _add_32(out_ + 4 * j, x_, masks, weights_ + 4 * j, 4 * stride)


@kernel({"contract"})
def _add_128(out_: int, x_: int, masks: Any, weights_: int, stride: int) -> None:
    zero = splat(F(0))
    a0, a1, a2, a3, a4, a5, a6, a7 = zero, zero, zero, zero, zero, zero, zero, zero
    for n in range(len(masks)):
        bits = masks[n]
        while bits != 0:
            i = 64 * n + lowest_bit(bits)
            bits &= bits - 1
            x, row_ = splat_at(x_, i), weights_ + i * stride
            a0, a1 = x * load(row_, 0) + a0, x * load(row_, 16) + a1
            a2, a3 = x * load(row_, 32) + a2, x * load(row_, 48) + a3
            a4, a5 = x * load(row_, 64) + a4, x * load(row_, 80) + a5
            a6, a7 = x * load(row_, 96) + a6, x * load(row_, 112) + a7
    store(out_, 0, a0)
    store(out_, 16, a1)
    store(out_, 32, a2)
    store(out_, 48, a3)
    store(out_, 64, a4)
    store(out_, 80, a5)
    store(out_, 96, a6)
    store(out_, 112, a7)


@kernel({"contract"})
def _add_64(out_: int, x_: int, masks: Any, weights_: int, stride: int) -> None:
    zero = splat(F(0))
    a0, a1, a2, a3, b0, b1, b2, b3 = zero, zero, zero, zero, zero, zero, zero, zero
    for n in range(len(masks)):
        bits = masks[n]
        while bits != 0:
            i = 64 * n + lowest_bit(bits)
            bits &= bits - 1
            x, row_ = splat_at(x_, i), weights_ + i * stride
            a0, a1 = x * load(row_, 0) + a0, x * load(row_, 16) + a1
            a2, a3 = x * load(row_, 32) + a2, x * load(row_, 48) + a3
            if bits != 0:
                i = 64 * n + lowest_bit(bits)
                bits &= bits - 1
                x, row_ = splat_at(x_, i), weights_ + i * stride
                b0, b1 = x * load(row_, 0) + b0, x * load(row_, 16) + b1
                b2, b3 = x * load(row_, 32) + b2, x * load(row_, 48) + b3
    store(out_, 0, a0 + b0)
    store(out_, 16, a1 + b1)
    store(out_, 32, a2 + b2)
    store(out_, 48, a3 + b3)


@kernel({"contract"})
def _add_32(out_: int, x_: int, masks: Any, weights_: int, stride: int) -> None:
    zero = splat(F(0))
    a0, a1, b0, b1, c0, c1 = zero, zero, zero, zero, zero, zero
    for n in range(len(masks)):
        bits = masks[n]
        while bits != 0:
            i = 64 * n + lowest_bit(bits)
            bits &= bits - 1
            x, row_ = splat_at(x_, i), weights_ + i * stride
            a0, a1 = x * load(row_, 0) + a0, x * load(row_, 16) + a1
            if bits != 0:
                i = 64 * n + lowest_bit(bits)
                bits &= bits - 1
                x, row_ = splat_at(x_, i), weights_ + i * stride
                b0, b1 = x * load(row_, 0) + b0, x * load(row_, 16) + b1
                if bits != 0:
                    i = 64 * n + lowest_bit(bits)
                    bits &= bits - 1
                    x, row_ = splat_at(x_, i), weights_ + i * stride
                    c0, c1 = x * load(row_, 0) + c0, x * load(row_, 16) + c1
    store(out_, 0, (a0 + b0) + c0)
    store(out_, 16, (a1 + b1) + c1)
