"""Gradients as if whole weight matrices had been drawn, where only pre-activations are.

A row's weights W = M + diag(a) E diag(b) give h~ W = h~ M + (u E) |q| b with q = a * h~ and u = q / |q|. Only
the part u E of the noise is needed, one number per output. Its gradients are local reparametrisation's; the
derivative of drawn weights with respect to q, E (b * g) for a gradient g of the pre-activations, has a
further part, that of E orthogonal to u: given the pre-activations it is Gaussian with mean 0, of the law

    |b * g| (ξ - u (u . ξ)),     ξ standard normal, one vector per row.

So adding it gives the gradients of drawn weights, exactly in law. They have the same mean and more variance.
"""

from typing import Any

import torch
from torch import Tensor

from compound.precision import once_differentiable


def drawn_weights(
    mean: Tensor,  # (*members, rows, out): h~ M, or a draw of h~ W
    q: Tensor,  # (*members, rows, in + 1): h~ times the standard deviations of the rows of W
    col: Tensor,  # standard deviations of the columns, broadcast with `mean`
    noise: Tensor,  # (*members, rows, in + 1): standard normal, one vector for each W
) -> Tensor:  # (*members, rows, out)
    """`mean` unchanged; q gets the gradient that weights drawn for every row would give it beside local's."""
    return _DrawnWeights.apply(mean, q, col, noise)


class _DrawnWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, q: Tensor, col: Tensor, noise: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(q, col, noise)
        return mean.view_as(mean)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mean: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, col, noise = ctx.saved_tensors
        unit = q / q.norm(dim=-1, keepdim=True)
        orthogonal = noise - unit * (unit * noise).sum(-1, keepdim=True)
        return d_mean, (d_mean * col).norm(dim=-1, keepdim=True) * orthogonal, None, None
