"""Observation models of targets: Gaussians with one variance for all rows, or with a variance per row.

In the first case the outputs f are the means; in the second they are means and unconstrained variances.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from compound.distributions import gaussian_log_prob
from compound.models.observation.base import ObservationModel
from compound.models.observation.noise_floor import NoiseFloor, noise_floor
from compound.predictive import GaussianPredictive


class HomoscedasticGaussian(NoiseFloor, ObservationModel):
    """p(y | f) = N(f, σ² + floor), one σ per target and member.

    σ is learnt if `noise` is 0. Otherwise σ = `noise` is fixed, and the floor is 0.
    """

    def __init__(self, targets: int, members: int, noise: float):
        super().__init__(targets)
        self.outputs = targets
        self.fixed = bool(noise)
        start = torch.full((members, targets), math.log(noise) if noise else -1.0, dtype=torch.float32)
        self.log_noise = nn.Parameter(start, requires_grad=not noise)
        if self.fixed:  # a given noise needs no floor
            self.set_floor(torch.zeros(targets, dtype=torch.float32))

    def on_fit_start(self, y: Tensor) -> None:
        """Set the floor from the training targets (rows, targets), unless σ is fixed."""
        if not self.fixed:
            self.set_floor(noise_floor(y))

    def noise_variance(self) -> Tensor:  # (members, targets)
        """σ², without the floor."""
        return (2 * self.log_noise).exp()

    def variance(self) -> Tensor:  # (members, targets)
        """σ² + floor, the variance of y given f."""
        return self.noise_variance() + self.known_floor()

    def _variance_like(self, f: Tensor) -> Tensor:  # (members, 1, ..., 1, targets)
        """`variance()` in a shape that broadcasts with f (members, ..., rows, targets)."""
        return self.variance().view(-1, *[1] * (f.ndim - 2), self.outputs)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return gaussian_log_prob(y, f, self._variance_like(f)).sum(-1)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """E log p(y | f) of each row for f ~ N(mean, variance), in closed form.

        `mean` and `variance` are (members, ..., rows, targets). E (y - f)² = (y - mean)² + variance.
        """
        noise = self._variance_like(mean)
        return (gaussian_log_prob(y, mean, noise) - 0.5 * variance / noise).sum(-1)

    def predictive(self, f: Tensor) -> GaussianPredictive:
        noise = self._variance_like(f).expand(*f.shape[:2], 1, 1, self.outputs).flatten(0, 1)
        return GaussianPredictive.from_draws(f.flatten(0, 1), noise, torch.zeros_like(noise), members=len(f))


class HeteroscedasticGaussian(NoiseFloor, ObservationModel):
    """f = (m, ρ): p(y | f) = N(m, softplus(ρ) + floor), a variance for every row and target."""

    def __init__(self, targets: int):
        super().__init__(targets)
        self.targets = targets
        self.outputs = 2 * targets

    def on_fit_start(self, y: Tensor) -> None:
        """Set the floor from the training targets (rows, targets)."""
        self.set_floor(noise_floor(y).clamp_min(1e-6))

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of y, (..., rows, targets) each, from outputs f (..., rows, 2 targets)."""
        mean, rho = f.split(self.targets, -1)
        return mean, functional.softplus(rho) + self.known_floor()

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return gaussian_log_prob(y, *self.moments(f)).sum(-1)

    def predictive(self, f: Tensor) -> GaussianPredictive:
        mean, variance = self.moments(f.flatten(0, 1))
        none = variance.new_zeros(()).expand_as(variance)
        return GaussianPredictive.from_draws(mean, variance, none, members=len(f))
