"""A layer of a noisy method: Gaussian weights, whose precision is the Fisher information of the layer.

    W ~ q = N(M, Σ),    Σ = λ / N (F + γ)^-1,    γ = λ / (N η)

F is represented by its diagonal in a basis of the layer's own. Methods differ in what they keep of F, and in
which basis.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Prior(NamedTuple):
    """The prior N(0, η), and the weight λ / N of the KL to it."""

    temperature: float  # λ / N
    variance: float  # η

    @property
    def damping(self) -> float:  # γ
        return self.temperature / self.variance


class Layer(nn.Module, ABC):
    """An affine map with Gaussian weights, which are independent in a basis that a subclass defines."""

    std: Tensor  # (in + 1, out) standard deviations of the weights in that basis
    divergence: Tensor  # () the part of the KL that does not depend on the means

    def __init__(self, mean: Tensor):
        super().__init__()
        self.mean = nn.Parameter(mean)  # (in + 1, out), bias last
        self.register_buffer("std", torch.zeros_like(mean))
        self.register_buffer("divergence", torch.zeros((), dtype=torch.float32))

    @abstractmethod
    def fisher(self) -> Tensor:  # (in + 1, out)
        """The diagonal of F in the layer's basis."""

    @abstractmethod
    def collect(self, a: Tensor, g: Tensor, row_weight: Tensor, decay: float) -> None:
        """Update the running statistics from which F is computed.

        a (n, in + 1) are inputs of the layer, g (n, out) gradients of log p(ŷ) with respect to its outputs.
        Row weights (n, 1) add up to one.
        """

    @abstractmethod
    def to_basis(self, weight: Tensor) -> Tensor:
        """Weights (..., in + 1, out), transformed to the layer's basis."""

    @abstractmethod
    def from_basis(self, weight: Tensor) -> Tensor:
        """The inverse of `to_basis`."""

    @abstractmethod
    def inputs_to_basis(self, a: Tensor) -> Tensor:
        """Inputs (..., in + 1), transformed to the layer's basis."""

    @abstractmethod
    def outputs_from_basis(self, noise: Tensor) -> Tensor:
        """Outputs or noise (..., out), transformed from the layer's basis to the standard one."""

    def damped(self, damping: float) -> Tensor:  # (in + 1, out)
        """The diagonal of F + damping in the layer's basis."""
        return self.fisher() + damping

    def refresh(self, prior: Prior) -> None:
        """Update the posterior from the statistics so far: Σ = λ / N (F + γ)^-1."""
        self.set_posterior(prior.temperature / self.damped(prior.damping), prior)

    def set_posterior(self, variance: Tensor, prior: Prior) -> None:
        """Set `std` from variances (in + 1, out) in the layer's basis, and `divergence`."""
        self.std.copy_(variance.sqrt())
        terms = variance / prior.variance - 1 - (variance / prior.variance).log()
        self.divergence.copy_(0.5 * terms.double().sum())

    def draw(self, noise: Tensor) -> Tensor:
        """Draws of the weights, for standard normal noise (draws, in + 1, out)."""
        return self.mean + self.from_basis(noise * self.std)

    def moments(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Means, and standard deviations in the layer's basis, of the outputs a W for a (..., in + 1).

        With standard normal noise, mean + outputs_from_basis(std * noise) is a draw of a W.
        """
        return a @ self.mean, (self.inputs_to_basis(a).square() @ self.std.square()).sqrt()

    def precondition(self, gradient: Tensor, damping: float) -> Tensor:
        """(F + damping)^-1 times a gradient (in + 1, out)."""
        return self.from_basis(self.to_basis(gradient) / self.damped(damping))

    def kl(self, prior: Prior) -> Tensor:  # ()
        """KL(q || N(0, η I)) = 1/2 sum (σ²/η - 1 - log σ²/η) + |M|² / 2η."""
        return self.divergence + torch.dot(self.mean.view(-1), self.mean.view(-1)) / (2 * prior.variance)


def ema_update(running: Tensor, fresh: Tensor, decay: float) -> None:
    """running <- decay running + (1 - decay) fresh, in place; nothing if `fresh` is not finite."""
    if bool(torch.isfinite(fresh).all()):
        running.lerp_(fresh, 1 - decay)
