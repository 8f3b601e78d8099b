"""Affine maps h~ W of h~ = [h; 1]: the bias is the last row of W.

A product with few columns is faster computed as its transpose, with few rows. Large products are computed by
oneDNN where it is faster than MKL: MKL leaves out AVX-512 on processors of AMD.
"""

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from compound.compat import onednn_linear, transforms
from compound.ops.jit import can_use_kernel
from compound.precision import full_precision

NARROW = 16  # columns up to which a product is computed as its transpose
FEW, MANY = 64, 512  # so is the gradient of few inputs of which many outputs are computed
LARGE = 1_000_000  # multiplications of a product from which oneDNN is faster
LARGE_OF_BATCH = 2_000_000  # of each product of a batch: these are computed one by one, and stacked


def append_ones(x: Tensor) -> Tensor:  # (..., in + 1)
    """h~ = [h; 1]: x (..., in) with the constant 1 appended to its last axis."""
    return torch.cat([x, x.new_ones((*x.shape[:-1], 1))], -1)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product a b of matrices, or of batches of them (three axes), without the dispatch cost of `@`."""
    return _by_transpose(a, b) if b.shape[-1] <= NARROW else _product(a, b)


def _product(a: Tensor, b: Tensor) -> Tensor:
    if _is_large(a, b) and not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)):
        if a.ndim == 2:
            return _by_onednn(a, b)
        return torch.stack([_by_onednn(*pair) for pair in zip(a.unbind(), b.unbind(), strict=True)])
    return torch.bmm(a, b) if a.ndim == 3 else torch.mm(a, b)


def _is_large(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN computes the product a b faster."""
    count = a.shape[-2] * a.shape[-1] * b.shape[-1]
    limit = LARGE if a.ndim == 2 or len(a) == 1 else LARGE_OF_BATCH
    return count >= limit and prefers_onednn() and can_use_kernel(a, b)


@cache
def prefers_onednn() -> bool:
    """Whether oneDNN may use wider vectors than MKL: AVX-512 on a processor of AMD."""
    import llvmlite.binding

    has_onednn = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_onednn and str(llvmlite.binding.get_host_cpu_name()).startswith("znver")


def _by_onednn(a: Tensor, b: Tensor) -> Tensor:
    """The product of a (m, k) and b (k, n) by oneDNN, which copies `a` if its columns are contiguous.

    Where b has fewer columns than `a` has rows, it is cheaper to copy b and the result.
    """
    if a.stride(1) != 1 and a.shape[0] > b.shape[1]:
        return onednn_linear(b.mT, a).mT.contiguous()
    return onednn_linear(a, b.mT)


def _by_transpose(a: Tensor, b: Tensor) -> Tensor:
    return _product(b.mT, a.mT).mT.contiguous()


def linear(h: Tensor, weight: Tensor) -> Tensor:
    """h W for h (*members, rows, in), W (*members, in, out): `matmul` with a gradient by `matmul`."""
    if h.ndim != weight.ndim or h.ndim > 3 or transforms() is not None:
        return h @ weight
    inputs, outputs = weight.shape[-2:]
    if outputs <= NARROW or (inputs <= FEW and outputs >= MANY) or _is_large(h, weight):
        return cast(Tensor, _Linear.apply(h, weight))
    return _product(h, weight)


class _Linear(torch.autograd.Function):
    """h W for few outputs, for few inputs and many outputs, or for many of all."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(h, weight)
        return matmul(h, weight)

    @staticmethod
    @full_precision
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, Tensor]:  # type: ignore[override]
        h, weight = ctx.saved_tensors
        inputs, outputs = weight.shape[-2:]
        is_wide = inputs <= FEW and outputs >= MANY and not _is_large(d_out, weight.mT)
        product = _by_transpose if is_wide else _product
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
