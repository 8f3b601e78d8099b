"""A layer with independent Gaussian weights: draws of its outputs and its KL, in one autograd node.

    W_ij ~ N(M_ij, S_ij²),    p(W_ij) = N(0, p),    h~ W ~ N(h~ M, h~² S²),    h~ = [h; 1]

Blundell et al. (2015); drawing pre-activations in place of weights is due to Kingma et al. (2015).
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from compound.ops.affine import affine, grad_weight, sum_draws
from compound.ops.gaussian_kl import gaussian_kl
from compound.ops.jit import FASTMATH, F, array, can_use_kernel, exp, launch, loop
from compound.precision import once_differentiable


def mean_field_linear(
    h: Tensor,  # (rows, in)
    mean: Tensor,  # (in + 1, out)
    log_std: Tensor,  # (in + 1, out): log S
    noise: Tensor,  # (draws, rows, out): standard normal, overwritten
    prior_variance: float,
) -> tuple[Tensor, Tensor]:  # (draws, rows, out), ()
    """Draws of h~ W and the KL of W's distribution to its prior: compiled where possible, differentiable."""
    if can_use_kernel(h, mean, log_std, noise):
        return _MeanFieldLinear.apply(h, mean, log_std, noise, prior_variance)  # type: ignore[no-any-return]
    return reference(h, mean, log_std, noise, prior_variance)


def reference(
    h: Tensor, mean: Tensor, log_std: Tensor, noise: Tensor, prior_variance: float
) -> tuple[Tensor, Tensor]:
    """The definition of `mean_field_linear`, for any dtype and device."""
    variance = (2 * log_std).exp()
    out_mean, out_std = moments(h, h * h, mean, variance)
    trace = variance.sum() / prior_variance
    mahalanobis = mean.square().sum() / prior_variance
    log_det_ratio = 2 * log_std.sum() - mean.numel() * math.log(prior_variance)
    kl = gaussian_kl(trace, mahalanobis, mean.numel(), log_det_ratio)
    return torch.addcmul(out_mean, out_std, noise), kl


def moments(h: Tensor, squared: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (rows, out) of h~ W, from h and h² (rows, in), M and S²."""
    return affine(h, mean), affine(squared, variance).sqrt()


class WeightStatistics(NamedTuple):
    """What the KL of independent Gaussian weights needs."""

    variance: Tensor  # (in, out): S²
    squared_norms: Tensor  # (in,): sums of M² along the rows
    variance_sum: float
    log_std_sum: float


def weight_statistics(mean: Tensor, log_std: Tensor) -> WeightStatistics:
    """The statistics of M and log S (in, out), in one compiled pass; float32 on the CPU only."""
    variance = torch.empty_like(mean)
    squared_norms = mean.new_empty(len(mean))
    sums = mean.new_empty(2)
    launch(statistics_loop, (mean, log_std, variance, squared_norms, sums), *mean.shape)
    return WeightStatistics(variance, squared_norms, *sums.tolist())


class _MeanFieldLinear(torch.autograd.Function):
    """Outputs and KL in one node: S² is computed once, and the gradients are added in place."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, h: Tensor, mean: Tensor, log_std: Tensor, noise: Tensor, prior: float
    ) -> tuple[Tensor, Tensor]:
        variance, squared_norms, variance_sum, log_std_sum = weight_statistics(mean, log_std)
        squared = h * h
        out_mean, out_std = moments(h, squared, mean, variance)
        out = torch.addcmul(out_mean, out_std, noise)
        n = mean.numel()
        mahalanobis = squared_norms.sum().item() / prior
        kl = gaussian_kl(variance_sum / prior, mahalanobis, n, 2 * log_std_sum - n * math.log(prior))
        ctx.save_for_backward(h, squared, mean, variance, noise.div_(out_std))
        ctx.precision = 1 / prior
        return out, mean.new_full((), kl)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_kl: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        h, squared, mean, variance, slope = ctx.saved_tensors
        kl_weight = d_kl.item()
        d_mean = sum_draws(d_out)  # (rows, out)
        d_variance = sum_draws(d_out * slope)  # (rows, out): twice that with respect to the variance
        d_h = None
        if ctx.needs_input_grad[0]:
            d_h = torch.mm(d_mean, mean[:-1].mT).addcmul_(torch.mm(d_variance, variance[:-1].mT), h)
        d_weight = grad_weight(h, d_mean)
        d_log_std = grad_weight(squared, d_variance)
        decay = ctx.precision * kl_weight
        arrays = mean, variance, d_weight, d_log_std
        launch(statistics_backward_loop, arrays, mean.numel(), decay, kl_weight)
        return d_h, d_weight, d_log_std, None, None


@loop(FASTMATH, "variance squared_norms sums")
def statistics_loop(
    mean_: int, log_std_: int, variance_: int, squared_norms_: int, sums_: int, rows: int, width: int
) -> None:
    """exp(2 log S), the sums of mean² along the rows, and the sums of S² and of log S."""
    mean = array(mean_, (rows, width))
    log_std = array(log_std_, (rows, width))
    variance = array(variance_, (rows, width))
    squared_norms = array(squared_norms_, (rows,))
    sums = array(sums_, (2,))
    trace, logs = 0.0, 0.0
    for i in range(rows):
        centre, deviation, out = mean[i], log_std[i], variance[i]
        square, row_trace, row_logs = F(0), F(0), F(0)
        for j in range(width):
            value = exp(F(2) * deviation[j])
            out[j] = value
            row_trace += value
            row_logs += deviation[j]
            square += centre[j] * centre[j]
        squared_norms[i] = square
        trace += float(row_trace)
        logs += float(row_logs)
    sums[0], sums[1] = trace, logs


@loop(FASTMATH, "d_mean d_log_std")
def statistics_backward_loop(
    mean_: int, variance_: int, d_mean_: int, d_log_std_: int, size: int, decay: float, kl_weight: float
) -> None:
    """Add the gradient of kl_weight * KL, with prior precision decay / kl_weight, to that of the outputs.

    d_log_std comes in as twice the gradient with respect to S² and leaves as the gradient with respect to log
    S.
    """
    mean = array(mean_, (size,))
    variance = array(variance_, (size,))
    d_mean = array(d_mean_, (size,))
    d_log_std = array(d_log_std_, (size,))
    shrink, entropy = F(decay), F(kl_weight)
    for i in range(size):
        d_mean[i] += shrink * mean[i]
        d_log_std[i] = (d_log_std[i] + shrink) * variance[i] - entropy
