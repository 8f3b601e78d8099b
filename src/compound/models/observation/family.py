"""Observation models of targets from other families than the Gaussian: what a network's outputs mean.

    student-t          loc = f_1,                         scale² = exp(2 f_2) + floor,       df learnt
    log-normal         mu = c + s f_1,                    sigma² = s² exp(2 f_2) + floor
    weibull            log scale = c + s f_1,             1 / shape² = exp(2 f_2) / k² + floor
    negative-binomial  log mean = c + s f_1,              log dispersion = log d + f_2
    poisson            log mean = c + s f_1

c, s, k and d are constants from the training targets, with which f = 0 is about their own distribution: from
mean and standard deviation of log y for positive y, of y for counts. The floor
is that of `noise_floor`, of log y for positive y.
"""

import math

import torch
from torch import Tensor, nn

from compound.families import FAMILIES
from compound.families.mixtures import log_lik
from compound.models.observation.base import ObservationModel
from compound.models.observation.noise_floor import noise_floor
from compound.predictive import FamilyPredictive

MAX_LOG = 2.5  # bound of |f_2|, smooth: a spread of e^-2.5 to e^2.5 times that of all targets
MAX_STEP = 12.0  # bound of |s f_1|: beyond a factor of e^12 there is nothing to learn, but overflow
MAX_SIGMA = 5.0  # of log y, and bound of 1 / shape: moments stay finite in float32
MIN_DF, MAX_DF = 2.1, 200.0  # degrees of freedom: the variance is finite
EULER = 0.5772156649015329
WEIBULL = math.pi / math.sqrt(6)  # the standard deviation of log y is this over the shape


class FamilyModel(ObservationModel):
    """p(y | f) of a family; outputs f are (..., targets * n), n = 1 for poisson and 2 for the others."""

    constants: Tensor  # (4, targets) c, s, floor, and log k or log d

    def __init__(self, family: str, targets: int, members: int = 1):
        super().__init__()
        self.name, self.targets = family, targets
        self.per_target = 1 if family == "poisson" else 2
        self.outputs = self.per_target * targets
        initial = torch.tensor([0.0, 1.0, 1e-8, 0.0], dtype=torch.float32)
        start = initial.unsqueeze(1).expand(4, targets)
        self.register_buffer("constants", start.clone())
        if family == "student-t":
            self.log_df = nn.Parameter(torch.full((members, targets), math.log(8.0), dtype=torch.float32))

    def on_fit_start(self, y: Tensor) -> None:
        """Set the constants from the training targets (rows, targets), or (rows, 2 targets) with events."""
        y = y[:, : self.targets]
        tiny = torch.full_like(y[0], 1e-4)
        if self.name == "student-t":
            self.constants[2].copy_(noise_floor(y))
        elif self.name in ("log-normal", "weibull"):
            log_y = y.double().log()
            std = log_y.std(0, correction=0).to(y.dtype).maximum(tiny)
            # E log y of a Weibull distribution is its log scale - γ / shape
            centre = log_y.mean(0) + (EULER * std / WEIBULL if self.name == "weibull" else 0.0)
            self.constants[0].copy_(centre)
            self.constants[1].copy_(std)
            self.constants[2].copy_(noise_floor(log_y.to(y.dtype)))
            self.constants[3].copy_((WEIBULL / std).log())
        else:
            mean, variance = y.double().mean(0), y.double().var(0, correction=0)
            dispersion = ((variance - mean) / mean.clamp_min(1e-6).square()).clamp(0.02, 50.0)
            self.constants[0].copy_(mean.clamp_min(1e-3).log())
            self.constants[1].copy_((1 + dispersion).log().sqrt())
            self.constants[3].copy_((0.5 * dispersion).log())

    def params(self, f: Tensor, variance: Tensor | float = 0.0) -> Tensor:
        """Parameters (members, ..., rows, targets, n') of the family from outputs f (..., outputs).

        `variance`, of the shape of f, is added to that of mu for log-normal y: f_1 ~ N(f, variance) is
        integrated over.
        """
        first, *rest = f.unflatten(-1, (self.targets, self.per_target)).unbind(-1)
        second = MAX_LOG * torch.tanh(rest[0] / MAX_LOG) if rest else None
        centre, scale, floor, log_start = self.constants.to(f.dtype)
        if self.name == "poisson" or second is None:
            mean = (centre + (scale * first).clamp(-MAX_STEP, MAX_STEP)).exp()
            return torch.stack([mean, torch.zeros_like(mean)], -1)
        if self.name == "student-t":
            df = self.log_df.exp().clamp(MIN_DF, MAX_DF).view(-1, *[1] * (f.ndim - 2), self.targets)
            width = ((2 * second).exp() + floor).sqrt()
            return torch.stack(torch.broadcast_tensors(first, width, df.to(f.dtype)), -1)
        if self.name == "negative-binomial":
            mean = (centre + (scale * first).clamp(-MAX_STEP, MAX_STEP)).exp()
            return torch.stack([mean, (log_start + second).exp()], -1)
        location = centre + (scale * first).clamp(-MAX_STEP, MAX_STEP)
        if self.name == "weibull":
            inverse = ((2 * (second - log_start)).exp() + floor / WEIBULL**2).sqrt()
            return torch.stack([location.exp(), inverse.clamp_max(MAX_SIGMA).reciprocal()], -1)
        added = variance if isinstance(variance, float) else variance[..., :: self.per_target]
        sigma = (scale.square() * ((2 * second).exp() + added) + floor).sqrt()
        return torch.stack([location, sigma.clamp_max(MAX_SIGMA)], -1)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return log_lik(FAMILIES[self.name], y, self.params(f))

    def predictive(self, f: Tensor) -> FamilyPredictive:
        params = self.params(f)
        return FamilyPredictive.from_draws(self.name, params.flatten(0, 1), members=len(f))


def far_params(family: str, y: Tensor, strength: float) -> Tensor:  # (targets, parameters)
    """A wide member of the family: what is predicted far from all training rows, from their targets y.

    student-t has `strength` standard deviations of y, as a Gaussian has. The other families have the
    distribution of all targets, widened by half, since that of `strength` standard deviations of log y would
    have a mean of many orders of magnitude.
    """
    if family == "student-t":
        std = y.double().std(0, correction=0)
        std = strength * torch.where(std > 0, std, 1.0)
        return torch.stack([y.double().mean(0), std, torch.full_like(std, 5.0)], -1)
    if family in ("poisson", "negative-binomial"):
        mean = y.double().mean(0).clamp_min(0.1)
        dispersion = (y.double().var(0, correction=0) - mean) / mean.square()
        return torch.stack([mean, 1.5**2 * dispersion.clamp_min(0.5)], -1)
    log_y = y.double().log()
    sigma = 1.5 * log_y.std(0, correction=0).clamp_min(0.1)
    mu = log_y.median(0).values
    if family == "log-normal":
        return torch.stack([mu, sigma], -1)
    shape = (WEIBULL / sigma).clamp_min(0.25)
    return torch.stack([(mu - math.log(math.log(2)) / shape).exp(), shape], -1)
