"""The Dirichlet distribution Dir(α) over class probabilities."""

import math

import torch
from torch import Tensor


def bounded(f: Tensor, low: float, high: float) -> Tensor:
    """A smooth clamp, elementwise: f within [low, high]; outside it exceeds the bound by less than 1.

    Exponentials of the result are finite, and unlike those of a clamp its gradients are never 0.
    """
    middle = f.clamp(low, high)
    beyond = f - middle
    return middle + beyond / (1 + beyond.abs())


def concentrations(f: Tensor) -> Tensor:  # (..., classes)
    """α = exp f of a Dirichlet, for outputs f (..., classes).

    Where the sum α₀ would lie outside [e^-20, e^20], all α are scaled so that α / α₀ remains softmax f.
    """
    low, high = torch.aminmax(f.detach())
    if float(low) > -20 and float(high) < 20 - math.log(f.shape[-1]):  # almost always
        return f.exp()
    log_probs = torch.log_softmax(f, -1)
    total = f[..., :1] - log_probs[..., :1]  # log α₀
    return bounded(log_probs + bounded(total, -20.0, 20.0), -50.0, 50.0).exp()


def log_beta(alpha: Tensor) -> Tensor:  # (...)
    """log B(α), the log-normaliser of Dir(α), for α (..., classes)."""
    return torch.lgamma(alpha).sum(-1) - torch.lgamma(alpha.sum(-1))


def mean_log(alpha: Tensor) -> Tensor:  # (..., classes)
    """E log p for p ~ Dir(α), α (..., classes)."""
    return torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True))


def expected_entropy(alpha: Tensor) -> Tensor:  # (...)
    """E H[p] for p ~ Dir(α), α (..., classes): the aleatoric part of the entropy."""
    total = alpha.sum(-1, keepdim=True)
    return (alpha / total * (torch.digamma(total + 1) - torch.digamma(alpha + 1))).sum(-1)
