"""An affine map whose weights have a factorised Gaussian posterior: W_ij ~ N(mean_ij, S_ij²), independent.

h~ = [h; 1] gives W^T h~ ~ N(mean^T h~, (S²)^T h~²) exactly and independently over outputs: two products, whatever the number of
draws. Blundell et al. (2015); the pre-activations drawn in place of the weights are Kingma et al.'s (2015).
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from compound.nn.matrix_gaussian import affine, grad_weight, total
from compound.ops import layer_loops as layers
from compound.ops.jit import can_use_kernel, launch
from compound.precision import by_hand, full_precision


class Spread(NamedTuple):
    """What weights with means and independent deviations S give a divergence."""

    variance: Tensor  # (in, out) S²
    squares: Tensor  # (in,) sums of mean² along its rows
    trace: float  # sum of S²
    logs: float  # sum of log S


def integrated_variance(mean: Tensor, log_std: Tensor) -> Spread:
    """Compiled where that can be: one pass."""
    if not can_use_kernel(mean, log_std):
        variance = (2 * log_std).exp()
        return Spread(variance, mean.square().sum(1), variance.sum().item(), log_std.sum().item())
    variance, squares, sums = torch.empty_like(mean), mean.new_empty(len(mean)), mean.new_empty(2)
    launch(layers.spread, (mean, log_std, variance, squares, sums), *mean.shape)
    return Spread(variance, squares, *sums.tolist())


class MeanFieldLinear(nn.Module):
    """Weights W_ij ~ N(mean_ij, S_ij²) with prior N(0, prior_variance); the last row is the bias."""

    def __init__(self, mean: Tensor, log_std: float = -5.0, prior_variance: float = 1.0):
        super().__init__()
        self.mean = nn.Parameter(mean)  # (in + 1, out)
        self.log_std = nn.Parameter(torch.full_like(mean, log_std))  # log S
        self.precision = 1 / prior_variance

    @full_precision
    def moments(self, h: Tensor) -> tuple[Tensor, Tensor]:  # (rows, out) each
        """Mean and standard deviation of h~ W for h (rows, in)."""
        return affine(h, self.mean), affine(h * h, (2 * self.log_std).exp()).sqrt()

    @full_precision
    def sample(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:  # (draws, rows, out) and ()
        """h~ W from noise (draws, rows, out), which it uses up, and the KL of the posterior to the prior."""
        return _Sample.apply(h, self.mean, self.log_std, noise, self.precision)


class _Sample(torch.autograd.Function):
    """One step of autograd: S² is computed once for product and KL, and the KL's gradient joins that of the products."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, h: Tensor, mean: Tensor, log_std: Tensor, noise: Tensor, precision: float
    ) -> tuple[Tensor, Tensor]:
        variance, sizes, trace, logs = integrated_variance(mean, log_std)
        squares = h * h
        std = affine(squares, variance).sqrt_()
        out = torch.addcmul(affine(h, mean), std, noise)
        trace += sizes.sum().item()
        kl = 0.5 * (precision * trace - mean.numel() * (1 + math.log(precision))) - logs
        ctx.save_for_backward(h, squares, mean, variance, noise.div_(std))
        ctx.precision = precision
        return out, mean.new_full((), kl)

    @staticmethod
    @by_hand
    def backward(ctx: Any, d_out: Tensor, d_kl: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        h, squares, mean, variance, slope = ctx.saved_tensors
        whole = d_kl.item()
        d_mean, d_q = total(d_out), total(d_out * slope)  # (rows, out), the second twice that w.r.t. std²
        d_h = (
            torch.mm(d_mean, mean[:-1].mT).addcmul_(torch.mm(d_q, variance[:-1].mT), h)
            if ctx.needs_input_grad[0]
            else None
        )
        grad = spread_back(
            mean, variance, grad_weight(h, d_mean), grad_weight(squares, d_q), ctx.precision * whole, whole
        )
        return d_h, *grad, None, None


def spread_back(
    mean: Tensor, variance: Tensor, d_mean: Tensor, d_variance: Tensor, decay: float, whole: float
) -> tuple[Tensor, Tensor]:
    """Gradients w.r.t. mean and log S: those w.r.t. mean and, twice, w.r.t. the variance, which are used up, with those of
    whole times the divergence from a prior of precision decay / whole.
    """
    if can_use_kernel(mean, d_mean):
        launch(layers.spread_back, (mean, variance, d_mean, d_variance), mean.numel(), decay, whole)
        return d_mean, d_variance
    return d_mean + decay * mean, (d_variance + decay) * variance - whole
