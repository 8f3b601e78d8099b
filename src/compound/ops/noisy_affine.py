"""Affine maps with matrix-normal weights, drawn anew for every row without drawing a weight matrix.

W ~ MN(mean, diag(row), diag(col)) and h~ = [h; 1] give h~ W ~ N(h~ mean, (sum_i h~_i² row_i) col) exactly, so
that a draw costs one normal number per output, not one per weight. Outputs may come in blocks, each with row
variances of its own. Louizos and Welling (2016).
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from compound.ops.affine import matmul
from compound.ops.guard import Offsets
from compound.ops.jit import FASTMATH, F, array, can_use_kernel, launch, loop, rows_per_member
from compound.ops.matrix_normal import block_offsets
from compound.precision import once_differentiable


def noisy_affine(
    x_aug: Tensor,  # (*members, rows, r): h~
    mean: Tensor,  # (*members, r, out)
    log_row: Tensor,  # (*members, blocks, r): log-variances
    log_col: Tensor,  # (*members, out): log-variances
    noise: Tensor,  # (*members, rows, out): standard normal
    blocks: tuple[int, ...],  # outputs of each block
    shared: int = 1,
) -> Tensor:  # (*members, rows, out)
    """Draws of h~ W: compiled where possible, differentiable.

    Rows come in `shared` equal parts, and row b of every part uses the same W; with one part every row has
    its own W.
    """
    if shared == 1 and can_use_kernel(x_aug, mean):
        return _NoisyAffine.apply(x_aug.contiguous(), mean, log_row, log_col, noise, blocks)
    return reference(x_aug, mean, log_row, log_col, noise, blocks, shared)


def reference(
    x_aug: Tensor,
    mean: Tensor,
    log_row: Tensor,
    log_col: Tensor,
    noise: Tensor,
    blocks: tuple[int, ...],
    shared: int = 1,
) -> Tensor:
    """The definition of `noisy_affine`, for any dtype and device."""
    rows = log_row.exp().unbind(-2)
    parts = zip(rows, noise.split(blocks, -1), strict=True)
    scaled = torch.cat([scaled_noise(x_aug, row, part, shared) for row, part in parts], -1)
    return torch.addcmul(x_aug @ mean, scaled, (0.5 * log_col).exp().unsqueeze(-2))


def scaled_noise(x_aug: Tensor, row: Tensor, noise: Tensor, shared: int = 1) -> Tensor:
    """Draws of h~ W - E[h~ W] from standard normal noise (..., rows, out).

    Shapes: h~ = x_aug (..., rows, r), row variances (..., r); column variances are 1. Rows come in `shared`
    equal parts. Row b of every part uses the same W, so parts s and t of it have the covariance K_st = sum_i
    h_si row_i h_ti: the noise is multiplied by a Cholesky factor of each row's K.
    """
    if shared == 1:
        return noise * (x_aug.square() @ row.unsqueeze(-1)).sqrt()
    rows = x_aug.shape[-2] // shared
    h = x_aug.double().unflatten(-2, (shared, rows)).transpose(-3, -2)  # (*members, rows, shared, r)
    k = (h * row.double()[..., None, None, :]) @ h.mT  # (*members, rows, shared, shared)
    # float64 and a little jitter: equal inputs make K singular
    jitter = 1e-10 * k.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    identity = torch.eye(shared, dtype=k.dtype, device=k.device)
    factor = torch.linalg.cholesky(k + jitter * identity).to(noise.dtype)
    parts = noise.unflatten(-2, (shared, rows)).transpose(-3, -2)  # (*members, rows, shared, out)
    return (factor @ parts).transpose(-3, -2).flatten(-3, -2)


class Saved(NamedTuple):
    """What `backward` needs."""

    x_aug: Tensor
    mean: Tensor
    row: Tensor  # (*members, blocks, r): variances
    col: Tensor  # (*members, out): standard deviations
    scale: Tensor  # (*members, rows, blocks): sqrt(sum_i h~_i² row_i)
    noise: Tensor


def forward(
    x_aug: Tensor, mean: Tensor, log_row: Tensor, log_col: Tensor, noise: Tensor, blocks: tuple[int, ...]
) -> tuple[Tensor, Saved]:
    """`reference` for shared = 1, compiled, and what `backward` needs."""
    out = matmul(x_aug, mean)
    row = log_row.exp()
    col = (0.5 * log_col).exp_()
    scale = x_aug.new_empty((*x_aug.shape[:-1], len(blocks)))
    sizes = math.prod(col.shape[:-1]), math.prod(x_aug.shape[:-1]), x_aug.shape[-1]
    launch(noise_loop, (x_aug, row, col, noise, scale, out), block_offsets(blocks), *sizes)
    return out, Saved(x_aug, mean, row, col, scale, noise)


def backward(
    saved: Saved, blocks: tuple[int, ...], d_out: Tensor, needs_input: bool
) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """Gradients with respect to h~ (if `needs_input`), mean, log_row and log_col."""
    x_aug, mean, row, col, scale, noise = saved
    d_out = d_out.contiguous()
    # the transposed product is the faster one
    d_x_aug = matmul(mean, d_out.mT).mT.contiguous() if needs_input else x_aug.new_empty(0)
    d_row = torch.zeros_like(row)
    d_col = torch.zeros_like(col)
    sizes = math.prod(col.shape[:-1]), math.prod(x_aug.shape[:-1]), x_aug.shape[-1]
    arrays = x_aug, row, col, noise, scale, d_out, d_x_aug, d_row, d_col
    launch(noise_backward_loop, arrays, block_offsets(blocks), *sizes, needs_input)
    return d_x_aug if needs_input else None, matmul(x_aug.mT, d_out), d_row.mul_(row), d_col


class _NoisyAffine(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x_aug: Tensor,
        mean: Tensor,
        log_row: Tensor,
        log_col: Tensor,
        noise: Tensor,
        blocks: tuple[int, ...],
    ) -> Tensor:
        out, saved = forward(x_aug, mean, log_row, log_col, noise, blocks)
        ctx.save_for_backward(*saved)
        ctx.blocks = blocks
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        saved = Saved(*ctx.saved_tensors)
        return *backward(saved, ctx.blocks, d_out, ctx.needs_input_grad[0]), None, None


@loop(FASTMATH, "scale out")
def noise_loop(
    x_aug_: int, row_: int, col_: int, noise_: int, scale_: int, out_: int,
    offsets: Offsets, members: int, rows: int, r: int,
) -> None:  # fmt: skip
    """Add noise * sqrt(sum_i h~_i² row_i) * col to out; outputs offsets[k]:offsets[k + 1] use row[:, k]."""
    blocks = len(offsets) - 1
    c = offsets[-1]
    each = rows_per_member(members, rows)
    x_aug = array(x_aug_, (rows, r))
    row = array(row_, (members, blocks, r))
    col = array(col_, (members, c))
    noise = array(noise_, (rows, c))
    scale = array(scale_, (rows, blocks))
    out = array(out_, (rows, c))
    for b in range(rows):
        m, x = b // each, x_aug[b]
        for k in range(blocks):
            begin, end = offsets[k], offsets[k + 1]
            variance, deviation = row[m, k], col[m, begin:end]
            draw, result = noise[b, begin:end], out[b, begin:end]
            q = F(0)
            for i in range(r):
                q += x[i] * x[i] * variance[i]
            q = F(math.sqrt(q))
            scale[b, k] = q
            for j in range(end - begin):
                result[j] += q * draw[j] * deviation[j]


@loop(FASTMATH, "d_x_aug d_row d_col")
def noise_backward_loop(
    x_aug_: int, row_: int, col_: int, noise_: int, scale_: int, d_out_: int,
    d_x_aug_: int, d_row_: int, d_col_: int,
    offsets: Offsets, members: int, rows: int, r: int, needs_input: bool,
) -> None:  # fmt: skip
    """Gradients of `noise_loop`, accumulated: h~ (if `needs_input`), row variances, log column variances."""
    blocks = len(offsets) - 1
    c = offsets[-1]
    each = rows_per_member(members, rows)
    x_aug = array(x_aug_, (rows, r))
    row = array(row_, (members, blocks, r))
    col = array(col_, (members, c))
    noise = array(noise_, (rows, c))
    scale = array(scale_, (rows, blocks))
    d_out = array(d_out_, (rows, c))
    d_x_aug = array(d_x_aug_, (rows if needs_input else 0, r))
    d_row = array(d_row_, (members, blocks, r))
    d_col = array(d_col_, (members, c))
    for b in range(rows):
        m, x = b // each, x_aug[b]
        for k in range(blocks):
            begin, end = offsets[k], offsets[k + 1]
            variance, deviation = row[m, k], col[m, begin:end]
            draw, d = noise[b, begin:end], d_out[b, begin:end]
            grad_row, grad_col, half, d_scale = d_row[m, k], d_col[m, begin:end], F(0.5) * scale[b, k], F(0)
            for j in range(end - begin):
                product = d[j] * draw[j] * deviation[j]
                d_scale += product
                grad_col[j] += half * product
            d_q = F(0.5) * d_scale / scale[b, k]
            for i in range(r):
                grad_row[i] += d_q * x[i] * x[i]
            if needs_input:
                grad = d_x_aug[b]
                for i in range(r):
                    grad[i] += F(2) * d_q * variance[i] * x[i]
