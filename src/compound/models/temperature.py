"""Temperature scaling: one number, from held-out rows, flattens or sharpens a network's predictive.

    p_T(y | x) ~ p(y | f(x; θ))^(1/T):    softmax(f / T),    or  N(m, T v), one T per target

Guo, Pleiss, Sun and Weinberger (2017). T minimises the NLL of the held-out rows: for classes the root of a
decreasing function of T (the NLL is convex in 1/T), for targets the mean of (y - m)² / v. Held-out rows are
those of weight 0, which also choose the stopping step; without any T stays 1, and `fit` holds out nothing
unless the weights say so.

A draw: there is none, and the posterior part is 0.
"""

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Generator, Tensor

from compound.models.base import Loss, Model
from compound.models.map import MAP, MAPConfig
from compound.predictive import GaussianPredictive, Predictive
from compound.random import Generators
from compound.types import Batch, Task

LOW, HIGH = 0.05, 20.0  # bounds of T for classes: if all held-out labels are predicted, the NLL is least at 0
LEAST = 1e-6  # lower bound of T for targets: variances stay positive
ROWS = 10_000  # held-out rows that go through the network together


@dataclass(frozen=True)
class TemperatureConfig(MAPConfig):
    """The options of `map`."""


class Temperature(Model):
    """A network with a temperature."""

    method = "temperature"
    Config = TemperatureConfig
    reference = "Guo et al. (2017)"
    components = ("component",)
    temperature: Tensor  # T, () or (targets,)

    def __init__(self, inputs: int, task: Task, config: TemperatureConfig, seed: int = 0):
        super().__init__()
        self.base_model = MAP(inputs, task, config, seed)
        self.inputs, self.task, self.config = inputs, task, self.base_model.config
        shape = () if task.kind == "classification" else (task.size,)
        self.register_buffer("temperature", torch.ones(shape, dtype=torch.float32))

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        """Set the constants of the network's likelihood, and T to 1."""
        self.temperature.fill_(1.0)
        self.base_model.on_fit_start(data, generator)

    def lr_multipliers(self) -> dict[str, float]:
        return self.base_model.lr_multipliers()

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        return self.base_model.loss(batch, generator)

    @torch.no_grad()
    def on_fit_end(self, data: Batch, generator: Generator) -> None:
        """Set T to minimise the NLL of the held-out rows, those of weight 0; nothing where there are none."""
        if data.weight is None:
            return
        held = data.weight.reshape(-1) == 0
        if not bool(held.any()):
            return
        f = torch.cat(
            [self.base_model.network(rows)[0] for rows in data.x[held].split(ROWS)]
        ).double()  # (rows, outputs)
        y = data.y[held]
        if self.task.kind == "classification":
            self.temperature.fill_(best_temperature(f, y))
        else:
            p = cast(GaussianPredictive, self.base_model.likelihood.predictive(f[None, None, None]))
            self.temperature.copy_(((y - p.means[0]).square() / p.variances[0]).mean(0).clamp_min(LEAST))

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        f = self.base_model.network(x)[:, None, None]
        if self.task.kind == "classification":
            return self.base_model.likelihood.predictive(f / self.temperature)
        p = cast(GaussianPredictive, self.base_model.likelihood.predictive(f))
        return replace(p, component=self.temperature * p.component, variances=self.temperature * p.variances)


def best_temperature(f: Tensor, y: Tensor) -> float:
    """T in [LOW, HIGH] that minimises mean -log softmax(f / T)_y, by bisection in 1/T.

    f are logits (rows, classes), y labels (rows,).
    """
    picked = f.gather(-1, y.unsqueeze(-1)).mean()
    low, high = 1 / HIGH, 1 / LOW
    for _ in range(60):
        middle = 0.5 * (low + high)
        slope = (torch.softmax(middle * f, -1) * f).sum(-1).mean() - picked
        low, high = (middle, high) if slope < 0 else (low, middle)
    return 2 / (low + high)
