"""Affine maps with drawn weights, whose variances learn from squared gradients.

Of weights W = M + S E, E standard normal, the expected loss L has the derivatives E[dL/dW] with respect to M
and 1/2 E[d²L/dW²] with respect to S². The second is replaced by half the mean over the data of the squared
gradient of one datum, which is positive and has less noise (Fisher information). Graves (2011).
"""

from typing import Any

import torch
from torch import Tensor

from compound.precision import once_differentiable


def drawn_affine(
    h_aug: Tensor,  # (draws, rows, in + 1): h~
    mean: Tensor,  # (in + 1, out)
    log_std: Tensor,  # (in + 1, out)
    noise: Tensor,  # (draws, in + 1, out): standard normal, one matrix for all rows of a draw
    share: Tensor,  # (rows,): the weight of each datum's log-likelihood, of one draw, in the loss
) -> Tensor:  # (draws, rows, out)
    """h~ W for each draw of W."""
    return _DrawnAffine.apply(h_aug, mean, log_std, noise, share)


class _DrawnAffine(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, h_aug: Tensor, mean: Tensor, log_std: Tensor, noise: Tensor, share: Tensor
    ) -> Tensor:
        std = log_std.exp()
        weight = mean + std * noise
        ctx.save_for_backward(h_aug, weight, std, share)
        return h_aug @ weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        h_aug, weight, std, share = ctx.saved_tensors
        d_mean = (h_aug.mT @ d_out).sum(0)
        # d_out holds share * gradient of a datum: squares are to count share times
        inverse = torch.where(share > 0, 1 / share, 0.0).unsqueeze(-1)
        squares = (h_aug.square().mT @ (inverse * d_out.square())).sum(0)
        d_log_std = squares * std.square()  # dL/dS² is half the squares, dS²/dlog S is 2 S²
        return d_out @ weight.mT, d_mean, d_log_std, None, None
