"""Prior network: one plain network that gives a distribution over predictive distributions, taught with rows from outside.

Classes: a Dirichlet, α = exp f(x), so that p(y | x) = α / α₀ = softmax f(x). Rows of the data are taught a sharp Dirichlet b_y,
rows from outside the flat one:

    forward:  KL[Dir(b_y) || Dir(α)] + γ KL[Dir(1) || Dir(α_out)] + c (-log p(y | x)),    b_y = P (1 - (C - 1) e at y, e elsewhere)
    reverse:  KL[Dir(α) || Dir(b_y)] + γ KL[Dir(α_out) || Dir(1)] + c (-log p(y | x)),    b_y = 1 + T at y, 1 elsewhere

Both are divided by P (or T): the minimum stays where it is, and gradients are of order one. Malinin and Gales (2018, 2019).

Targets: a Normal-Wishart with diagonal scale over the mean μ and the precision Λ of y, in which T observations weigh against a
prior (κ₀, and the mean and variance of the training targets). Malinin, Chervontsev, Provilkov and Gales (2020).

    -E log N(y; μ, 1/Λ) + (KL[law(x) || prior] + γ KL[law(x_out) || prior]) / T

    μ | Λ ~ N(m, 1/(κΛ)),   Λ ~ Wishart(1/(2B), ν = 2A + D - 1);   D = 1: Λ ~ Gamma(A, B)

so that y is Student-t with 2A degrees of freedom and squared scale B (1 + κ) / (A κ), jointly over all D targets.

A draw: there is none, the answer is in closed form. Component: the expected entropy of p, or the expected variance of y given μ and
Λ. Posterior: the mutual information of y and p, or the variance of μ.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from compound.models.base import WIDTHS, Draws, Loss, Model, train_mask, weighted_row_mean, with_defaults
from compound.models.likelihoods import noise_floor
from compound.models.normal_wishart import NODES, NormalWishart, student_nodes
from compound.nn.networks import Network
from compound.ops.clamp import LIMIT
from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from compound.predictive import entropy as entropy_of
from compound.random import Generators, named_generator
from compound.types import Batch, Task


@dataclass(frozen=True)
class DPNConfig:
    widths: tuple[int, ...] | None = None  # hidden layers
    divergence: Literal["forward", "reverse"] | None = (
        None  # None: forward for classes; targets have only the reverse one
    )
    concentration: float | None = (
        None  # P (forward) or T (reverse) of rows of the data; None: 1000, 100 for classes with reverse
    )
    smoothing: float = 0.01  # e, classes with forward: what b_y gives every other class
    ood_weight: float = 1.0  # γ, weight of the rows from outside
    cross_entropy: float = 0.0  # c, classes: weight of the negative log-likelihood beside the divergences
    kappa: float = 0.01  # κ₀, targets: how many observations of the mean the prior is worth


class DPN(Model):
    """A network whose output is a distribution over distributions, taught with rows from outside."""

    method = "dpn"
    Config = DPNConfig
    source = "Malinin and Gales (2018)"
    needs_ood_rows = True
    components = ("component", "posterior")

    def __init__(self, inputs: int, task: Task, config: DPNConfig, seed: int = 0):
        super().__init__()
        self.inputs, self.task = inputs, task
        config = with_defaults(
            config,
            {
                "widths": WIDTHS[task.kind],
                "divergence": "forward" if task.kind == "classification" else "reverse",
            },
        )
        strength = 100.0 if task.kind == "classification" and config.divergence == "reverse" else 1000.0
        self.config = with_defaults(config, {"concentration": strength})
        _check(self.config, task)
        self.head: _Head = (
            _Dirichlet(task.size, self.config)
            if task.kind == "classification"
            else _NormalWishart(task.size, self.config)
        )
        self.network = Network(
            (inputs, *self.config.widths, self.head.outputs), [named_generator(seed, "weights")]
        )

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        _outside(data)
        self.head.on_fit_start(data.y[train_mask(data)])

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        x = batch.x.new_empty(len(batch) + len(_outside(batch)), self.inputs)
        torch.clamp(batch.x, -LIMIT, LIMIT, out=x[: len(batch)])
        torch.clamp(_outside(batch), -LIMIT, LIMIT, out=x[len(batch) :])
        f = self.network.forward_clamped(x)  # (1, rows + rows', outputs)
        each, divergence = self.head.parts(f, batch.y)
        inside, outside = divergence.tensor_split([len(batch)], -1)
        nll = weighted_row_mean(each, batch.weight)  # (1,)
        kl = (
            weighted_row_mean(inside, batch.weight) + self.config.ood_weight * outside.mean(-1)
        ) / self.config.concentration
        return Loss((self.head.share * nll + kl).sum(), nll.detach(), kl.detach())

    def predict_chunk(self, x: Tensor, n: Draws, generator: Generator) -> Predictive:
        return self.head.predictive(self.network(x)[0])

    def floats_per_row(self, n: Draws) -> int:
        return 2 * (self.inputs + sum(self.config.widths)) + self.head.numbers


class _Head(nn.Module, ABC):
    """What the outputs f mean. Divergences are computed in float64: those of nearly equal sharp laws drown in float32."""

    outputs: int
    share: float  # weight of the negative log-likelihood in the loss
    numbers: int  # held per row while predicting

    def on_fit_start(self, y: Tensor) -> None:
        """Constants from the training rows."""

    @abstractmethod
    def parts(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # (1, rows), (1, rows + rows')
        """Negative log-likelihoods of the rows of the data, which come first, and divergences of all rows."""

    @abstractmethod
    def predictive(self, f: Tensor) -> Predictive:
        """The answer to outputs f (rows, outputs)."""


class _Dirichlet(_Head):
    """Classes."""

    taught: Tensor  # (classes + 1, classes) b_y for rows of the data with label y, and in the last row that of rows from outside
    log_betas: Tensor  # (classes + 1,)
    mean_logs: Tensor  # (classes + 1, classes)
    own: Tensor  # (classes + 1,) the part of a forward divergence that depends on b alone

    def __init__(self, classes: int, config: Any):
        super().__init__()
        self.outputs, self.numbers, self.forward_kl = classes, 30 * classes, config.divergence == "forward"
        self.share = config.cross_entropy / config.concentration
        strength, e, eye = config.concentration, config.smoothing, torch.eye(classes, dtype=torch.float64)
        own, other = (
            (strength * (1 - (classes - 1) * e), strength * e) if self.forward_kl else (1 + strength, 1.0)
        )
        taught = torch.cat([other + (own - other) * eye, torch.ones_like(eye[:1])])
        own_part = (taught * mean_log(taught)).sum(-1) - log_beta(taught)
        tables = {
            "taught": taught,
            "log_betas": log_beta(taught),
            "mean_logs": mean_log(taught),
            "own": own_part,
        }
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def parts(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.set_grad_enabled(self.share > 0):  # otherwise it is only looked at
            nll = functional.cross_entropy(f[0, : len(y)], y, reduction="none").unsqueeze(0)
        alpha = concentrations(f.double())
        kind = functional.pad(y, (0, f.shape[1] - len(y)), value=self.outputs)  # (rows + rows',) of the table
        if self.forward_kl:
            kl = log_beta(alpha) + self.own[kind] - (alpha * self.mean_logs[kind]).sum(-1)
        else:
            kl = (
                self.log_betas[kind]
                - log_beta(alpha)
                + ((alpha - self.taught[kind]) * mean_log(alpha)).sum(-1)
            )
        return nll, kl

    def predictive(self, f: Tensor) -> CategoricalPredictive:
        probs = torch.softmax(f.double(), -1)
        total = entropy_of(probs)
        component = torch.minimum(expected_entropy(concentrations(f.double())), total)
        parts = (component, torch.zeros_like(total), total - component, probs)
        return CategoricalPredictive(*(part.to(f.dtype) for part in parts))


class _NormalWishart(_Head):
    """Targets. The outputs say by which factors 1 / E Λ, κ and A - 1 differ from the prior's, so that f = 0 is the prior."""

    mean: Tensor  # (targets,) of the training rows
    variance: Tensor  # (targets,)
    floor: Tensor  # (targets,) a variance: rounded targets have no finer density
    share = 1.0

    def __init__(self, targets: int, config: Any):
        super().__init__()
        self.outputs, self.numbers, self.targets = 2 * targets + 2, NODES * (6 * targets + 16), targets
        self.kappa, self.a = config.kappa, 0.5 * config.kappa + 1.5  # ν₀ = κ₀ + D + 2
        self.register_buffer("mean", torch.zeros(targets, dtype=torch.float32))
        self.register_buffer("variance", torch.ones(targets, dtype=torch.float32))
        self.register_buffer("floor", torch.zeros(targets, dtype=torch.float32))

    def on_fit_start(self, y: Tensor) -> None:
        spread = y.double().var(0, correction=0)
        self.mean.copy_(y.double().mean(0))
        self.variance.copy_(torch.where(spread > 0, spread, 1.0))
        self.floor.copy_(noise_floor(y))

    def prior(self) -> NormalWishart:
        """E Λ is one over the variance of the training targets."""
        kappa, a = (
            torch.full((1,), value, dtype=torch.float64, device=self.mean.device)
            for value in (self.kappa, self.a)
        )
        return NormalWishart(
            self.mean.double(), kappa, a, (a + 0.5 * (self.targets - 1)) * self.variance.double()
        )

    def law(self, f: Tensor) -> NormalWishart:
        prior = self.prior()
        mean, scale, kappa, a = f.split([self.targets, self.targets, 1, 1], -1)
        a = 1 + (prior.a - 1) * bounded(a, -2.0, 15.0).exp()
        variance = self.variance.double()
        b = (a + 0.5 * (self.targets - 1)) * torch.addcmul(
            self.floor.double(), variance, bounded(scale, -15.0, 15.0).exp()
        )
        return NormalWishart(
            torch.addcmul(prior.mean, variance.sqrt(), mean),
            prior.kappa * bounded(kappa, -2.0, 15.0).exp(),
            a,
            b,
        )

    def parts(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        law = self.law(f.double())
        inside = NormalWishart(*(part[:, : len(y)] for part in law))
        return -inside.expected_log_prob(y.double()), law.kl(self.prior())

    def predictive(self, f: Tensor) -> GaussianPredictive:
        law, dtype = self.law(f.double()), f.dtype
        component = law.b / (law.a - 1)
        posterior = component / law.kappa
        log_weights, ratios = student_nodes(law.a)  # (nodes, rows, 1)
        variances = ratios * (component + posterior)  # (nodes, rows, targets)
        means = law.mean.to(dtype).expand(len(ratios), -1, -1)
        shares = (component.to(dtype), torch.zeros_like(component, dtype=dtype), posterior.to(dtype))
        return GaussianPredictive(*shares, means, variances.to(dtype), log_weights.to(dtype))


def bounded(f: Tensor, low: float, high: float) -> Tensor:
    """f, beyond its bounds slower and slower, by less than 1: exponentials stay finite and gradients alive."""
    middle = f.clamp(low, high)
    beyond = f - middle
    return middle + beyond / (1 + beyond.abs())


def concentrations(f: Tensor) -> Tensor:  # (..., classes)
    """α = exp f; where α₀ would leave e^±20 all its parts grow or shrink alike, so that α / α₀ remains softmax f."""
    least, most = torch.aminmax(f.detach())
    if float(least) > -20 and float(most) < 20 - math.log(f.shape[-1]):  # almost always
        return f.exp()
    log_probs = torch.log_softmax(f, -1)
    total = f[..., :1] - log_probs[..., :1]  # log α₀
    return bounded(log_probs + bounded(total, -20.0, 20.0), -50.0, 50.0).exp()


def log_beta(alpha: Tensor) -> Tensor:
    """The log-normaliser of Dir(α)."""
    return torch.lgamma(alpha).sum(-1) - torch.lgamma(alpha.sum(-1))


def mean_log(alpha: Tensor) -> Tensor:
    """E log p for p ~ Dir(α)."""
    return torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True))


