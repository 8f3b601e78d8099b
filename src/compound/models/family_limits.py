"""Bounds on the predictive of targets of a family, as those of `limits` for Gaussians.

Every location lies within the range of the training targets ± its width (student-t) or a factor e of it
(positive targets and counts); spread is at most MULTIPLE times the largest on training rows. What changes the
variance of a row beyond the bounds counts as epistemic. Rows within them are unchanged, bit for bit.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from compound.families import FAMILIES
from compound.models.limits import NONE
from compound.predictive import FamilyPredictive

MULTIPLE = 2.0


class FamilyLimits(nn.Module):
    """The bounds of one model; none until fitted."""

    low: Tensor  # (targets, parameters)
    high: Tensor  # (targets, parameters)

    def __init__(self, family: str, targets: int):
        super().__init__()
        self.family = family
        shape = (targets, len(FAMILIES[family].parameters))
        for name, value in (("low", -NONE), ("high", NONE)):
            self.register_buffer(name, torch.full(shape, value, dtype=torch.float32))

    def fit(self, y: Tensor, predictive: FamilyPredictive) -> None:
        """Set the bounds from training targets (rows, targets) and the model's predictive of some rows.

        Where times are censored, most may be expected long after the last one that was seen.
        """
        is_censored = y.shape[1] > self.low.shape[0] and not bool((y[:, self.low.shape[0] :] > 0).all())
        y = y[:, : self.low.shape[0]]
        location = predictive.params[..., 0].amax((0, 1))  # (targets,)
        spread = predictive.params[..., 1]  # (draws, rows, targets)
        low, high = y.amin(0), y.amax(0)
        if self.family == "student-t":
            width = high - low
            self.low[:, 0], self.high[:, 0] = low - width, high + width
            self.high[:, 1] = MULTIPLE * spread.amax((0, 1))
        elif self.family == "log-normal":
            self.low[:, 0], self.high[:, 0] = low.log() - 1, high.log() + 1
            if is_censored:
                self.high[:, 0] = torch.maximum(self.high[:, 0], location + 1)
            self.high[:, 1] = MULTIPLE * spread.amax((0, 1))
        elif self.family == "weibull":
            self.low[:, 0], self.high[:, 0] = low / math.e, high * math.e
            if is_censored:
                self.high[:, 0] = torch.maximum(self.high[:, 0], location * math.e)
            self.low[:, 1] = spread.amin((0, 1)) / MULTIPLE
        else:
            self.high[:, 0] = math.e * high.clamp_min(1)
            self.high[:, 1] = MULTIPLE * spread.amax((0, 1))

    def forward(self, p: FamilyPredictive) -> FamilyPredictive:
        """Clip the parameters of a predictive to the bounds; rows within them are unchanged."""
        clamped = p.params.clamp(self.low, self.high)
        beyond = (clamped != p.params).any(-1).any(0)  # (rows, targets)
        family = p.members_of
        means = family.mean(clamped)
        total = family.variance(clamped).mean(0) + means.var(0, correction=0)  # of the bounded mixture
        component = torch.minimum(p.component, total)
        mixing = torch.minimum(p.mixing, total - component)
        return replace(
            p,
            params=clamped,
            component=torch.where(beyond, component, p.component),
            mixing=torch.where(beyond, mixing, p.mixing),
            posterior=torch.where(beyond, total - component - mixing, p.posterior),
        )
