"""The compound linear layer without a weight matrix, in as few passes over (rows, inputs) as it takes.

W ~ MN(diag(s) V, diag(exp lr), diag(exp lc)) and h~ = [h; 1] give, exactly and independently over outputs,

    W^T h~ ~ N( V^T (s * h~),  (sum_i h~_i² exp(lr_i)) exp(lc) )

Backward is written by hand: autograd would walk more often over arrays of the size of the input, and keep more of them.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Gaussian(NamedTuple):
    """Independent Gaussians over pre-activations, and each row's KL of its weights to their prior (empty if not asked for)."""

    mean: Tensor  # (*members, rows, out)
    std: Tensor  # (*members, rows, out)
    kl: Tensor  # (*members, rows)

    def draw(self, noise: Tensor) -> Tensor:
        return torch.addcmul(self.mean, self.std, noise)


class Kept(NamedTuple):
    """What the backward pass of `forward` needs."""

    wide: Tensor
    heads: Tensor  # (*members, rows, 2 r + c) now s, exp(lr), exp(lc)
    basis: Tensor
    q: Tensor  # (*members, rows, 1)
    std: Tensor
    scaled: Tensor  # (*members, rows, r) s * h~
    sums: tuple[Tensor, Tensor, Tensor] | None  # for the KL: of row and column variances, and squared norms of V's rows
    clipped: bool


class Options(NamedTuple):
    bound: float  # log-variances are held within ± this
    fan_in: bool  # every weight variance, and that of the prior N(0, 1), is divided by in + 1
    kl: bool


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product without the detours of `@`, which cost as much as a small product; few columns go faster as few rows."""
    product = torch.bmm if a.ndim == 3 else torch.mm
    return product(b.mT, a.mT).mT.contiguous() if b.shape[-1] <= 16 else product(a, b)


@lru_cache(maxsize=64)
def _log_weights(r: int, c: int, dtype: torch.dtype, device: torch.device) -> Tensor:  # (2 r + c, 1)
    """What the KL takes of the heads: nothing of s, -c of each row's log-variance, -r of each column's."""
    return torch.cat([torch.full((n, 1), value) for n, value in ((r, 0.0), (r, -float(c)), (c, -float(r)))]).to(device, dtype)


def forward(wide: Tensor, heads: Tensor, basis: Tensor, options: Options) -> tuple[Gaussian, Kept]:
    """Pre-activations for h~ (*members, rows, r = in + 1), from the heads (s, lr, lc), (*members, rows, 2 r + c), and V.

    Uses up `heads`: fresh memory of this size costs more than the arithmetic on it.
    """
    r, c = basis.shape[-2:]
    scale, logs = heads[..., :r], heads[..., r:]
    # seldom: looking is cheaper than clamping always, and at all heads, which lie in one piece, than at their part
    clipped = beyond(heads, options.bound) and beyond(logs, options.bound)
    if clipped:
        logs.clamp_(-options.bound, options.bound)
    log_sum = heads @ _log_weights(r, c, heads.dtype, heads.device) if options.kl else None
    row, col = logs.exp_()[..., :r], heads[..., 2 * r :]
    buffer = row * wide  # one buffer, three uses
    q = buffer.mul_(wide).sum(-1, keepdim=True)
    if options.fan_in:
        q /= r
    std = (q * col).sqrt_()
    sums = None
    divergence = q.new_empty(0)
    if log_sum is not None:
        sums = row.sum(-1, keepdim=True), col.sum(-1, keepdim=True), basis.square().sum(-1, keepdim=True)
        divergence = log_sum.addcmul_(sums[0], sums[1])
        divergence.add_(torch.mul(scale, scale, out=buffer) @ sums[2], alpha=r if options.fan_in else 1)
        divergence = divergence.sub_(r * c).mul_(0.5).squeeze(-1)
    torch.mul(scale, wide, out=buffer)
    return Gaussian(dot(buffer, basis), std, divergence), Kept(wide, heads, basis, q, std, buffer, sums, clipped)


def backward(
    kept: Kept, options: Options, d_mean: Tensor, d_std: Tensor, d_kl: Tensor, inputs: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients towards h~ (where `inputs`), heads and V. The gradient of the heads takes their own place in memory."""
    wide, heads, basis, q, std, scaled, sums, clipped = kept
    r, c = basis.shape[-2:]
    scale, row, col = heads[..., :r], heads[..., r : 2 * r], heads[..., 2 * r :]
    free = _within(heads[..., r:], options.bound) if clipped else None

    d_log = (d_std * std).mul_(0.5)  # towards log q and lc alike, (*members, rows, out)
    d_q = d_log.sum(-1, keepdim=True).div_(q)  # (*members, rows, 1)
    if options.fan_in:
        d_q /= r
    buffer = dot(d_mean, basis.mT)  # towards s * h~, (*members, rows, r)
    d_basis = dot(scaled.mT, d_mean)
    d_wide = (row * wide).mul_(2 * d_q).addcmul_(buffer, scale) if inputs else None
    if sums is not None:
        row_sum, col_sum, norms = sums
        half = d_kl.unsqueeze(-1) * 0.5  # (*members, rows, 1)
        weight = half * (2 * r if options.fan_in else 2)
        d_basis.addcmul_(torch.mul(scale, scale, out=scaled).mT @ weight, basis)
        scale.mul_(norms.mT).mul_(weight).addcmul_(buffer, wide)
        torch.mul(wide, wide, out=buffer).mul_(d_q).add_(half * col_sum)
        row.mul_(buffer).sub_(half, alpha=c)
        torch.addcmul(d_log.sub_(half, alpha=r), half * row_sum, col, out=col)
    else:
        torch.mul(buffer, wide, out=scale)
        row.mul_(wide).mul_(wide).mul_(d_q)
        col.copy_(d_log)
    if free is not None:
        heads[..., r:].mul_(free)
    return d_wide, heads, d_basis


