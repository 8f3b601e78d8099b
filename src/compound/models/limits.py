"""Bounds on a regression network's own answer, from what it said about the rows it was fitted on.

Away from the data a network's outputs run on in straight lines, and log-variances run on until their clamp: means leave the range of
the target, variances grow by orders of magnitude and would be called noise. Before distance-aware noise is added:

    every mean lies within the training range ± its width,
    aleatoric variance <= MULTIPLE times the largest on training rows,
    variance <= MULTIPLE² times the largest on training rows, and <= (LARGEST standard deviations of the target)²,

and what was aleatoric beyond its bound is epistemic: nothing like it was seen. So is the square of what a mean is
moved by. Rows within the bounds keep their bits.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from compound.distributions import weighted_mean
from compound.predictive import GaussianPredictive

MULTIPLE = 4.0  # of a variance
LARGEST = 9.0  # standard deviations of the target
NONE = 1e30  # no bound


class Limits(nn.Module):
    """The bounds of one model; none until fitted."""

    low: Tensor  # (targets,) of means
    high: Tensor  # (targets,)
    aleatoric: Tensor  # (targets,) of variances
    total: Tensor  # (targets,)

    def __init__(self, targets: int):
        super().__init__()
        for name, value in (("low", -NONE), ("high", NONE), ("aleatoric", NONE), ("total", NONE)):
            self.register_buffer(name, torch.full((targets,), value, dtype=torch.float32))

    def fit(self, y: Tensor, answer: GaussianPredictive) -> None:
        """From training targets (rows, targets) and the model's own answer to some of the training rows."""
        low, high = y.amin(0), y.amax(0)
        width, variance = high - low, y.double().var(0, correction=0).to(y.dtype)
        largest = LARGEST**2 * torch.where(variance > 0, variance, NONE)  # a constant target has no scale
        self.low, self.high = low - width, high + width
        self.total = torch.minimum(MULTIPLE**2 * answer.total.amax(0), largest)
        self.aleatoric = torch.minimum(MULTIPLE * answer.aleatoric.amax(0), self.total)

    def forward(self, answer: GaussianPredictive) -> GaussianPredictive:
        tiny = torch.finfo(answer.means.dtype).tiny
        clamped = answer.means.clamp(self.low, self.high)
        # a mean that had to be moved is wrong by at least about as much
        variances = torch.minimum(answer.variances + (answer.means - clamped).square(), self.total)
        mean = weighted_mean(clamped, answer.log_weights)
        total = weighted_mean(
            variances + (clamped - mean).square(), answer.log_weights
        )  # of the bounded mixture
        shrink = (self.total / total.clamp_min(tiny)).clamp_max(1)  # (rows, targets)
        believed = (self.aleatoric / answer.aleatoric.clamp_min(tiny)).clamp_max(1)
        beyond = (answer.total > self.total) | (believed < 1) | (clamped != answer.means).any(0)
        total = torch.minimum(total, self.total)
        component = torch.minimum(believed * answer.component, total)
        mixing = torch.minimum(believed * answer.mixing, total - component)
        return replace(
            answer,
            component=torch.where(beyond, component, answer.component),
            mixing=torch.where(beyond, mixing, answer.mixing),
            posterior=torch.where(beyond, total - component - mixing, answer.posterior),
            means=torch.where(beyond, mean + shrink.sqrt() * (clamped - mean), answer.means),
            variances=torch.where(beyond, shrink * variances, answer.variances),
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, value in self.named_buffers():  # a file from before there were bounds
            state_dict.setdefault(prefix + name, value)
        super()._load_from_state_dict(state_dict, prefix, *rest)
