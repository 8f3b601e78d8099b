"""The KL of matrix normals with diagonal factors to isotropic ones, for blocks of columns side by side.

For r rows and c columns,

    KL[MN(M, diag(a), diag(b)) || MN(M₀, p I, I)]
        = 1/2 [ (sum a sum b + |M - M₀|²) / p - r c (1 - log p) - c sum log a - r sum log b ]
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compound.ops.gaussian_kl import compiled_gaussian_kl, gaussian_kl
from compound.ops.guard import Doubles, Offsets
from compound.ops.jit import FASTMATH, F, array, can_use_kernel, exp, launch, loop
from compound.precision import once_differentiable


def matrix_normal_kl(
    mean: Tensor,  # (*members, r, c)
    log_row: Tensor,  # (*members, blocks, r): log-variances of each block's rows
    log_col: Tensor,  # (*members, c): log-variances of the columns
    prior_mean: Tensor,  # (r, c)
    blocks: tuple[int, ...],  # columns of each block
    prior_variance: tuple[float, ...],  # of each block
) -> Tensor:  # (*members,)
    """KL of each member's matrix normal to its prior, summed over blocks of columns; differentiable.

    Compiled where possible.
    """
    if can_use_kernel(mean, log_row, log_col, prior_mean):
        return _MatrixNormalKL.apply(mean, log_row, log_col, prior_mean, blocks, prior_variance)
    means = (mean - prior_mean).split(blocks, -1)
    parts = zip(means, log_row.unbind(-2), log_col.split(blocks, -1), prior_variance, strict=True)
    return torch.stack([reference(*part) for part in parts]).sum(0)


def reference(mean: Tensor, log_row: Tensor, log_col: Tensor, prior_variance: float = 1.0) -> Tensor:
    """The definition for one block and prior mean 0: mean (..., r, c), log-variances (..., r), (..., c)."""
    r, c = mean.shape[-2:]
    mahalanobis = mean.square().sum((-2, -1)) / prior_variance
    trace = log_row.exp().sum(-1) * log_col.exp().sum(-1) / prior_variance
    log_det_ratio = c * log_row.sum(-1) + r * log_col.sum(-1) - r * c * math.log(prior_variance)
    return gaussian_kl(trace, mahalanobis, r * c, log_det_ratio)


@lru_cache(maxsize=64)
def block_offsets(blocks: tuple[int, ...]) -> Any:
    """Where each block begins, and where the last one ends."""
    return np.cumsum([0, *blocks])


@lru_cache(maxsize=64)
def _float64_array(values: tuple[float, ...]) -> Any:
    return np.array(values, dtype=np.float64)


class _MatrixNormalKL(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        mean: Tensor,
        log_row: Tensor,
        log_col: Tensor,
        prior_mean: Tensor,
        blocks: tuple[int, ...],
        prior_variance: tuple[float, ...],
    ) -> Tensor:
        *members, n_blocks, r = log_row.shape
        sums = mean.new_empty((*members, n_blocks, 2))
        total = mean.new_empty(members)
        ctx.numbers = block_offsets(blocks), _float64_array(prior_variance), math.prod(members), r
        launch(kl_loop, (mean, prior_mean, log_row, log_col, sums, total), *ctx.numbers)
        ctx.save_for_backward(mean, prior_mean, log_row, log_col, sums)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        saved = ctx.saved_tensors  # read once: `torch.utils.checkpoint` recomputes it
        mean, _, log_row, log_col, _ = saved
        gradients = [torch.empty_like(tensor) for tensor in (mean, log_row, log_col)]
        arrays = (*saved, d_total.contiguous(), *gradients)
        launch(kl_backward_loop, arrays, *ctx.numbers)
        return *gradients, None, None, None


@loop(FASTMATH, "sums total")
def kl_loop(
    mean_: int, prior_mean_: int, log_row_: int, log_col_: int, sums_: int, total_: int,
    offsets: Offsets, prior_variance: Doubles, members: int, r: int,
) -> None:  # fmt: skip
    """`matrix_normal_kl`, and the sums of row and of column variances that its gradient needs."""
    blocks = len(offsets) - 1
    c = offsets[-1]
    if len(prior_variance) != blocks:
        raise ValueError("there must be one prior variance per block")
    mean = array(mean_, (members, r, c))
    prior_mean = array(prior_mean_, (r, c))
    log_row = array(log_row_, (members, blocks, r))
    log_col = array(log_col_, (members, c))
    sums = array(sums_, (members, blocks, 2))
    total = array(total_, (members,))
    for m in range(members):
        kl = 0.0  # double precision: large terms of either sign
        for k in range(blocks):
            begin, end, prior = offsets[k], offsets[k + 1], prior_variance[k]
            row, col = log_row[m, k], log_col[m, begin:end]
            row_sum, row_logs, col_sum, col_logs, squares = F(0), F(0), F(0), F(0), F(0)
            for i in range(r):
                row_sum += exp(row[i])
                row_logs += row[i]
            for j in range(end - begin):
                col_sum += exp(col[j])
                col_logs += col[j]
            for i in range(r):
                a, b = mean[m, i, begin:end], prior_mean[i, begin:end]
                for j in range(end - begin):
                    squares += (a[j] - b[j]) * (a[j] - b[j])
            sums[m, k, 0], sums[m, k, 1] = row_sum, col_sum
            n = r * (end - begin)
            log_det_ratio = (end - begin) * row_logs + r * col_logs - n * math.log(prior)
            kl += compiled_gaussian_kl(row_sum * col_sum / prior, squares / prior, n, log_det_ratio)
        total[m] = kl


@loop(FASTMATH, "d_mean d_row d_col")
def kl_backward_loop(
    mean_: int, prior_mean_: int, log_row_: int, log_col_: int, sums_: int, d_total_: int,
    d_mean_: int, d_row_: int, d_col_: int,
    offsets: Offsets, prior_variance: Doubles, members: int, r: int,
) -> None:  # fmt: skip
    """Gradients of `kl_loop` with respect to the mean and both factors' log-variances."""
    blocks = len(offsets) - 1
    c = offsets[-1]
    if len(prior_variance) != blocks:
        raise ValueError("there must be one prior variance per block")
    mean = array(mean_, (members, r, c))
    prior_mean = array(prior_mean_, (r, c))
    log_row = array(log_row_, (members, blocks, r))
    log_col = array(log_col_, (members, c))
    sums = array(sums_, (members, blocks, 2))
    d_total = array(d_total_, (members,))
    d_mean = array(d_mean_, (members, r, c))
    d_row = array(d_row_, (members, blocks, r))
    d_col = array(d_col_, (members, c))
    for m in range(members):
        for k in range(blocks):
            begin, end, weight = offsets[k], offsets[k + 1], d_total[m] * F(1 / prior_variance[k])
            half, row_sum, col_sum = F(0.5) * d_total[m], sums[m, k, 0], sums[m, k, 1]
            row, grad_row = log_row[m, k], d_row[m, k]
            col, grad_col = log_col[m, begin:end], d_col[m, begin:end]
            for i in range(r):
                grad_row[i] = F(0.5) * weight * col_sum * exp(row[i]) - half * F(end - begin)
            for j in range(end - begin):
                grad_col[j] = F(0.5) * weight * row_sum * exp(col[j]) - half * F(r)
            for i in range(r):
                a, b, grad = mean[m, i, begin:end], prior_mean[i, begin:end], d_mean[m, i, begin:end]
                for j in range(end - begin):
                    grad[j] = weight * (a[j] - b[j])
