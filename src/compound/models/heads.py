"""What a network's outputs f mean: logits of classes, or targets with Gaussian noise.

A head gives log-densities of y under f, and turns draws of f into a `Predictive`. Unlike the CDN's likelihood it knows f
itself, not a Gaussian over it.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from compound.distributions import gaussian_log_prob
from compound.models.base import weighted_row_mean
from compound.models.likelihoods import Floored, noise_floor
from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from compound.types import Task


class Head(nn.Module, ABC):
    """The observation model at the end of a network."""

    outputs: int  # of the network

    def on_fit_start(self, y: Tensor) -> None:
        """Constants from the training rows."""

    @abstractmethod
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:  # (members, ..., rows)
        """Log-densities of y under outputs f (members, ..., rows, outputs)."""

    def nll(self, f: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:  # (members,) or ()
        """Mean over rows of -log p(y | f), weighted, for f ((members,) rows, outputs)."""
        return -weighted_row_mean(self.log_prob(f, y), weight)

    @abstractmethod
    def predictive(self, f: Tensor) -> Predictive:
        """From draws f (members, outer, inner, rows, outputs): members and outer draws are what more data would settle."""


def head(task: Task, members: int = 1, noise: float = 0.0, variance: str = "one") -> Head:
    """The head of a task; targets: noise one for all rows (learnt where `noise` is 0), or `variance="rows"`, the network's."""
    if noise < 0 or 0 < noise < 1e-6:  # a smaller variance drowns in the rounding of float32
        raise ValueError(f"noise is {noise}: give a standard deviation of at least 1e-6, or 0 to learn it")
    if variance not in ("one", "rows"):
        raise ValueError(f"variance is {variance!r}: use 'one' or 'rows'")
    if task.kind == "classification":
        return Softmax(task.size)
    return (
        HomoscedasticGaussian(task.size, members, noise)
        if variance == "one"
        else HeteroscedasticGaussian(task.size)
    )


class Softmax(Head):
    """p(y | f) = softmax(f)_y."""

    def __init__(self, classes: int):
        super().__init__()
        self.outputs = classes

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        labels = y if f.ndim == 2 else y.expand(f.shape[:-1]).reshape(-1)
        return -functional.cross_entropy(f.reshape(-1, self.outputs), labels, reduction="none").view(
            f.shape[:-1]
        )

    def nll(self, f: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        # one call where it will do: every small step of autograd costs as much as its arithmetic
        return functional.cross_entropy(f, y) if weight is None and f.ndim == 2 else super().nll(f, y, weight)

    def predictive(self, f: Tensor) -> CategoricalPredictive:
        return CategoricalPredictive.from_draws(torch.log_softmax(f.flatten(0, 1), -1), len(f))


class HomoscedasticGaussian(Floored, Head):
    """p(y | f) = N(f, σ² + floor), one σ per target and member, learnt or fixed."""

    def __init__(self, targets: int, members: int, noise: float):
        super().__init__(targets)
        self.outputs, self.fixed = targets, bool(noise)
        start = torch.full((members, targets), math.log(noise) if noise else -1.0, dtype=torch.float32)
        self.log_noise = nn.Parameter(start, requires_grad=not noise)
        if self.fixed:  # a given noise is taken at its word
            self.set_floor(torch.zeros(targets, dtype=torch.float32))

    def on_fit_start(self, y: Tensor) -> None:
        if not self.fixed:
            self.set_floor(noise_floor(y))

    def variance(self) -> Tensor:  # (members, targets)
        return (2 * self.log_noise).exp() + self.known_floor()

    def _shaped(self, f: Tensor) -> Tensor:  # (members, 1, ..., 1, targets)
        return self.variance().view(-1, *[1] * (f.ndim - 2), self.outputs)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return gaussian_log_prob(y, f, self._shaped(f)).sum(-1)

    def expected_log_prob(self, mean: Tensor, spread: Tensor, y: Tensor) -> Tensor:
        """E log N(y; f, σ²) for f ~ N(mean, spread), exactly: the quadratic grows by spread / σ²."""
        variance = self._shaped(mean)
        return (gaussian_log_prob(y, mean, variance) - 0.5 * spread / variance).sum(-1)

    def predictive(self, f: Tensor) -> GaussianPredictive:
        noise = self._shaped(f).expand(*f.shape[:2], 1, 1, self.outputs).flatten(0, 1)
        return GaussianPredictive.from_draws(f.flatten(0, 1), noise, torch.zeros_like(noise), members=len(f))


class HeteroscedasticGaussian(Floored, Head):
    """f = (m, ρ): p(y | f) = N(m, softplus(ρ) + floor), a variance for every row and target."""

    def __init__(self, targets: int):
        super().__init__(targets)
        self.outputs, self.targets = 2 * targets, targets

    def on_fit_start(self, y: Tensor) -> None:
        self.set_floor(noise_floor(y).clamp_min(1e-6))

    def split(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances."""
        mean, rho = f.split(self.targets, -1)
        return mean, functional.softplus(rho) + self.known_floor()

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return gaussian_log_prob(y, *self.split(f)).sum(-1)

    def predictive(self, f: Tensor) -> GaussianPredictive:
        mean, variance = self.split(f.flatten(0, 1))
        return GaussianPredictive.from_draws(
            mean, variance, variance.new_zeros(()).expand_as(variance), members=len(f)
        )
