"""Moments of a compound linear layer whose inputs share entries of s and lr in groups.

Inputs come in groups that follow each other, such as the indicators of one category. Every input of group k
has the scale s_k and the row log-variance lr_k. With h~_k for the inputs of group k, and V_k for their rows,

    W^T h~ ~ N( sum_k s_k V_k^T h~_k,  (sum_k exp(lr_k) |h~_k|²) exp(lc) )

So the hypernetwork has two outputs per group in place of two per input. `reference` is the definition, by
`compound_moments.reference` on repeated entries; `forward` and `backward` are its compiled form.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from compound.compat import retains_graph
from compound.ops import compound_moments
from compound.ops.affine import matmul
from compound.ops.compound_moments import Gaussian, MomentOptions
from compound.ops.gaussian_kl import compiled_gaussian_kl
from compound.ops.jit import FASTMATH, F, array, can_use_kernel, exp, launch, loop, rows_per_member
from compound.precision import once_differentiable


def grouped_moments(
    x_aug: Tensor, heads: Tensor, basis: Tensor, counts: Tensor, options: MomentOptions
) -> Gaussian:
    """`compound_moments` for heads (s, lr, lc) (*members, rows, 2 g + c) and inputs per group `counts` (g,).

    Differentiable; compiled where possible. The memory of `heads` is reused.
    """
    if not can_use_kernel(x_aug, heads, basis, counts):
        return reference(x_aug, heads, basis, counts, options)
    if float(counts.sum()) != basis.shape[-2]:
        raise ValueError(f"the groups have {float(counts.sum()):g} inputs, the layer {basis.shape[-2]}")
    if not torch.is_grad_enabled():
        return forward(x_aug.contiguous(), heads.contiguous(), basis, counts, options)[0]
    return Gaussian(*_GroupedMoments.apply(x_aug.contiguous(), heads.contiguous(), basis, counts, options))


def reference(
    x_aug: Tensor, heads: Tensor, basis: Tensor, counts: Tensor, options: MomentOptions
) -> Gaussian:
    """The definition of `grouped_moments`, for any dtype and device."""
    return compound_moments.reference(x_aug, repeat_heads(heads, counts, x_aug.shape[-1]), basis, options)


def repeat_heads(heads: Tensor, counts: Tensor, r: int) -> Tensor:  # (*members, rows, 2 r + c)
    """Heads (*members, rows, 2 g + c) with the entries of s and lr repeated for each of the r inputs.

    Given the weights of the map that computes heads, those of a map that computes the repeated ones.
    """
    g = len(counts)
    groups = torch.arange(g, device=counts.device)
    index = groups.repeat_interleave(counts.long(), output_size=r)  # (r,) the group of each input
    return torch.cat(
        [
            heads[..., :g].index_select(-1, index),
            heads[..., g : 2 * g].index_select(-1, index),
            heads[..., 2 * g :],
        ],
        -1,
    )


class Saved(NamedTuple):
    """What `backward` needs."""

    x_aug: Tensor
    heads: Tensor  # (*members, rows, 2 g + c), overwritten by s, exp(lr), exp(lc)
    basis: Tensor
    counts: Tensor
    scaled: Tensor  # (*members, rows, r) s * h~
    squares: Tensor  # (*members, rows, g) |h~_k|²
    std: Tensor
    sums: (
        Tensor  # (*members, rows, 3): sum h~² exp(lr) / fan-in, sum of row variances, sum of column variances
    )
    norms: Tensor  # (*members, g): sums of squares of the rows of V, if the KL is computed


def forward(
    x_aug: Tensor, heads: Tensor, basis: Tensor, counts: Tensor, options: MomentOptions
) -> tuple[Gaussian, Saved]:
    """`reference`, compiled, and what `backward` needs; overwrites `heads`."""
    *members, r, c = basis.shape
    g, shape = len(counts), x_aug.shape[:-1]
    scaled, squares = torch.empty_like(x_aug), heads.new_empty((*shape, g))
    std, sums = heads.new_empty((*shape, c)), heads.new_empty((*shape, 3))
    kl = heads.new_empty(shape if options.kl else 0)
    norms = heads.new_zeros((*members, g))
    arrays = x_aug, heads, basis, counts, scaled, squares, std, sums, norms, kl
    launch(grouped_loop, arrays, math.prod(members), math.prod(shape), r, g, c, *options)
    saved = Saved(x_aug, heads, basis, counts, scaled, squares, std, sums, norms)
    return Gaussian(matmul(scaled, basis), std, kl), saved


def backward(
    saved: Saved, options: MomentOptions, d_mean: Tensor, d_std: Tensor, d_kl: Tensor, needs_input: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients with respect to x_aug (None unless `needs_input`), heads and basis.

    The gradient of the heads overwrites saved.heads.
    """
    x_aug, heads, basis, counts, scaled, squares, std, sums, norms = saved
    *members, r, c = basis.shape
    d_scaled = matmul(d_mean, basis.mT)
    d_basis = matmul(scaled.mT, d_mean)
    d_x_aug = torch.empty_like(x_aug) if needs_input else x_aug.new_empty(0)
    d_norms = torch.zeros_like(norms)
    arrays = x_aug, heads, counts, squares, norms, std, sums, d_scaled, d_std.contiguous(), d_kl.contiguous()
    sizes = math.prod(members), math.prod(x_aug.shape[:-1]), r, len(counts), c
    launch(grouped_backward_loop, (*arrays, d_x_aug, d_norms), *sizes, *options, needs_input)
    if options.kl:
        each_input = d_norms.repeat_interleave(counts.long(), -1)
        d_basis.addcmul_(each_input.unsqueeze(-1), basis, value=2)
    return d_x_aug if needs_input else None, heads, d_basis