def expected_entropy(alpha: Tensor) -> Tensor:
    """E H[p] for p ~ Dir(α): what no more data would settle."""
    total = alpha.sum(-1, keepdim=True)
    return (alpha / total * (torch.digamma(total + 1) - torch.digamma(alpha + 1))).sum(-1)


def differential_entropy(alpha: Tensor) -> Tensor:
    """Of Dir(α), highest where it is flat: the method's own score for rows from outside."""
    return log_beta(alpha) - ((alpha - 1) * mean_log(alpha)).sum(-1)


def pairwise_kl(alpha: Tensor) -> Tensor:
    """E KL[p || p'] for p and p' ~ Dir(α): another such score, a bound on the mutual information."""
    return (alpha.shape[-1] - 1) / alpha.sum(-1)


def _outside(batch: Batch) -> Tensor:
    if batch.x_ood is None:
        raise ValueError(
            "dpn needs x_ood: give rows known to lie outside the domain, as make_dataset(x, y, task, x_ood=...)"
        )
    return batch.x_ood


def _check(config: Any, task: Task) -> None:
    allowed = ("forward", "reverse") if task.kind == "classification" else ("reverse",)
    if config.divergence not in allowed:
        raise ValueError(
            f"divergence is {config.divergence!r}: for {task.kind} use {' or '.join(map(repr, allowed))}"
        )
    for name in ("concentration", "kappa"):
        if not 0 < getattr(config, name) < math.inf:
            raise ValueError(f"{name} is {getattr(config, name)}: give a number above 0")
    for name in ("ood_weight", "cross_entropy"):
        if not 0 <= getattr(config, name) < math.inf:
            raise ValueError(f"{name} is {getattr(config, name)}: give a number >= 0")
    if config.divergence == "forward" and not 0 < config.smoothing < 1 / task.size:
        raise ValueError(
            f"smoothing is {config.smoothing}: with {task.size} classes it must lie between 0 and 1/{task.size}"
        )
