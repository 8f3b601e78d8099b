"""Moments of a compound linear layer's pre-activations, without a weight matrix.

W ~ MN(diag(s) V, diag(exp lr), diag(exp lc)) and h~ = [h; 1] give, exactly and independently over outputs,

    W^T h~ ~ N( V^T (s * h~),  (sum_i h~_i² exp(lr_i)) exp(lc) )

`reference` is the definition. `forward` and `backward` are its compiled form in float32: torch would pass
over arrays of the size of the input a dozen times, and keep several of them.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from compound.compat import retains_graph
from compound.ops.affine import matmul
from compound.ops.gaussian_kl import compiled_gaussian_kl, gaussian_kl
from compound.ops.jit import FASTMATH, F, array, can_use_kernel, exp, launch, loop, rows_per_member
from compound.precision import once_differentiable


class Gaussian(NamedTuple):
    """Independent Gaussians over a layer's pre-activations, and the KL of each row's weights to their prior.

    Parameters
    ----------
    mean : Tensor of shape (*members, rows, out)
        Means.
    std : Tensor of shape (*members, rows, out)
        Standard deviations.
    kl : Tensor of shape (*members, rows)
        KL of each row's weights to their prior; empty where it was not computed.

    Examples
    --------
    >>> import torch
    >>> from compound.nn import Gaussian
    >>> out = Gaussian(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2))
    >>> out.draw(torch.full((2, 3), 0.5)).sum()
    tensor(3.)
    """

    mean: Tensor
    """Means, (*members, rows, out)."""
    std: Tensor
    """Standard deviations, (*members, rows, out)."""
    kl: Tensor
    """KL per row, (*members, rows); empty if it was not requested."""

    def draw(self, noise: Tensor) -> Tensor:
        """Pre-activations from standard normal noise of the shape of `mean`.

        Parameters
        ----------
        noise : Tensor of shape (*members, rows, out)
            Standard normal numbers.

        Returns
        -------
        Tensor of shape (*members, rows, out)
            mean + std * noise.
        """
        return torch.addcmul(self.mean, self.std, noise)


class MomentOptions(NamedTuple):
    bound: float  # log-variances are clamped to ± this
    fan_in: bool  # whether weight variances, and the prior variance 1, are divided by in + 1
    kl: bool  # whether the KL is computed


def compound_moments(
    x_aug: Tensor, heads: Tensor, basis: Tensor, options: MomentOptions, overwrite_heads: bool = False
) -> Gaussian:
    """The Gaussian of the pre-activations from h~, the hypernetwork's heads and V; differentiable.

    Shapes: h~ = x_aug (*members, rows, r = in + 1), heads (s, lr, lc) (*members, rows, 2 r + c), V = basis
    (*members, r, c). With `overwrite_heads` the memory of `heads` is reused: the caller must not read it
    afterwards. Compiled where possible.
    """
    if not can_use_kernel(x_aug, heads, basis):
        return reference(x_aug, heads, basis, options)
    if not overwrite_heads:
        heads = heads.clone(memory_format=torch.contiguous_format)
    if not torch.is_grad_enabled():  # keeps nothing for a backward pass
        return forward(x_aug.contiguous(), heads.contiguous(), basis, options)[0]
    return Gaussian(*_CompoundMoments.apply(x_aug.contiguous(), heads.contiguous(), basis, options))


def reference(x_aug: Tensor, heads: Tensor, basis: Tensor, options: MomentOptions) -> Gaussian:
    """The definition of `compound_moments`, for any dtype and device."""
    r, c = basis.shape[-2:]
    scale, log_row, log_col = heads.split([r, r, c], -1)
    log_row = log_row.clamp(-options.bound, options.bound)
    log_col = log_col.clamp(-options.bound, options.bound)
    row, col = log_row.exp(), log_col.exp()
    fan_in = r if options.fan_in else 1
    std = ((x_aug * x_aug * row).sum(-1, keepdim=True) * col / fan_in).sqrt()
    kl = std.new_empty(0)
    if options.kl:
        kl = weights_kl(scale, log_row, log_col, row, col, basis.square().sum(-1), fan_in)
    return Gaussian((scale * x_aug) @ basis, std, kl)


def weights_kl(
    scale: Tensor,  # (..., r)
    log_row: Tensor,  # (..., r)
    log_col: Tensor,  # (..., c)
    row: Tensor,  # exp(log_row)
    col: Tensor,  # exp(log_col)
    norms: Tensor,  # (r,) or (*members, r): squared norms of the rows of V
    fan_in: float,
    count: Tensor | None = None,  # (r,): entry i of s and lr, and the sum norms[i], are those of so many rows
) -> Tensor:  # (...)
    """KL of W ~ MN(diag(s) V, diag(row) / fan_in, diag(col)) to MN(0, I / fan_in, I)."""
    rows = scale.shape[-1]
    c = log_col.shape[-1]
    if count is not None:
        row, log_row, rows = count * row, count * log_row, int(fan_in)
    squared_norm = ((scale * scale) @ norms.unsqueeze(-1)).squeeze(-1)
    log_det = c * log_row.sum(-1) + rows * log_col.sum(-1)
    # of sqrt(fan_in) W, whose prior is standard normal
    trace = row.sum(-1) * col.sum(-1)
    return gaussian_kl(trace, fan_in * squared_norm, rows * c, log_det)


class Saved(NamedTuple):
    """What `backward` needs."""

    x_aug: Tensor
    heads: Tensor  # (*members, rows, 2 r + c), overwritten by s, exp(lr), exp(lc)
    basis: Tensor
    scaled: Tensor  # (*members, rows, r) s * h~
    std: Tensor
    sums: (
        Tensor  # (*members, rows, 3): sum h~² exp(lr) / fan-in, sum of row variances, sum of column variances
    )
    norms: Tensor  # (*members, r): squared norms of the rows of V, if the KL is computed


def forward(x_aug: Tensor, heads: Tensor, basis: Tensor, options: MomentOptions) -> tuple[Gaussian, Saved]:
    """`reference`, compiled, and what `backward` needs; overwrites `heads`, since new memory is slow."""
    *members, r, c = basis.shape
    shape = x_aug.shape[:-1]
    scaled = torch.empty_like(x_aug)
    std = heads.new_empty((*shape, c))
    sums = heads.new_empty((*shape, 3))
    kl = heads.new_empty(shape if options.kl else 0)
    norms = heads.new_zeros((*members, r))  # read by the backward loop in any case
    arrays = x_aug, heads, basis, scaled, std, sums, norms, kl
    launch(moments_loop, arrays, math.prod(members), math.prod(shape), r, c, *options)
    saved = Saved(x_aug, heads, basis, scaled, std, sums, norms)
    return Gaussian(matmul(scaled, basis), std, kl), saved


def backward(
    saved: Saved, options: MomentOptions, d_mean: Tensor, d_std: Tensor, d_kl: Tensor, needs_input: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients with respect to x_aug (None unless `needs_input`), heads and basis.

    The gradient of the heads overwrites saved.heads.
    """
    x_aug, heads, basis, scaled, std, sums, norms = saved
    *members, r, c = basis.shape
    d_scaled = matmul(d_mean, basis.mT)
    d_basis = matmul(scaled.mT, d_mean)
    d_x_aug = torch.empty_like(x_aug) if needs_input else x_aug.new_empty(0)
    d_norms = torch.zeros_like(norms)
    gradients = d_scaled, d_std.contiguous(), d_kl.contiguous(), d_x_aug, d_norms
    sizes = math.prod(members), math.prod(x_aug.shape[:-1]), r, c
    launch(moments_backward_loop, (x_aug, heads, norms, std, sums, *gradients), *sizes, *options, needs_input)
    if options.kl:
        d_basis.addcmul_(d_norms.unsqueeze(-1), basis, value=2)
    return d_x_aug if needs_input else None, heads, d_basis


