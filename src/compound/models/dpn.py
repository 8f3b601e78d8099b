"""Prior network: its output is a distribution over predictive distributions, trained with OOD rows.

Classes: a Dirichlet, α = exp f(x), so that p(y | x) = α / α₀ = softmax f(x). The target of training rows is a
sharp Dirichlet b_y, that of out-of-distribution rows the flat one:

    forward:  KL[Dir(b_y) || Dir(α)] + γ KL[Dir(1) || Dir(α_out)] + c (-log p(y | x))
    reverse:  KL[Dir(α) || Dir(b_y)] + γ KL[Dir(α_out) || Dir(1)] + c (-log p(y | x))

with b_y = P (1 - (C - 1) e at y, e elsewhere) forward, and 1 + T at y, 1 elsewhere reverse. Both are divided
by P (or T): the minimum does not change, and gradients are of order one. Malinin and Gales (2018, 2019).

Targets: a Normal-Wishart with diagonal scale over the mean μ and the precision Λ of y, in which T
observations weigh against a prior (κ₀, and the mean and variance of the training targets). Malinin,
Chervontsev, Provilkov and Gales (2020).

    -E log N(y; μ, 1/Λ) + (KL[NW(x) || prior] + γ KL[NW(x_out) || prior]) / T

    μ | Λ ~ N(m, 1/(κΛ)),   Λ ~ Wishart(1/(2B), ν = 2A + D - 1);   D = 1: Λ ~ Gamma(A, B)

so that y is Student-t with 2A degrees of freedom and squared scale B (1 + κ) / (A κ), jointly over all D
targets.

A draw: there is none, the predictive is in closed form. Component: the expected entropy of p, or the expected
variance of y given μ and Λ. Posterior: the mutual information of y and p, or the variance of μ.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from compound.models.base import WIDTHS, Loss, Model, train_mask, weighted_row_mean, with_defaults
from compound.models.dpn_outputs import DirichletOutput, NormalWishartOutput, PriorNetworkOutput
from compound.nn.networks import Network
from compound.ops.clamp import LIMIT
from compound.predictive import Predictive
from compound.random import Generators, named_generator
from compound.types import Batch, Task


@dataclass(frozen=True)
class DPNConfig:
    """Options of `dpn`.

    Parameters
    ----------
    widths : tuple of int, optional
        Units of the hidden layers; None: (100,) for classes, (50,) for targets.
    divergence : {'forward', 'reverse'}, optional
        None: forward for classes; targets have only the reverse one.
    concentration : float, optional
        P (forward) or T (reverse) of training rows; None: 1000, or 100 for classes with reverse.
    smoothing : float, default=0.01
        e, classes with forward: part of b_y that every other class gets.
    ood_weight : float, default=1.0
        γ, weight of the out-of-distribution rows.
    cross_entropy : float, default=0.0
        c, classes: weight of the negative log-likelihood beside the divergences.
    kappa : float, default=0.01
        κ₀, targets: weight of the prior of the mean, in observations.
    """

    widths: tuple[int, ...] | None = None
    divergence: Literal["forward", "reverse"] | None = None
    concentration: float | None = None
    smoothing: float = 0.01
    ood_weight: float = 1.0
    cross_entropy: float = 0.0
    kappa: float = 0.01


class DPN(Model):
    """A network whose output is a distribution over distributions, trained with out-of-distribution rows."""

    method = "dpn"
    Config = DPNConfig
    reference = "Malinin and Gales (2018)"
    components = ("component", "posterior")
    needs_ood_rows = True
    rows_in_memory = "it trains with outliers made from all rows"

    def __init__(self, inputs: int, task: Task, config: DPNConfig, seed: int = 0):
        super().__init__()
        self.inputs, self.task = inputs, task
        divergence = "forward" if task.kind == "classification" else "reverse"
        config = with_defaults(config, {"widths": WIDTHS[task.kind], "divergence": divergence})
        strength = 100.0 if task.kind == "classification" and config.divergence == "reverse" else 1000.0
        self.config = with_defaults(config, {"concentration": strength})
        _check(self.config, task)
        output = DirichletOutput if task.kind == "classification" else NormalWishartOutput
        self.likelihood: PriorNetworkOutput = output(task.size, self.config)
        self.network = Network(
            (inputs, *self.config.widths, self.likelihood.outputs), [named_generator(seed, "weights")]
        )

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        """Set the constants of the outputs from the training targets; ValueError without OOD rows."""
        _ood_rows(data)
        self.likelihood.on_fit_start(data.y[train_mask(data)])

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        x = batch.x.new_empty(len(batch) + len(_ood_rows(batch)), self.inputs)
        torch.clamp(batch.x, -LIMIT, LIMIT, out=x[: len(batch)])
        torch.clamp(_ood_rows(batch), -LIMIT, LIMIT, out=x[len(batch) :])
        f = self.network.forward_clamped(x)  # (1, rows + OOD rows, outputs)
        each, divergence = self.likelihood.nll_and_kl(f, batch.y)
        in_dist, ood = divergence.tensor_split([len(batch)], -1)
        nll = weighted_row_mean(each, batch.row_weights)  # (1,)
        kl = (
            weighted_row_mean(in_dist, batch.row_weights)
            + self.config.ood_weight * weighted_row_mean(ood, batch.ood_weights)
        ) / self.config.concentration
        return Loss((self.likelihood.nll_weight * nll + kl).sum(), nll.detach(), kl.detach())

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        return self.likelihood.predictive(self.network(x)[0])


def _ood_rows(batch: Batch) -> Tensor:  # (OOD rows, inputs)
    """`batch.x_ood`; ValueError where there is none."""
    if batch.x_ood is None:
        raise ValueError(
            "dpn needs x_ood: give out-of-distribution rows, as make_dataset(x, y, task, x_ood=...)"
        )
    return batch.x_ood


def _check(config: Any, task: Task) -> None:
    """Raise ValueError for options out of range, or that the task does not have."""
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
            f"smoothing is {config.smoothing}: "
            f"with {task.size} classes it must lie between 0 and 1/{task.size}"
        )
