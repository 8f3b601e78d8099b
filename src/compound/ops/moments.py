"""The compound linear layer without a weight matrix, in as few passes over (rows, inputs) as it takes.

W ~ MN(diag(s) V, diag(exp lr), diag(exp lc)) and h~ = [h; 1] give, exactly and independently over outputs,

    W^T h~ ~ N( V^T (s * h~),  (sum_i h~_i² exp(lr_i)) exp(lc) )

`reference` is the formula. `forward` and `backward` are the same in single precision, compiled: torch would walk over arrays of the
size of the input a dozen times, and keep several of them.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from compound.compat import graph_is_kept
from compound.ops import layer_loops as layers
from compound.ops.jit import can_use_kernel, launch
from compound.precision import by_hand


class Gaussian(NamedTuple):
    """Independent Gaussians over pre-activations, and each row's KL of its weights to their prior (empty if not asked for)."""

    mean: Tensor  # (*members, rows, out)
    std: Tensor  # (*members, rows, out)
    kl: Tensor  # (*members, rows)

    def draw(self, noise: Tensor) -> Tensor:
        return torch.addcmul(self.mean, self.std, noise)


class Saved(NamedTuple):
    """What the backward pass of `forward` needs."""

    wide: Tensor
    heads: Tensor  # (*members, rows, 2 r + c) now s, exp(lr), exp(lc)
    basis: Tensor
    scaled: Tensor  # (*members, rows, r) s * h~
    std: Tensor
    sums: Tensor  # (*members, rows, 3) of h~² exp(lr) / fan-in, and of row and of column variances
    norms: Tensor  # (*members, r) squared norms of V's rows, where the KL is asked for


class Options(NamedTuple):
    bound: float  # log-variances are held within ± this
    fan_in: bool  # every weight variance, and that of the prior N(0, 1), is divided by in + 1
    kl: bool


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product without the detours of `@`, which cost as much as a small product; few columns go faster as few rows."""
    product = torch.bmm if a.ndim == 3 else torch.mm
    return product(b.mT, a.mT).mT.contiguous() if b.shape[-1] <= 16 else product(a, b)


def reference(wide: Tensor, heads: Tensor, basis: Tensor, options: Options) -> Gaussian:
    """Pre-activations for h~ (*members, rows, r = in + 1), from the heads (s, lr, lc), (*members, rows, 2 r + c), and V."""
    r, c = basis.shape[-2:]
    scale, log_row, log_col = heads.split([r, r, c], -1)
    log_row, log_col = (logs.clamp(-options.bound, options.bound) for logs in (log_row, log_col))
    row, col = log_row.exp(), log_col.exp()
    fan = r if options.fan_in else 1
    std = ((wide * wide * row).sum(-1, keepdim=True) * col / fan).sqrt()
    divergence = std.new_empty(0)
    if options.kl:
        squares = (scale * scale) @ basis.square().sum(-1, keepdim=True)
        trace = row.sum(-1) * col.sum(-1) + fan * squares.squeeze(-1)
        divergence = 0.5 * (trace - r * c - c * log_row.sum(-1) - r * log_col.sum(-1))
    return Gaussian(matmul(scale * wide, basis), std, divergence)


def forward(wide: Tensor, heads: Tensor, basis: Tensor, options: Options) -> tuple[Gaussian, Saved]:
    """`reference`, compiled. Uses up `heads`: fresh memory of this size costs more than the arithmetic on it."""
    *members, r, c = basis.shape
    shape = wide.shape[:-1]
    scaled, std = torch.empty_like(wide), heads.new_empty((*shape, c))
    sums, divergence = (heads.new_empty(size) for size in ((*shape, 3), shape if options.kl else 0))
    norms = heads.new_zeros((*members, r))  # the loop back reads them in any case
    arrays = wide, heads, basis, scaled, std, sums, norms, divergence
    launch(layers.moments, arrays, math.prod(members), math.prod(shape), r, c, *options)
    return Gaussian(matmul(scaled, basis), std, divergence), Saved(
        wide, heads, basis, scaled, std, sums, norms
    )


def backward(
    kept: Saved, options: Options, d_mean: Tensor, d_std: Tensor, d_kl: Tensor, inputs: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients w.r.t. h~ (where `inputs`), heads and V. The gradient of the heads takes their own place in memory."""
    wide, heads, basis, scaled, std, sums, norms = kept
    *members, r, c = basis.shape
    d_scaled, d_basis = matmul(d_mean, basis.mT), matmul(scaled.mT, d_mean)
    d_wide = torch.empty_like(wide) if inputs else wide.new_empty(0)
    d_norms = torch.zeros_like(norms)
    arrays = wide, heads, norms, std, sums, d_scaled, d_std.contiguous(), d_kl.contiguous(), d_wide, d_norms
    launch(
        layers.moments_back, arrays, math.prod(members), math.prod(wide.shape[:-1]), r, c, *options, inputs
    )
    if options.kl:
        d_basis.addcmul_(d_norms.unsqueeze(-1), basis, value=2)
    return d_wide if inputs else None, heads, d_basis


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wide: Tensor, heads: Tensor, basis: Tensor, options: Options) -> tuple[Tensor, ...]:  # type: ignore[override]
        out, kept = forward(
            wide.contiguous(), heads.clone(memory_format=torch.contiguous_format), basis, options
        )
        ctx.save_for_backward(*kept)
        ctx.options = options
        return tuple(out)

    @staticmethod
    @by_hand
    def backward(ctx: Any, d_mean: Tensor, d_std: Tensor, d_kl: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        kept = Saved(*ctx.saved_tensors)
        if graph_is_kept():  # another backward may come
            kept = kept._replace(heads=kept.heads.clone())
        return *backward(kept, ctx.options, d_mean, d_std, d_kl, ctx.needs_input_grad[0]), None


def moments(wide: Tensor, heads: Tensor, basis: Tensor, options: Options) -> Gaussian:
    """Compiled where that can be, with a gradient; leaves heads alone."""
    if not can_use_kernel(wide, heads, basis):
        return reference(wide, heads, basis, options)
    return Gaussian(*_Moments.apply(wide, heads, basis, options))
