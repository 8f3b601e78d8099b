"""The outputs of a prior network as parameters of a distribution: a Dirichlet, or a Normal-Wishart."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from compound.models.dirichlet import bounded, concentrations, expected_entropy, log_beta, mean_log
from compound.models.normal_wishart import NormalWishart, student_nodes
from compound.models.observation import noise_floor
from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive, entropy


class PriorNetworkOutput(nn.Module, ABC):
    """The distribution whose parameters are the network's outputs f.

    KLs are computed in float64: those of sharp, nearly equal distributions are lost in float32.
    """

    outputs: int  # numbers that the network must output per row
    nll_weight: float  # factor on the NLL in the loss

    def on_fit_start(self, y: Tensor) -> None:
        """Set constants from y of the training rows, (rows,) or (rows, targets); default: none."""

    @abstractmethod
    def nll_and_kl(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Two terms of the loss, for outputs f (1, rows + OOD rows, outputs) and y of the rows.

        Negative log-likelihoods of y, (1, rows), and the KL between each row's distribution and the one that
        it is trained towards, (1, rows + OOD rows).
        """

    @abstractmethod
    def predictive(self, f: Tensor) -> Predictive:
        """The predictive of outputs f (rows, outputs)."""


class DirichletOutput(PriorNetworkOutput):
    """Classes: a Dirichlet with α = exp f.

    The buffers hold statistics of the Dirichlets Dir(b) that rows are trained towards, by label; last, of OOD
    rows.
    """

    targets: Tensor  # (classes + 1, classes) b
    log_betas: Tensor  # (classes + 1,) log-normalisers
    mean_logs: Tensor  # (classes + 1, classes) E log p
    constants: Tensor  # (classes + 1,) the part of the forward KL that depends on b alone

    def __init__(self, classes: int, config: Any):
        super().__init__()
        self.outputs = classes
        self.forward_kl = config.divergence == "forward"
        self.nll_weight = config.cross_entropy / config.concentration
        strength = config.concentration
        if self.forward_kl:
            label, other = strength * (1 - (classes - 1) * config.smoothing), strength * config.smoothing
        else:
            label, other = 1 + strength, 1.0
        eye = torch.eye(classes, dtype=torch.float64)
        targets = torch.cat([other + (label - other) * eye, torch.ones_like(eye[:1])])
        log_betas, mean_logs = log_beta(targets), mean_log(targets)
        tables = {"targets": targets, "log_betas": log_betas, "mean_logs": mean_logs}
        tables["constants"] = (targets * mean_logs).sum(-1) - log_betas
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def nll_and_kl(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.set_grad_enabled(self.nll_weight > 0):  # otherwise it is only reported
            nll = functional.cross_entropy(f[0, : len(y)], y, reduction="none").unsqueeze(0)
        alpha = concentrations(f.double())
        # (rows + OOD rows,) into the buffers
        index = functional.pad(y, (0, f.shape[1] - len(y)), value=self.outputs)
        if self.forward_kl:
            kl = log_beta(alpha) + self.constants[index] - (alpha * self.mean_logs[index]).sum(-1)
        else:
            expected = ((alpha - self.targets[index]) * mean_log(alpha)).sum(-1)
            kl = self.log_betas[index] - log_beta(alpha) + expected
        return nll, kl

    def predictive(self, f: Tensor) -> CategoricalPredictive:
        probs = torch.softmax(f.double(), -1)
        total = entropy(probs)
        component = torch.minimum(expected_entropy(concentrations(f.double())), total)
        parts = (component, torch.zeros_like(total), total - component, probs)
        return CategoricalPredictive(*(part.to(f.dtype) for part in parts))


class NormalWishartOutput(PriorNetworkOutput):
    """Targets: a Normal-Wishart.

    Outputs f are a standardised mean, and the logs of factors on the prior's 1 / E Λ, κ and A - 1. f = 0
    gives the prior.
    """

    mean: Tensor  # (targets,) of y of the training rows
    variance: Tensor  # (targets,) of y of the training rows
    floor: Tensor  # (targets,) lower bound of 1 / E Λ, see `noise_floor`
    nll_weight = 1.0

    def __init__(self, targets: int, config: Any):
        super().__init__()
        self.outputs = 2 * targets + 2
        self.targets = targets
        self.kappa = config.kappa
        self.a = 0.5 * config.kappa + 1.5  # ν₀ = κ₀ + D + 2
        self.register_buffer("mean", torch.zeros(targets, dtype=torch.float32))
        self.register_buffer("variance", torch.ones(targets, dtype=torch.float32))
        self.register_buffer("floor", torch.zeros(targets, dtype=torch.float32))

    def on_fit_start(self, y: Tensor) -> None:
        """Set mean, variance and floor from the training targets (rows, targets)."""
        variance = y.double().var(0, correction=0)
        self.mean.copy_(y.double().mean(0))
        self.variance.copy_(torch.where(variance > 0, variance, 1.0))
        self.floor.copy_(noise_floor(y))

    def prior(self) -> NormalWishart:
        """The prior, whose E Λ is one over the variance of the training targets."""
        kappa, a = torch.tensor([[self.kappa], [self.a]], dtype=torch.float64, device=self.mean.device)
        b = (a + 0.5 * (self.targets - 1)) * self.variance.double()
        return NormalWishart(self.mean.double(), kappa, a, b)

    def normal_wishart(self, f: Tensor) -> NormalWishart:
        """The Normal-Wishart of outputs f (..., outputs), float64."""
        prior = self.prior()
        mean, scale, kappa, a = f.split([self.targets, self.targets, 1, 1], -1)
        a = 1 + (prior.a - 1) * bounded(a, -2.0, 15.0).exp()
        variance = self.variance.double()
        b = (a + 0.5 * (self.targets - 1)) * torch.addcmul(
            self.floor.double(), variance, bounded(scale, -15.0, 15.0).exp()
        )
        kappa = prior.kappa * bounded(kappa, -2.0, 15.0).exp()
        return NormalWishart(torch.addcmul(prior.mean, variance.sqrt(), mean), kappa, a, b)

    def nll_and_kl(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        output = self.normal_wishart(f.double())
        inside = NormalWishart(*(part[:, : len(y)] for part in output))
        return -inside.expected_log_prob(y.double()), output.kl(self.prior())

    def predictive(self, f: Tensor) -> GaussianPredictive:
        output = self.normal_wishart(f.double())
        dtype = f.dtype
        component = output.b / (output.a - 1)
        posterior = component / output.kappa
        log_weights, ratios = student_nodes(output.a)  # (nodes, rows, 1)
        variances = ratios * (component + posterior)  # (nodes, rows, targets)
        means = output.mean.to(dtype).expand(len(ratios), -1, -1)
        parts = (component.to(dtype), torch.zeros_like(component, dtype=dtype), posterior.to(dtype))
        return GaussianPredictive(*parts, means, variances.to(dtype), log_weights.to(dtype))
