"""Probabilistic backpropagation: a Gaussian for every weight, updated row by row in closed form.

    q(θ, γ, λ) = prod_i N(w_i; m_i, v_i) Gamma(γ; α_γ, β_γ) Gamma(λ; α_λ, β_λ)
    y_n ~ N(f(x_n; θ), 1 / γ),    w_i ~ N(0, 1 / λ),    γ, λ ~ Gamma(6, 6)

Hernández-Lobato and Adams (2015). Assumed-density filtering: the moments of the network's output give log Z
of a row, and its derivatives the new m and v (`ops/moment_propagation.py`). The factors of the prior are
refined once per pass over the rows by expectation propagation (`ops/prior_refinement.py`). Nothing is drawn
and there is no learning rate: what `loss` gives as a gradient is the difference of old and new values. About
40 passes, as published. For targets.

A draw: there is none. The variance that the weights leave in the output is epistemic.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from compound.models.base import WIDTHS, Loss, Model, OptimizerSettings, train_mask, with_defaults
from compound.ops.clamp import clamp_inputs
from compound.ops.gaussian_noise import standard_normal
from compound.ops.moment_propagation import filter_rows, layer_shapes, log_evidence, moments
from compound.ops.prior_refinement import refine_prior
from compound.predictive import GaussianPredictive, Predictive
from compound.random import Generators, named_generator
from compound.types import Batch, Task

SHAPE = 6.0  # α of both Gamma priors, as published; β is α times the variance that is expected
DOUBLE = torch.float64  # updates are small against the values


@dataclass(frozen=True)
class PBPConfig:
    """Options of `pbp`.

    Parameters
    ----------
    widths : tuple of int, optional
        Units of the hidden layers; None: (50,).
    """

    widths: tuple[int, ...] | None = None


class PBP(Model):
    """A network whose moments are propagated."""

    method = "pbp"
    Config = PBPConfig
    reference = "Hernández-Lobato and Adams (2015)"
    components = ("component", "posterior")
    kinds = ("regression",)
    clips_gradients = False  # they are updates
    whole_batches = "rows are visited one after another"

    def __init__(self, inputs: int, task: Task, config: PBPConfig, seed: int = 0):
        super().__init__()
        self.inputs, self.task = inputs, task
        self.config = with_defaults(config, {"widths": WIDTHS["regression"]})
        shapes, stream = layer_shapes(self.widths), named_generator(seed, "weights")
        like = torch.empty(0, dtype=DOUBLE)
        draws = [standard_normal(stream, shape, like) / math.sqrt(shape[0]) for shape in shapes]
        variance = SHAPE / (SHAPE - 1)  # of the prior at the mean of 1 / λ
        self.mean = nn.Parameter(torch.cat([draw.flatten() for draw in draws]))  # m, (P,)
        self.variance = nn.Parameter(torch.full_like(self.mean, variance))  # v
        sites = torch.zeros(4, len(self.mean), dtype=DOUBLE)
        sites[1] = 1 / variance
        self.sites = nn.Parameter(sites)  # of the prior's factors
        self.weight_gamma = nn.Parameter(torch.full((2,), SHAPE, dtype=DOUBLE))  # α and β of λ
        self.noise_gamma = nn.Parameter(torch.full((task.size, 2), SHAPE, dtype=DOUBLE))  # of γ, per target
        self.rows_seen = nn.Parameter(torch.zeros((), dtype=DOUBLE))  # since the prior was refined

    @property
    def widths(self) -> tuple[int, ...]:
        return self.inputs, *self.config.widths, self.task.size

    @torch.no_grad()
    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        """Set β of the noise from the variance of the training targets; refuse rows that weigh unequally."""
        if data.weight is not None and len(data.weight[data.weight > 0].unique()) > 1:
            raise ValueError(
                "pbp visits all rows alike: sample weights must be equal, or 0 for held-out rows"
            )
        variance = data.y[train_mask(data)].double().var(0, correction=0)
        self.noise_gamma[:, 1] = SHAPE * torch.where(variance > 0, variance, 1.0)

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        """-log Z per row; backward gives old minus new values of all parameters."""
        keep = train_mask(batch)
        x, y = clamp_inputs(batch.x)[keep].to(DOUBLE), batch.y[keep].to(DOUBLE)
        parameters = list(self.parameters())
        total = _Filter.apply(self._visit, x, y, batch.size, *parameters)
        return Loss(total, total.detach(), torch.zeros_like(total.detach()))

    @torch.no_grad()
    def _visit(self, x: Tensor, y: Tensor, size: float) -> tuple[Tensor, list[Tensor]]:
        """Mean of -log Z over rows x (rows, in), y (rows, targets), and new values of all parameters."""
        new = [parameter.detach().to(DOUBLE).clone() for parameter in self.parameters()]
        mean, variance, sites, weight_gamma, noise_gamma, seen = new
        log_z = filter_rows(x.contiguous(), y.contiguous(), mean, variance, noise_gamma, self.widths)
        seen += len(x)
        if float(seen) >= size:
            refine_prior(mean, variance, sites, weight_gamma)
            seen -= size
        return x.new_tensor(-log_z / max(len(x), 1)), new

    def optimizer(self, settings: OptimizerSettings) -> torch.optim.Optimizer:
        return Assign(self.parameters())

    def noise_variance(self) -> Tensor:  # (targets,)
        """β / (α - 1), the variance of y given f."""
        return self.noise_gamma[:, 1] / (self.noise_gamma[:, 0] - 1)

    def output_moments(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (rows, targets) each
        """Mean and variance of the network's outputs for x (rows, inputs)."""
        return moments(clamp_inputs(x).to(self.mean.dtype), self.mean, self.variance, self.widths)

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        mean, variance = (part.to(x.dtype) for part in self.output_moments(x))
        noise = self.noise_variance().to(x.dtype).expand_as(mean)
        zero = torch.zeros_like(mean)
        return GaussianPredictive(noise, zero, variance, mean[None], (noise + variance)[None])

    @torch.no_grad()
    def nll(self, batch: Batch, n_samples: int, generator: Generator) -> Tensor:  # (1,)
        """Mean NLL of the predictive, weighted by `batch.weight`."""
        values = -log_evidence(*self.output_moments(batch.x), batch.y.double(), self.noise_variance())
        weight = torch.ones_like(values) if batch.weight is None else batch.weight.double()
        return ((weight * values).sum(-1) / weight.sum(-1)).reshape(-1).to(batch.x.dtype)


class _Filter(torch.autograd.Function):
    """The loss of the rows that `visit` visits; gradients are old minus new parameters."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        visit: Callable[..., tuple[Tensor, list[Tensor]]],
        x: Tensor,
        y: Tensor,
        size: float,
        *old: Tensor,
    ) -> Tensor:
        loss, new = visit(x, y, float(size))
        ctx.save_for_backward(*(a.detach() - b.to(a.dtype) for a, b in zip(old, new, strict=True)))
        return loss

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return None, None, None, None, *ctx.saved_tensors


class Assign(torch.optim.Optimizer):
    """Subtracts gradients as they are: there is no learning rate."""

    def __init__(self, parameters: Any):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad)
