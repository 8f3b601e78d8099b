"""Mixture density network: one network gives the weights and the parameters of K components.

    targets:  p(y | x) = sum_k π_k(x) N(y; μ_k(x), diag v_k(x)),    π = softmax(l),  v = softplus(ρ) + floor
    classes:  p(y | x) = sum_k π_k(x) softmax(f_k(x))_y

Bishop (1994). With `experts` every component has a network of its own, and the weights another one: a
mixture of experts (Jacobs, Jordan, Nowlan and Hinton 1991). Fitted by maximum likelihood; the floor, a
thousandth of the target's standard deviation, keeps a component from collapsing onto a single row, where the
likelihood is unbounded.

A draw: there is none. All uncertainty is aleatoric: within components (component) and between them (mixing).
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from compound.distributions import mixture_log_prob, weighted_log_sum, weighted_mean
from compound.models.base import WIDTHS, Loss, Model, train_mask, weighted_row_mean, with_defaults
from compound.models.observation import noise_floor
from compound.nn.networks import Network
from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive, entropy
from compound.random import Generators, member_seed, named_generator
from compound.types import Batch, Task


@dataclass(frozen=True)
class MDNConfig:
    """Options of `mdn`.

    Parameters
    ----------
    widths : tuple of int, optional
        Units of the hidden layers; None: (100,) for classes, (50,) for targets.
    components : int, default=5
        K, components of the mixture.
    experts : bool, default=False
        Whether every component, and their weights, have a network of their own.
    """

    widths: tuple[int, ...] | None = None
    components: int = 5
    experts: bool = False


class MDN(Model):
    """A network whose outputs are a mixture."""

    method = "mdn"
    Config = MDNConfig
    reference = "Bishop (1994)"
    components = ("component", "mixing")
    floor: Tensor  # (targets,) lower bound of the variances

    def __init__(self, inputs: int, task: Task, config: MDNConfig, seed: int = 0):
        super().__init__()
        if config.components < 1:
            raise ValueError(f"components is {config.components}: give at least one")
        self.inputs, self.task = inputs, task
        self.config = with_defaults(config, {"widths": WIDTHS[task.kind]})
        stream = named_generator(seed, "weights")
        if config.experts:
            per_expert = self.outputs // config.components - 1
            streams = [named_generator(member_seed(seed, k), "weights") for k in range(config.components)]
            self.gate = Network((inputs, *self.config.widths, config.components), [stream])
            self.network = Network((inputs, *self.config.widths, per_expert), streams)
        else:
            self.network = Network((inputs, *self.config.widths, self.outputs), [stream])
        if task.kind == "regression":
            self.register_buffer("floor", torch.full((task.size,), 1e-6, dtype=torch.float32))

    @torch.no_grad()
    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        """Targets: start the K components at quantiles of y, with standard deviation std(y) / K.

        If all started at the same mean, only the component nearest to the targets would learn. Classes:
        nothing.
        """
        if self.task.kind == "classification":
            return  # random weights tell the components apart
        y, count = data.y[train_mask(data)], self.config.components
        std = y.std(0, correction=0)  # (targets,)
        self.floor.copy_(torch.maximum(noise_floor(y), (1e-3 * std).square()))
        middle = (torch.arange(count) + 0.5) / count * len(y)
        means = y.sort(0).values[middle.long()]  # (K, targets) quantiles
        centred = y - y.mean(0)
        # targets that are negatively correlated with the first take their quantiles in descending order
        descending = (centred[:, :1] * centred).sum(0) < 0
        means = torch.where(descending, means.flip(0), means)
        variance = (torch.where(std > 0, std, 1.0) / count).square()
        rho = variance + (-torch.expm1(-variance)).log()  # softplus(ρ) = variance
        bias = self.network.layers[-1].bias  # (networks, 1, outputs)
        start = torch.cat([means, rho.expand_as(means)], 1)  # (K, 2 targets)
        if self.config.experts:
            bias.copy_(start.unsqueeze(1))
        else:
            bias[0, 0, count:] = start.flatten()

    def network_outputs(self, x: Tensor) -> Tensor:  # (rows, K + K n)
        """Outputs of all networks: K logits of the weights, then the n outputs of each component."""
        if not self.config.experts:
            return self.network(x)[0]
        return torch.cat([self.gate(x)[0], self.network(x).transpose(0, 1).flatten(1)], 1)

    def mixture(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (rows, K + K n) as log-weights (K, rows, 1) and each component's outputs (K, rows, n)."""
        logits, components = f.split([self.config.components, f.shape[-1] - self.config.components], -1)
        return torch.log_softmax(logits, -1).T.unsqueeze(-1), components.unflatten(
            -1, (self.config.components, -1)
        ).transpose(0, 1)

    def gaussians(self, components: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of the components (K, rows, 2 targets) as means and variances, (K, rows, targets) each."""
        mean, rho = components.split(self.task.size, -1)
        return mean, functional.softplus(rho) + self.floor

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:  # (rows,)
        """Log-density of each y under the mixture of the network's outputs f (rows, outputs)."""
        log_weights, components = self.mixture(f)
        if self.task.kind == "regression":
            return mixture_log_prob(y, *self.gaussians(components), log_weights)
        # (K, rows, 1)
        picked = torch.log_softmax(components, -1).gather(-1, y.expand(len(components), -1).unsqueeze(-1))
        return weighted_log_sum(picked, log_weights).squeeze(-1)

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        nll = -weighted_row_mean(self.log_prob(self.network_outputs(batch.x), batch.y), batch.row_weights)
        return Loss(nll.sum(), nll.detach(), torch.zeros_like(nll.detach()))

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        log_weights, components = self.mixture(self.network_outputs(x))
        if self.task.kind == "regression":
            means, variances = self.gaussians(components)
            within = weighted_mean(variances, log_weights)  # (rows, targets)
            between = weighted_mean((means - weighted_mean(means, log_weights)).square(), log_weights)
            zero = torch.zeros_like(within)
            return GaussianPredictive(within, between, zero, means, variances, log_weights)
        logs = torch.log_softmax(components, -1)  # (K, rows, classes)
        probs = weighted_log_sum(logs, log_weights).exp()
        total = entropy(probs)  # (rows,)
        within = torch.minimum(weighted_mean(entropy(logs.exp()), log_weights.squeeze(-1)), total)
        return CategoricalPredictive(within, total - within, torch.zeros_like(within), probs)

    @property
    def outputs(self) -> int:
        """Outputs of the network per row: for every component a weight, and logits or means and ρ."""
        return self.config.components * (1 + super().outputs)  # type: ignore[no-any-return]

    @property
    def hidden_units(self) -> int:
        networks = 1 + self.config.components if self.config.experts else 1
        return networks * super().hidden_units  # type: ignore[operator]
