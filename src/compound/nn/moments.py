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


def moments(x: Tensor, heads: Tensor, basis: Tensor, bound: float, fan_in: bool, kl: bool) -> Gaussian:
    """Pre-activations of the layer for inputs x (*members, rows, in), from the hypernetwork's heads (s, lr, lc).

    heads: (*members, rows, 2 (in + 1) + out), basis V: (*members, in + 1, out). Log-variances are held within ±bound.
    With `fan_in` every weight variance, and that of the prior N(0, 1), is divided by in + 1.
    """
    return Gaussian(*_Moments.apply(x, heads, basis, bound, fan_in, kl))


@lru_cache(maxsize=64)
def _log_weights(r: int, c: int, dtype: torch.dtype, device: torch.device) -> Tensor:  # (r + c, 1)
    """What the KL takes of the log-variances: -c of each row's, -r of each column's."""
    return torch.cat([torch.full((r, 1), -float(c)), torch.full((c, 1), -float(r))]).to(device, dtype)


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, heads: Tensor, basis: Tensor, bound: float, fan_in: bool, kl: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        r, c = basis.shape[-2:]
        i = r - 1
        logs = heads[..., r:]
        low, high = torch.aminmax(logs)
        clipped = low.item() < -bound or high.item() > bound  # seldom: looking is cheaper than clamping always
        if clipped:
            logs = logs.clamp(-bound, bound)
        variances = logs.exp()  # (*members, rows, r + c)
        row, col = variances[..., :i], variances[..., r:]
        square = x * x
        scaled = torch.empty((*heads.shape[:-1], r), dtype=heads.dtype, device=heads.device)
        inputs = scaled[..., :i]
        torch.mul(square, row, out=inputs)  # the buffer's first use; its second is s * h~
        q = torch.sum(inputs, -1, keepdim=True).add_(variances[..., i:r])  # (*members, rows, 1)
        if fan_in:
            q /= r
        std = (q * col).sqrt_()
        torch.mul(heads[..., :i], x, out=inputs)
        scaled[..., i] = heads[..., i]
        mean = scaled @ basis
        divergence = q.new_empty(0)
        if kl:
            sums = variances[..., :r].sum(-1, keepdim=True), col.sum(-1, keepdim=True)
            norms = basis.square().sum(-1, keepdim=True)  # (*members, r, 1)
            divergence = torch.addcmul(logs @ _log_weights(r, c, x.dtype, x.device), *sums)
            divergence.add_(heads[..., :r].square() @ norms, alpha=r if fan_in else 1).sub_(r * c).mul_(0.5)
        ctx.save_for_backward(x, heads, basis, variances, square, q, std, scaled)
        ctx.options = (bound, fan_in, kl, clipped)
        return mean, std, divergence.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mean: Tensor, d_std: Tensor, d_kl: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, heads, basis, variances, square, q, std, scaled = ctx.saved_tensors
        bound, fan_in, kl, clipped = ctx.options
        r, c = basis.shape[-2:]
        i = r - 1
        row, col = variances[..., :i], variances[..., r:]
        d_heads = torch.empty_like(heads)
        d_scale, d_row = d_heads[..., :i], d_heads[..., r : r + i]

        d_log = (d_std * std).mul_(0.5)  # towards log q and lc alike, (*members, rows, out)
        d_q = d_log.sum(-1, keepdim=True).div_(q)  # (*members, rows, 1)
        if fan_in:
            d_q /= r
        d_scaled = d_mean @ basis.mT  # (*members, rows, r)
        torch.mul(d_scaled[..., :i], x, out=d_scale)
        d_heads[..., i] = d_scaled[..., i]
        d_basis = scaled.mT @ d_mean
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = (d_scaled[..., :i] * heads[..., :i]).addcmul_(row * x, d_q, value=2)
            d_x = d_x.sum_to_size(x.shape)  # one x may serve all members
        if kl:
            half = 0.5 * d_kl.unsqueeze(-1)  # (*members, rows, 1)
            weight = half * (2 * r if fan_in else 2)
            norms = basis.square().sum(-1, keepdim=True)
            torch.mul(heads[..., :r], norms.mT, out=d_scaled)
            d_heads[..., :r].addcmul_(d_scaled, weight)
            d_basis.addcmul_(heads[..., :r].square().mT @ weight, basis)
            trace = half * col.sum(-1, keepdim=True)
            torch.addcmul(trace, square, d_q, out=d_row)
            torch.add(trace, d_q, out=d_heads[..., r + i : 2 * r])
            both = d_heads[..., r : 2 * r]
            torch.addcmul(half * -c, both, variances[..., :r], out=both)
            torch.addcmul(d_log - half * r, variances[..., :r].sum(-1, keepdim=True).mul_(half), col, out=d_heads[..., 2 * r :])
        else:
            torch.mul(square, d_q, out=d_row)
            d_row *= row
            torch.mul(d_q, variances[..., i:r], out=d_heads[..., r + i : 2 * r])
            d_heads[..., 2 * r :] = d_log
        if clipped:
            d_heads[..., r:].mul_(heads[..., r:].abs() <= bound)
        return d_x, d_heads, d_basis, None, None, None
