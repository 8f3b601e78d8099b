"""Noisy Adam: an independent Gaussian posterior of every weight, from running squares of gradients.

    w = μ + σ ε,    σ² = λ / N / (f + γ),    μ <- μ + lr m / (f + γ + extra),    γ = λ / (N η)

with m the gradient of mean log p(y | x, w) - γ/2 |μ|², with momentum, and f the running mean over rows of
squared gradients of log p(ŷ | x, w), ŷ drawn from the model: the diagonal of the Fisher information. Unlike
in Adam it has no root. A row's gradient with respect to W_ij is a_i g_j, so the mean of squares is one
product, (a²)^T g². Zhang, Sun, Duvenaud, Grosse (2018).

A draw: n_samples * n_inner draws of all weights from their posterior; all of it is epistemic.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from compound.models.noisy import Noisy, NoisyConfig
from compound.models.noisy_layer import Layer, ema_update


@dataclass(frozen=True)
class NoisyAdamConfig(NoisyConfig):
    """Options of `noisy-adam`.

    Parameters
    ----------
    kl_clip : float, default=0.0001
        Trust region of a step; 0: none.
    decay : float, default=0.995
        Decay of the running squares.
    refresh_every : int, default=10
        Steps between posteriors.
    """

    kl_clip: float = 0.0001
    decay: float = 0.995
    refresh_every: int = 10


class DiagonalLayer(Layer):
    """A layer with independent Gaussian weights: its basis is the standard one."""

    squares: Tensor  # (in + 1, out) f

    def __init__(self, mean: Tensor):
        super().__init__(mean)
        self.register_buffer("squares", torch.ones_like(mean))

    def fisher(self) -> Tensor:
        return self.squares

    def collect(self, a: Tensor, g: Tensor, row_weight: Tensor, decay: float) -> None:
        ema_update(self.squares, (a.square() * row_weight).mT @ g.square(), decay)

    def to_basis(self, weight: Tensor) -> Tensor:
        return weight

    def from_basis(self, weight: Tensor) -> Tensor:
        return weight

    def inputs_to_basis(self, a: Tensor) -> Tensor:
        return a

    def outputs_from_basis(self, noise: Tensor) -> Tensor:
        return noise


class NoisyAdam(Noisy):
    """A network with independent Gaussian weights."""

    method = "noisy-adam"
    Config = NoisyAdamConfig

    def layer(self, k: int, mean: Tensor) -> DiagonalLayer:
        return DiagonalLayer(mean)
