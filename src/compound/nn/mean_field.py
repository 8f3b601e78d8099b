"""An affine map whose weights have a factorised Gaussian posterior: W_ij ~ N(mean_ij, S_ij²), independent."""

import math

import torch
from torch import Tensor, nn

from compound.ops.gaussian_kl import gaussian_kl
from compound.ops.mean_field_linear import mean_field_linear, moments
from compound.precision import full_precision


class MeanFieldLinear(nn.Module):
    """Weights W_ij ~ N(mean_ij, S_ij²) with prior N(0, prior_variance); the last row is the bias.

    `mean` (in + 1, out) is the initial mean, `log_std` the initial log S_ij.
    """

    def __init__(self, mean: Tensor, log_std: float = -5.0, prior_variance: float = 1.0):
        super().__init__()
        self.mean = nn.Parameter(mean)  # (in + 1, out)
        self.log_std = nn.Parameter(torch.full_like(mean, log_std))  # log S
        self.prior_variance = prior_variance

    @full_precision
    def moments(self, h: Tensor) -> tuple[Tensor, Tensor]:  # (rows, out) each
        """Mean and standard deviation of h~ W for h (rows, in)."""
        return moments(h, h * h, self.mean, (2 * self.log_std).exp())

    @full_precision
    def sample(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:  # (draws, rows, out) and ()
        """Draws of h~ W for h (rows, in), and the KL of the posterior to the prior.

        `noise` (draws, rows, out) is standard normal and is overwritten.
        """
        return mean_field_linear(h, self.mean, self.log_std, noise, self.prior_variance)

    def kl(self) -> Tensor:
        """The KL of the posterior to the prior, ()."""
        variance, p = (2 * self.log_std).exp(), self.prior_variance
        terms = (variance.sum() / p, self.mean.square().sum() / p, self.mean.numel())
        return gaussian_kl(*terms, 2 * self.log_std.sum() - self.mean.numel() * math.log(p))
