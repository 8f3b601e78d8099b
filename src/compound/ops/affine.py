"""Affine maps h~ W of h~ = [h; 1]: the bias is the last row of W.

A product with few columns is faster computed as its transpose, with few rows.
"""

from typing import Any, cast

import torch
from torch import Tensor

from compound.compat import transforms
from compound.precision import full_precision

NARROW = 16  # columns up to which a product is computed as its transpose
FEW, MANY = 64, 512  # so is the gradient of few inputs of which many outputs are computed


def append_ones(x: Tensor) -> Tensor:  # (..., in + 1)
    """h~ = [h; 1]: x (..., in) with the constant 1 appended to its last axis."""
    return torch.cat([x, x.new_ones((*x.shape[:-1], 1))], -1)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product a b of matrices, or of batches of them (three axes), without the dispatch cost of `@`."""
    return _by_transpose(a, b) if b.shape[-1] <= NARROW else _product(a, b)


def _product(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a, b) if a.ndim == 3 else torch.mm(a, b)


def _by_transpose(a: Tensor, b: Tensor) -> Tensor:
    return _product(b.mT, a.mT).mT.contiguous()


def linear(h: Tensor, weight: Tensor) -> Tensor:
    """h W for h (*members, rows, in), W (*members, in, out): `matmul` with a gradient by `matmul`."""
    if h.ndim != weight.ndim or h.ndim > 3 or transforms() is not None:
        return h @ weight
    inputs, outputs = weight.shape[-2:]
    if outputs <= NARROW or (inputs <= FEW and outputs >= MANY):
        return cast(Tensor, _NarrowLinear.apply(h, weight))
    return _product(h, weight)


class _NarrowLinear(torch.autograd.Function):
    """h W for few outputs, or for few inputs and many outputs."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(h, weight)
        return matmul(h, weight)

    @staticmethod
    @full_precision
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, Tensor]:  # type: ignore[override]
        h, weight = ctx.saved_tensors
        product = _product if weight.shape[-1] <= NARROW else _by_transpose
        return product(d_out, weight.mT) if ctx.needs_input_grad[0] else None, matmul(h.mT, d_out)


def affine(h: Tensor, weight: Tensor) -> Tensor:  # (rows, out)
    """h~ W for h (rows, in), W (in + 1, out), without forming h~."""
    if weight.shape[1] <= NARROW:
        return torch.addmm(weight[-1:].mT, weight[:-1].mT, h.mT).mT.contiguous()
    return torch.addmm(weight[-1], h, weight[:-1])


def grad_weight(h: Tensor, d_out: Tensor) -> Tensor:  # (in + 1, out)
    """The gradient of `affine` with respect to W, from h (rows, in) and the output's gradient (rows, out)."""
    d_weight = h.new_empty((h.shape[1] + 1, d_out.shape[1]))
    if d_out.shape[1] <= NARROW:
        d_weight[:-1] = torch.mm(d_out.mT, h).mT
    else:
        torch.mm(h.mT, d_out, out=d_weight[:-1])
    torch.sum(d_out, 0, out=d_weight[-1])
    return d_weight


def sum_draws(values: Tensor) -> Tensor:
    """The sum over draws, the first axis."""
    return values[0] if len(values) == 1 else values.sum(0)
