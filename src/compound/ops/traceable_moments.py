"""`compound_moments` for layers that `torch.compile` may trace: one operation that it does not look into.

torch's own operations, which a trace would see instead, are slower than the compiled loops. An exported
program has them all the same: it must run without this library.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from compound.ops.compound_moments import Gaussian, MomentOptions, Saved, backward, compound_moments, forward
from compound.ops.jit import can_use_opaque_kernel


def traceable_moments(x_aug: Tensor, heads: Tensor, basis: Tensor, options: MomentOptions) -> Gaussian:
    """`compound_moments`, which reuses the memory of `heads`: the caller must not read it afterwards."""
    if can_use_opaque_kernel(x_aug, heads, basis):
        return Gaussian(*_moments(x_aug, heads, basis, *options)[:3])
    return compound_moments(x_aug, heads, basis, options, overwrite_heads=True)


@torch.library.custom_op("compound::moments", mutates_args=())
def _moments(
    x_aug: Tensor, heads: Tensor, basis: Tensor, bound: float, fan_in: bool, kl: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`forward` as one operation of a compiled network: mean, std and KL, then heads to norms of `Saved`."""
    copy = heads.clone(memory_format=torch.contiguous_format)
    out, saved = forward(x_aug.contiguous(), copy, basis, MomentOptions(bound, fan_in, kl))
    return *out, saved.heads, saved.scaled, saved.sums, saved.norms


@_moments.register_fake
def _(
    x_aug: Tensor, heads: Tensor, basis: Tensor, bound: float, fan_in: bool, kl: bool
) -> tuple[Tensor, ...]:
    *members, r, c = basis.shape
    shape = x_aug.shape[:-1]
    sizes = [
        (*shape, c),
        (*shape, c),
        shape if kl else (0,),
        heads.shape,
        x_aug.shape,
        (*shape, 3),
        (*members, r),
    ]
    return tuple(x_aug.new_empty(size) for size in sizes)


@torch.library.custom_op("compound::moments_backward", mutates_args=())
def _moments_backward(
    saved: Sequence[Tensor], bound: float, fan_in: bool, kl: bool, d_mean: Tensor, d_std: Tensor, d_kl: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`backward` as one operation, with respect to x_aug, heads and basis."""
    x_aug, heads, *rest = saved
    kept = Saved(x_aug.contiguous(), heads.clone(), *rest)
    d_x, *others = backward(kept, MomentOptions(bound, fan_in, kl), d_mean.contiguous(), d_std, d_kl, True)
    assert d_x is not None
    return d_x, others[0], others[1]


@_moments_backward.register_fake
def _(
    saved: Sequence[Tensor], bound: float, fan_in: bool, kl: bool, d_mean: Tensor, d_std: Tensor, d_kl: Tensor
) -> tuple[Tensor, ...]:
    return tuple(v.new_empty(v.shape) for v in saved[:3])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x_aug, _, basis, *ctx.options = inputs
    _, std, _, heads, scaled, sums, norms = output
    ctx.save_for_backward(x_aug, heads, basis, scaled, std, sums, norms)


def _gradients(
    ctx: Any, d_mean: Tensor, d_std: Tensor, d_kl: Tensor, *_: Tensor
) -> tuple[Tensor | None, ...]:
    found = _moments_backward(list(ctx.saved_tensors), *ctx.options, d_mean, d_std, d_kl)
    return *found, None, None, None


_moments.register_autograd(_gradients, setup_context=_keep)
