"""The compound linear layer without a weight matrix, in as few passes over (rows, inputs) as it takes.

W ~ MN(diag(s) V, diag(exp lr), diag(exp lc)) and h~ = [h; 1] give, exactly and independently over outputs,

    W^T h~ ~ N( V^T (s * h~),  (sum_i h~_i² exp(lr_i)) exp(lc) )

Backward is written by hand: autograd would walk about three times as often over arrays of the size of the input.
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
    heads: Tensor
    basis: Tensor
    variances: Tensor  # (*members, rows, r + c) exp of lr and lc
    q: Tensor  # (*members, rows, 1)
    std: Tensor
    scaled: Tensor  # (*members, rows, r) s * h~
    sums: tuple[Tensor, Tensor, Tensor] | None  # for the KL: of row and column variances, and squared norms of V's rows
    clipped: bool


class Options(NamedTuple):
    bound: float  # log-variances are held within ± this
    fan_in: bool  # every weight variance, and that of the prior N(0, 1), is divided by in + 1
    kl: bool


@lru_cache(maxsize=64)
def _log_weights(r: int, c: int, dtype: torch.dtype, device: torch.device) -> Tensor:  # (r + c, 1)
    """What the KL takes of the log-variances: -c of each row's, -r of each column's."""
    return torch.cat([torch.full((r, 1), -float(c)), torch.full((c, 1), -float(r))]).to(device, dtype)


def forward(wide: Tensor, heads: Tensor, basis: Tensor, options: Options) -> tuple[Gaussian, Kept]:
    """Pre-activations for h~ (*members, rows, r = in + 1), from the heads (s, lr, lc), (*members, rows, 2 r + c), and V."""
    r, c = basis.shape[-2:]
    scale, logs = heads[..., :r], heads[..., r:]
    low, high = torch.aminmax(logs)
    clipped = low.item() < -options.bound or high.item() > options.bound  # seldom: looking is cheaper than clamping always
    if clipped:
        logs = logs.clamp(-options.bound, options.bound)
    variances = logs.exp()
    row, col = variances[..., :r], variances[..., r:]
    buffer = row * wide  # one buffer, three uses
    q = buffer.mul_(wide).sum(-1, keepdim=True)
    if options.fan_in:
        q /= r
    std = (q * col).sqrt_()
    sums = None
    divergence = q.new_empty(0)
    if options.kl:
        sums = row.sum(-1, keepdim=True), col.sum(-1, keepdim=True), basis.square().sum(-1, keepdim=True)
        divergence = torch.addcmul(logs @ _log_weights(r, c, heads.dtype, heads.device), sums[0], sums[1])
        divergence.add_(torch.mul(scale, scale, out=buffer) @ sums[2], alpha=r if options.fan_in else 1)
        divergence = divergence.sub_(r * c).mul_(0.5).squeeze(-1)
    torch.mul(scale, wide, out=buffer)
    return Gaussian(buffer @ basis, std, divergence), Kept(wide, heads, basis, variances, q, std, buffer, sums, clipped)


def backward(
    kept: Kept, options: Options, d_mean: Tensor, d_std: Tensor, d_kl: Tensor, inputs: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients towards h~ (where `inputs`), heads and V."""
    wide, heads, basis, variances, q, std, scaled, sums, clipped = kept
    r, c = basis.shape[-2:]
    scale, row, col = heads[..., :r], variances[..., :r], variances[..., r:]
    d_heads = torch.empty_like(heads)
    d_scale, d_row, d_col = d_heads[..., :r], d_heads[..., r : 2 * r], d_heads[..., 2 * r :]

    d_log = (d_std * std).mul_(0.5)  # towards log q and lc alike, (*members, rows, out)
    d_q = d_log.sum(-1, keepdim=True).div_(q)  # (*members, rows, 1)
    if options.fan_in:
        d_q /= r
    buffer = d_mean @ basis.mT  # towards s * h~, (*members, rows, r)
    torch.mul(buffer, wide, out=d_scale)
    torch.mul(wide, d_q, out=d_row)
    d_basis = scaled.mT @ d_mean
    d_wide = (buffer * scale).addcmul_(row, d_row, value=2) if inputs else None
    if sums is not None:
        row_sum, col_sum, norms = sums
        half = d_kl.unsqueeze(-1) * 0.5  # (*members, rows, 1)
        weight = half * (2 * r if options.fan_in else 2)
        d_scale.addcmul_(torch.mul(scale, norms.mT, out=buffer), weight)
        d_basis.addcmul_(torch.mul(scale, scale, out=buffer).mT @ weight, basis)
        torch.addcmul(half * col_sum, d_row, wide, out=d_row)
        torch.addcmul(half * -c, d_row, row, out=d_row)
        torch.addcmul(d_log.sub_(half, alpha=r), half * row_sum, col, out=d_col)
    else:
        d_row.mul_(wide).mul_(row)
        d_col.copy_(d_log)
    if clipped:
        d_heads[..., r:].mul_(heads[..., r:].abs() <= options.bound)
    return d_wide, d_heads, d_basis


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wide: Tensor, heads: Tensor, basis: Tensor, options: Options) -> tuple[Tensor, ...]:  # type: ignore[override]
        out, kept = forward(wide, heads, basis, options)
        keep(ctx, kept)
        ctx.options = options
        return tuple(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mean: Tensor, d_std: Tensor, d_kl: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return *backward(kept_by(ctx), ctx.options, d_mean, d_std, d_kl, ctx.needs_input_grad[0]), None


def moments(wide: Tensor, heads: Tensor, basis: Tensor, options: Options) -> Gaussian:
    """`forward` with a gradient."""
    return Gaussian(*_Moments.apply(wide, heads, basis, options))


def keep(ctx: Any, kept: Kept, *more: Tensor) -> None:
    """Save for backward what the moments need, and more."""
    *tensors, sums, ctx.clipped = kept
    ctx.kl = sums is not None
    ctx.save_for_backward(*tensors, *(sums or ()), *more)


def kept_by(ctx: Any) -> Kept:
    tensors = ctx.saved_tensors
    return Kept(*tensors[:7], tuple(tensors[7:10]) if ctx.kl else None, ctx.clipped)
