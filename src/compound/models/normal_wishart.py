"""The Normal-Wishart distribution of mean and precision of several targets, and its Student-t.

    μ | Λ ~ N(m, 1/(κΛ)),   Λ ~ Wishart(scale diag 1/(2B), ν = 2A + D - 1)

D = 1 is the Normal-Gamma: Λ ~ Gamma(A, B). y ~ N(μ, 1/Λ) is Student-t with 2A degrees of freedom and squared
scales B (1 + κ) / (A κ), jointly over its D entries.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from compound.distributions import LOG_2PI

NODES = 40  # Gaussians of the mixture that approximates a Student-t


class NormalWishart(NamedTuple):
    """Distributions of the mean and precision of D targets; D = 1 is the Normal-Gamma."""

    mean: Tensor  # (..., D)
    kappa: Tensor  # (..., 1)
    a: Tensor  # (..., 1) half the degrees of freedom of y
    b: Tensor  # (..., D)

    def _gamma_offsets(self) -> Tensor:  # (D,)
        """0, 1/2, ..., (D - 1) / 2: the normaliser of a Wishart is a product of Γ(a + offset)."""
        return 0.5 * torch.arange(self.mean.shape[-1], dtype=self.mean.dtype, device=self.mean.device)

    def precision(self) -> Tensor:  # (..., D)
        """The diagonal of E Λ."""
        return (self.a + 0.5 * (self.mean.shape[-1] - 1)) / self.b

    def expected_log_prob(self, y: Tensor) -> Tensor:  # (...)
        """E log N(y; μ, 1/Λ) over μ and Λ, for y (..., D)."""
        squares = 1 / self.kappa + (y - self.mean).square() * self.precision()
        digamma = torch.digamma(self.a + self._gamma_offsets())
        return 0.5 * (digamma - self.b.log() - LOG_2PI - squares).sum(-1)

    def kl(self, other: "NormalWishart") -> Tensor:  # (...)
        """KL(self || other)."""
        half, ratio = self._gamma_offsets(), other.kappa / self.kappa
        wishart = (
            (self.a - other.a) * torch.digamma(self.a + half)
            - torch.lgamma(self.a + half)
            + torch.lgamma(other.a + half)
            + (other.a + half[-1]) * (self.b / other.b).log()
            + (self.a + half[-1]) * (other.b / self.b - 1)
        )
        normal = ratio - 1 - ratio.log() + other.kappa * (self.mean - other.mean).square() * self.precision()
        return (wishart + 0.5 * normal).sum(-1)


def student_nodes(a: Tensor) -> tuple[Tensor, Tensor]:  # (nodes, ...) each
    """Log-weights and variances of NODES Gaussians whose mixture approximates a Student-t.

    The Student-t has mean 0, variance 1 and 2a degrees of freedom. It is an integral over u = log τ/A, τ ~
    Gamma(A, 1), computed by the trapezoid rule between the points where the density of u is about e^-20 of
    its mode. The first node is given the variance that makes that of the mixture 1. Log-densities are
    accurate to 1e-4 up to ten scales from the mean.
    """
    extent = 20 / a
    span = extent + (2 * extent).sqrt()
    grid = torch.linspace(0, 1, NODES, dtype=a.dtype, device=a.device).view(-1, *[1] * a.ndim)
    u = torch.lerp(-span, span.log1p(), grid)
    log_weights = torch.log_softmax(a * (u - u.expm1()), 0)
    weights, ratios = log_weights.exp(), (a - 1) / a * (-u).exp()
    first = (1 - (weights[1:] * ratios[1:]).sum(0, keepdim=True)) / weights[:1]
    return log_weights, torch.cat([first, ratios[1:]])