class _CompoundMoments(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x_aug: Tensor, heads: Tensor, basis: Tensor, options: MomentOptions
    ) -> tuple[Tensor, ...]:
        out, saved = forward(x_aug, heads, basis, options)
        ctx.save_for_backward(*saved)
        ctx.options = options
        return tuple(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mean: Tensor, d_std: Tensor, d_kl: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        saved = Saved(*ctx.saved_tensors)
        if retains_graph():  # another backward pass may follow
            saved = saved._replace(heads=saved.heads.clone())
        return *backward(saved, ctx.options, d_mean, d_std, d_kl, ctx.needs_input_grad[0]), None


@loop(FASTMATH, "heads scaled std sums norms kl")
def moments_loop(
    x_aug_: int, heads_: int, basis_: int, scaled_: int, std_: int, sums_: int, norms_: int, kl_: int,
    members: int, rows: int, r: int, c: int, bound: float, fan_in: bool, kl: bool,
) -> None:  # fmt: skip
    """`reference` except for the product with V; `Saved` says what heads, sums and norms hold afterwards."""
    x_aug = array(x_aug_, (rows, r))
    heads = array(heads_, (rows, 2 * r + c))
    basis = array(basis_, (members, r, c))
    scaled = array(scaled_, (rows, r))
    std = array(std_, (rows, c))
    sums = array(sums_, (rows, 3))
    norms = array(norms_, (members, r))
    kls = array(kl_, (rows if kl else 0,))
    high, fan, each = F(bound), F(r if fan_in else 1), rows_per_member(members, rows)
    if kl:
        for m in range(members):
            for i in range(r):
                v, square = basis[m, i], F(0)
                for j in range(c):
                    square += v[j] * v[j]
                norms[m, i] = square
    for b in range(rows):
        x, out, norm = x_aug[b], scaled[b], norms[b // each]
        s, row, col = heads[b, :r], heads[b, r : 2 * r], heads[b, 2 * r :]
        q_sum, row_sum, row_logs, squares = F(0), F(0), F(0), F(0)
        for i in range(r):
            log = min(max(row[i], -high), high)
            variance = exp(log)
            row[i] = variance
            out[i] = s[i] * x[i]
            q_sum += x[i] * x[i] * variance
            row_sum += variance
            row_logs += log
            squares += s[i] * s[i] * norm[i]
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
            kls[b] = compiled_gaussian_kl(row_sum * col_sum, fan * squares, r * c, log_det)


@loop(FASTMATH, "heads d_x_aug d_norms")
def moments_backward_loop(
    x_aug_: int, heads_: int, norms_: int, std_: int, sums_: int, d_scaled_: int, d_std_: int, d_kl_: int,
    d_x_aug_: int, d_norms_: int,
    members: int, rows: int, r: int, c: int, bound: float, fan_in: bool, kl: bool, needs_input: bool,
) -> None:  # fmt: skip
    """Gradients of `moments_loop` with respect to heads (overwritten), h~ and, accumulated, norms."""
    x_aug = array(x_aug_, (rows, r))
    heads = array(heads_, (rows, 2 * r + c))
    std = array(std_, (rows, c))
    sums = array(sums_, (rows, 3))
    norms = array(norms_, (members, r))
    d_norms = array(d_norms_, (members, r))
    d_scaled = array(d_scaled_, (rows, r))
    d_std = array(d_std_, (rows, c))
    d_kl = array(d_kl_, (rows if kl else 0,))
    d_x_aug = array(d_x_aug_, (rows if needs_input else 0, r))
    fan, each = F(r if fan_in else 1), rows_per_member(members, rows)
    low, high = exp(-F(bound)), exp(F(bound))  # a clamped log-variance has no gradient
    for b in range(rows):
        m = b // each
        x, d, norm, grad = x_aug[b], d_scaled[b], norms[m], d_norms[m]
        s, row, col = heads[b, :r], heads[b, r : 2 * r], heads[b, 2 * r :]
        half = F(0.5) * d_kl[b] if kl else F(0)
        d_deviation, deviation, row_sum, d_q = d_std[b], std[b], sums[b, 1], F(0)
        for j in range(c):
            d_log = F(0.5) * d_deviation[j] * deviation[j]  # with respect to log q and to lc alike
            d_q += d_log
            variance = col[j]
            col[j] = d_log + half * (row_sum * variance - F(r)) if low < variance < high else F(0)
        d_q /= sums[b, 0] * fan
        if needs_input:
            out = d_x_aug[b]
            for i in range(r):
                out[i] = F(2) * d_q * row[i] * x[i] + d[i] * s[i]
        trace, weight = half * sums[b, 2], F(2) * half * fan
        for i in range(r):
            variance = row[i]
            row[i] = variance * (x[i] * x[i] * d_q + trace) - half * F(c) if low < variance < high else F(0)
        for i in range(r):
            grad[i] += half * fan * s[i] * s[i]
            s[i] = d[i] * x[i] + weight * s[i] * norm[i]
