"""Bounds on the predictive of a regression model, from its predictive on training rows.

Away from the data the outputs of a network grow linearly, and log-variances up to their clamp: means leave
the range of the target, and variances grow by orders of magnitude and would count as noise. So, before far
noise is added:

    every mean lies within the training range ± its width,
    aleatoric variance <= MULTIPLE times the largest on training rows,
    variance <= MULTIPLE² times the largest on training rows, and <= (LARGEST std of the target)².

Aleatoric variance beyond its bound counts as epistemic, and so does the squared change of a clipped mean.
Rows within the bounds are unchanged, bit for bit.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from compound.distributions import weighted_mean
from compound.predictive import GaussianPredictive

MULTIPLE = 4.0
LARGEST = 9.0
NONE = 1e30  # stands for no bound


class Limits(nn.Module):
    """The bounds of one model; none until fitted."""

    low: Tensor  # (targets,) lower bounds of means
    high: Tensor  # (targets,) upper bounds of means
    aleatoric: Tensor  # (targets,) upper bounds of the aleatoric variance
    total: Tensor  # (targets,) upper bounds of the variance

    def __init__(self, targets: int):
        super().__init__()
        for name, value in (("low", -NONE), ("high", NONE), ("aleatoric", NONE), ("total", NONE)):
            self.register_buffer(name, torch.full((targets,), value, dtype=torch.float32))

    def fit(self, y: Tensor, predictive: GaussianPredictive) -> None:
        """Set the bounds from training targets (rows, targets) and the model's predictive of some rows."""
        low = y.amin(0)
        high = y.amax(0)
        width = high - low
        variance = y.double().var(0, correction=0).to(y.dtype)
        largest = LARGEST**2 * torch.where(variance > 0, variance, NONE)  # a constant target has no scale
        self.low = low - width
        self.high = high + width
        self.total = torch.minimum(MULTIPLE**2 * predictive.total.amax(0), largest)
        self.aleatoric = torch.minimum(MULTIPLE * predictive.aleatoric.amax(0), self.total)

    def forward(self, p: GaussianPredictive) -> GaussianPredictive:
        """Clip means and variances of a predictive to the bounds; rows within them are unchanged."""
        tiny = torch.finfo(p.means.dtype).tiny
        clamped = p.means.clamp(self.low, self.high)
        # a clipped mean is wrong by about as much as it was moved, or more
        variances = torch.minimum(p.variances + (p.means - clamped).square(), self.total)
        mean = weighted_mean(clamped, p.log_weights)
        total = weighted_mean(variances + (clamped - mean).square(), p.log_weights)  # of the bounded mixture
        shrink = (self.total / total.clamp_min(tiny)).clamp_max(1)  # (rows, targets)
        ratio = (self.aleatoric / p.aleatoric.clamp_min(tiny)).clamp_max(1)
        beyond = (p.total > self.total) | (ratio < 1) | (clamped != p.means).any(0)
        total = torch.minimum(total, self.total)
        component = torch.minimum(ratio * p.component, total)
        mixing = torch.minimum(ratio * p.mixing, total - component)
        return replace(
            p,
            component=torch.where(beyond, component, p.component),
            mixing=torch.where(beyond, mixing, p.mixing),
            posterior=torch.where(beyond, total - component - mixing, p.posterior),
            means=torch.where(beyond, mean + shrink.sqrt() * (clamped - mean), p.means),
            variances=torch.where(beyond, shrink * variances, p.variances),
        )
