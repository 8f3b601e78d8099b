"""A layer with matrix-normal weights: draws of its outputs and its KL, in one autograd node.

    W ~ MN(M, diag(a), diag(b)),    p(W) = MN(0, p I, I),    h~ W ~ N(h~ M, (h~² a) b),    h~ = [h; 1]

`reference` is the definition, by `noisy_affine` and `matrix_normal`. The autograd function computes the
factors' moments once for outputs and KL, and adds the gradient of the KL to that of the outputs.
"""

import math
from typing import Any

import torch
from torch import Tensor

from compound.ops import matrix_normal, noisy_affine
from compound.ops.affine import affine, append_ones, grad_weight, sum_draws
from compound.ops.gaussian_kl import gaussian_kl
from compound.ops.jit import is_tracing
from compound.precision import once_differentiable


def matrix_normal_linear(
    h: Tensor,  # (rows, in)
    mean: Tensor,  # (in + 1, out)
    log_row: Tensor,  # (1, in + 1): log a
    log_col: Tensor,  # (out,): log b
    noise: Tensor,  # (draws, rows, out): standard normal, overwritten
    prior_variance: float,
) -> tuple[Tensor, Tensor]:  # (draws, rows, out), ()
    """Draws of h~ W and the KL of W's distribution to its prior; differentiable."""
    if is_tracing():
        return reference(h, mean, log_row, log_col, noise, prior_variance)
    return _MatrixNormalLinear.apply(h, mean, log_row, log_col, noise, prior_variance)  # type: ignore[no-any-return]


def reference(
    h: Tensor, mean: Tensor, log_row: Tensor, log_col: Tensor, noise: Tensor, prior_variance: float
) -> tuple[Tensor, Tensor]:
    """The definition of `matrix_normal_linear`."""
    out = noisy_affine.reference(append_ones(h), mean, log_row, log_col, noise, (mean.shape[1],))
    return out, matrix_normal.reference(mean, log_row[0], log_col, prior_variance)


def row_scale(squared: Tensor, row: Tensor) -> Tensor:  # (rows,)
    """sqrt(h~² a) from h² (rows, in) and a (in + 1,)."""
    return torch.addmv(row[-1:], squared, row[:-1]).sqrt()


class _MatrixNormalLinear(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, h: Tensor, mean: Tensor, log_row: Tensor, log_col: Tensor, noise: Tensor, prior: float
    ) -> tuple[Tensor, Tensor]:
        row = log_row.exp()[0]
        col = log_col.exp()
        squared = h * h
        noise = noise.mul_(col.sqrt())
        scale = row_scale(squared, row)
        row_sum = row.sum().item()
        col_sum = col.sum().item()
        mahalanobis = torch.dot(mean.view(-1), mean.view(-1)).item() / prior
        log_det = len(col) * log_row.sum().item() + len(row) * log_col.sum().item()
        log_det_ratio = log_det - mean.numel() * math.log(prior)
        kl = gaussian_kl(row_sum * col_sum / prior, mahalanobis, mean.numel(), log_det_ratio)
        ctx.save_for_backward(h, squared, mean, row, col, scale, noise)
        ctx.numbers = row_sum, col_sum, 1 / prior
        out = torch.addcmul(affine(h, mean), noise, scale.unsqueeze(-1))
        return out, mean.new_full((), kl)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_kl: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        h, squared, mean, row, col, scale, noise = ctx.saved_tensors
        row_sum, col_sum, precision = ctx.numbers
        half = 0.5 * d_kl.item()
        decay = half * precision
        d_mean = sum_draws(d_out)  # (rows, out)
        product = sum_draws(d_out * noise)  # (rows, out): with respect to log scale and half of log b
        d_q = product.sum(-1).div_(scale).mul_(0.5)  # (rows,): with respect to scale²
        d_row = torch.cat([torch.mv(squared.mT, d_q), d_q.sum().view(1)])
        d_row = d_row.add_(decay * col_sum).mul_(row).sub_(half * len(col))
        d_col = torch.mv(product.mT, scale).mul_(0.5).add_(col, alpha=decay * row_sum).sub_(half * len(row))
        d_h = None
        if ctx.needs_input_grad[0]:
            d_h = torch.mm(d_mean, mean[:-1].mT).addcmul_(torch.outer(d_q, row[:-1]), h, value=2)
        d_weight = grad_weight(h, d_mean).add_(mean, alpha=2 * decay)
        return d_h, d_weight, d_row.unsqueeze(0), d_col, None, None