class _GroupedMoments(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x_aug: Tensor, heads: Tensor, basis: Tensor, counts: Tensor, options: MomentOptions
    ) -> tuple[Tensor, ...]:
        out, saved = forward(x_aug, heads, basis, counts, options)
        ctx.save_for_backward(*saved)
        ctx.options = options
        return tuple(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mean: Tensor, d_std: Tensor, d_kl: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        saved = Saved(*ctx.saved_tensors)
        if retains_graph():  # another backward pass may follow
            saved = saved._replace(heads=saved.heads.clone())
        return *backward(saved, ctx.options, d_mean, d_std, d_kl, ctx.needs_input_grad[0]), None, None


@loop(FASTMATH, "heads scaled squares std sums norms kl")
def grouped_loop(
    x_aug_: int, heads_: int, basis_: int, counts_: int, scaled_: int, squares_: int, std_: int, sums_: int,
    norms_: int, kl_: int,
    members: int, rows: int, r: int, g: int, c: int, bound: float, fan_in: bool, kl: bool,
) -> None:  # fmt: skip
    """`reference` except for the product with V; `Saved` says what the arrays hold afterwards."""
    x_aug = array(x_aug_, (rows, r))
    heads = array(heads_, (rows, 2 * g + c))
    basis = array(basis_, (members, r, c))
    counts = array(counts_, (g,))
    scaled = array(scaled_, (rows, r))
    squares = array(squares_, (rows, g))
    std = array(std_, (rows, c))
    sums = array(sums_, (rows, 3))
    norms = array(norms_, (members, g))
    kls = array(kl_, (rows if kl else 0,))
    high, fan, each = F(bound), F(r if fan_in else 1), rows_per_member(members, rows)
    if kl:
        for m in range(members):
            start = 0
            for k in range(g):
                stop, square = max(start, min(start + int(counts[k]), r)), F(0)
                for i in range(start, stop):
                    for j in range(c):
                        square += basis[m, i, j] * basis[m, i, j]
                norms[m, k], start = square, stop
    for b in range(rows):
        x, out, square, norm = x_aug[b], scaled[b], squares[b], norms[b // each]
        s, row, col = heads[b, :g], heads[b, g : 2 * g], heads[b, 2 * g :]
        q_sum, row_sum, row_logs, squared = F(0), F(0), F(0), F(0)
        start = 0
        for k in range(g):
            stop, total, factor = max(start, min(start + int(counts[k]), r)), F(0), s[k]
            for i in range(start, stop):
                out[i] = factor * x[i]
                total += x[i] * x[i]
            square[k], start = total, stop
        for k in range(g):
            log = min(max(row[k], -high), high)
            variance = exp(log)
            row[k] = variance
            q_sum += square[k] * variance
            row_sum += counts[k] * variance
            row_logs += counts[k] * log
            squared += s[k] * s[k] * norm[k]
        q_sum /= fan
        deviation, col_sum, col_logs = std[b], F(0), F(0)
        for j in range(c):
            log = min(max(col[j], -high), high)
            variance = exp(log)
            col[j] = variance
            deviation[j] = math.sqrt(q_sum * variance)
            col_sum += variance
            col_logs += log
        sums[b, 0], sums[b, 1], sums[b, 2] = q_sum, row_sum, col_sum
        if kl:
            log_det = F(c) * row_logs + F(r) * col_logs
            kls[b] = compiled_gaussian_kl(row_sum * col_sum, fan * squared, r * c, log_det)


@loop(FASTMATH, "heads d_x_aug d_norms")
def grouped_backward_loop(
    x_aug_: int, heads_: int, counts_: int, squares_: int, norms_: int, std_: int, sums_: int,
    d_scaled_: int, d_std_: int, d_kl_: int, d_x_aug_: int, d_norms_: int,
    members: int, rows: int, r: int, g: int, c: int, bound: float, fan_in: bool, kl: bool, needs_input: bool,
) -> None:  # fmt: skip
    """Gradients of `grouped_loop` with respect to heads (overwritten), h~ and, accumulated, norms."""
    x_aug = array(x_aug_, (rows, r))
    heads = array(heads_, (rows, 2 * g + c))
    counts = array(counts_, (g,))
    squares = array(squares_, (rows, g))
    norms = array(norms_, (members, g))
    std = array(std_, (rows, c))
    sums = array(sums_, (rows, 3))
    d_scaled = array(d_scaled_, (rows, r))
    d_std = array(d_std_, (rows, c))
    d_kl = array(d_kl_, (rows if kl else 0,))
    d_x_aug = array(d_x_aug_, (rows if needs_input else 0, r))
    d_norms = array(d_norms_, (members, g))
    fan, each = F(r if fan_in else 1), rows_per_member(members, rows)
    low, high = exp(-F(bound)), exp(F(bound))  # a clamped log-variance has no gradient
    for b in range(rows):
        m = b // each
        x, d, norm, grad = x_aug[b], d_scaled[b], norms[m], d_norms[m]
        s, row, col = heads[b, :g], heads[b, g : 2 * g], heads[b, 2 * g :]
        half = F(0.5) * d_kl[b] if kl else F(0)
        d_deviation, deviation, row_sum, d_q = d_std[b], std[b], sums[b, 1], F(0)
        for j in range(c):
            d_log = F(0.5) * d_deviation[j] * deviation[j]  # with respect to log q and to lc alike
            d_q += d_log
            variance = col[j]
            col[j] = d_log + half * (row_sum * variance - F(r)) if low < variance < high else F(0)
        d_q /= sums[b, 0] * fan
        trace, weight, start = half * sums[b, 2], F(2) * half * fan, 0
        for k in range(g):
            stop, product, factor = max(start, min(start + int(counts[k]), r)), F(0), s[k]
            for i in range(start, stop):
                product += d[i] * x[i]
            if needs_input:
                out, slope = d_x_aug[b], F(2) * d_q * row[k]
                for i in range(start, stop):
                    out[i] = slope * x[i] + d[i] * factor
            grad[k] += half * fan * factor * factor
            s[k], start = product + weight * factor * norm[k], stop
        for k in range(g):
            variance = row[k]
            inside = low < variance < high
            d_log = variance * (squares[b, k] * d_q + counts[k] * trace) - half * F(c) * counts[k]
            row[k] = d_log if inside else F(0)