def beyond(values: Tensor, bound: float) -> bool:
    """Whether some value lies outside ± bound."""
    low, high = torch.aminmax(values)
    return low.item() < -bound or high.item() > bound


def _within(variances: Tensor, bound: float) -> Tensor:
    """Which log-variances were not clamped; those that were have no gradient."""
    return variances.log().abs() < bound * (1 - 1e-6)


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wide: Tensor, heads: Tensor, basis: Tensor, options: Options) -> tuple[Tensor, ...]:  # type: ignore[override]
        out, kept = forward(wide, heads.clone(), basis, options)
        keep(ctx, kept)
        ctx.options = options
        return tuple(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mean: Tensor, d_std: Tensor, d_kl: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        kept = kept_by(ctx.saved_tensors, ctx)
        kept = kept._replace(heads=kept.heads.clone(), scaled=kept.scaled.clone())  # backward may be asked for again
        return *backward(kept, ctx.options, d_mean, d_std, d_kl, ctx.needs_input_grad[0]), None


def moments(wide: Tensor, heads: Tensor, basis: Tensor, options: Options) -> Gaussian:
    """`forward` with a gradient; leaves heads alone."""
    return Gaussian(*_Moments.apply(wide, heads, basis, options))


def keep(ctx: Any, kept: Kept, *more: Tensor) -> None:
    """Save for backward what the moments need, and more."""
    *tensors, sums, ctx.clipped = kept
    ctx.kl = sums is not None
    ctx.save_for_backward(*tensors, *(sums or ()), *more)


def kept_by(tensors: tuple[Tensor, ...], ctx: Any) -> Kept:
    wide, heads, basis, q, std, scaled, *more = tensors
    return Kept(wide, heads, basis, q, std, scaled, (more[0], more[1], more[2]) if ctx.kl else None, ctx.clipped)
