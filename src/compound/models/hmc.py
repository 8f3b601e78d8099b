"""Hamiltonian Monte Carlo over the weights of a small network: the posterior itself, not an approximation.

    p(θ | D) ∝ exp(-U(θ)),    U(θ) = sum_n w_n -log p(y_n | f(x_n; θ)) + δ/2 |θ|²

Neal (1995). Chains start at networks that were trained to the mode, from different initial weights, by the
loss of `map`; then every chain simulates Hamiltonian dynamics on all rows at once. A learnt noise of targets
stays at its value at the mode. The cost is that of (warmup + draws / members) * leapfrog passes over all
rows: for reference posteriors of small data, not for images.

A draw: one set of weights of one chain. All that were kept are used in every prediction, so nothing is
random then, and n_samples and n_inner have no effect.
"""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.func import functional_call

from compound.models import hamiltonian
from compound.models.base import Loss, train_mask, weighted_row_mean
from compound.models.network_model import NetworkConfig, NetworkModel
from compound.nn.networks import Network, l2_penalty
from compound.ops.clamp import clamp_inputs
from compound.predictive import Predictive
from compound.random import Generators, member_seed, named_generator
from compound.types import Batch, Task


@dataclass(frozen=True)
class HMCConfig(NetworkConfig):
    """Options of `hmc`.

    Parameters
    ----------
    members : int, default=4
        Chains, each from a network of its own.
    draws : int, default=200
        Draws that are kept, of all chains together.
    warmup : int, default=200
        Iterations of each chain that adapt its step and are not kept.
    leapfrog : int, default=30
        Leapfrog steps of an iteration.
    precision : float, default=1.0
        δ, prior precision of every weight.
    """

    members: int = 4
    draws: int = 200
    warmup: int = 200
    leapfrog: int = 30
    precision: float = 1.0


class HMC(NetworkModel):
    """A network with draws of its weights from their posterior."""

    method = "hmc"
    Config = HMCConfig
    reference = "Neal (1995)"
    components = ("component", "posterior")
    max_rows = 20_000
    samples: Tensor  # (draws of a chain, chains, weights)
    sampled: Tensor  # () whether `samples` hold draws; before, the networks at the mode predict
    acceptance: Tensor  # (chains,) mean acceptance probability

    def __init__(self, inputs: int, task: Task, config: HMCConfig, seed: int = 0):
        for name in ("members", "draws", "leapfrog"):
            if getattr(config, name) < 1:
                raise ValueError(f"{name} is {getattr(config, name)}: give at least 1")
        if config.warmup < 0:
            raise ValueError(f"warmup is {config.warmup}: give a number >= 0")
        if not 0 < config.precision < math.inf:
            raise ValueError(f"precision is {config.precision}: give a number above 0")
        super().__init__(inputs, task, config, config.members)
        streams = [named_generator(member_seed(seed, k), "weights") for k in range(self.members)]
        self.network = Network(self.widths, streams)
        draws = math.ceil(config.draws / config.members)
        self.register_buffer("samples", self._weights().detach().expand(draws, -1, -1).clone())
        self.register_buffer("sampled", torch.zeros((), dtype=torch.bool))
        self.register_buffer("acceptance", torch.zeros(config.members, dtype=torch.float32))

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        rows = int(train_mask(data).sum())
        if rows > self.max_rows:
            raise ValueError(
                f"hmc passes over all {rows} training rows thousands of times: give at most {self.max_rows}, "
                "or use another method such as laplace"
            )
        super().on_fit_start(data, generator)

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        nll = -weighted_row_mean(self.likelihood.log_prob(self.network(batch.x), batch.y), batch.row_weights)
        penalty = l2_penalty(self.network.parameters(), self.config.precision / batch.size)  # (members,)
        return Loss((nll + penalty).sum(), nll.detach(), penalty.detach())

    def _weights(self) -> Tensor:  # (chains, weights)
        """The parameters of each chain's network in a row."""
        return torch.cat([p.flatten(1) for p in self.network.parameters()], 1)

    def outputs_given(self, weights: Tensor, x: Tensor) -> Tensor:  # (chains, rows, outputs)
        """Outputs of networks with given weights (chains, weights) for clamped x (rows, inputs)."""
        named = dict(self.network.named_parameters())
        parts = weights.split([p[0].numel() for p in named.values()], 1)
        given = {name: part.view_as(p) for (name, p), part in zip(named.items(), parts, strict=True)}
        return functional_call(self.network, given, (x,))  # type: ignore[no-any-return]

    def energy(self, data: Batch) -> hamiltonian.Energy:
        """U as a function of the weights (chains, weights) -> (chains,), in the dtype of data.x."""
        x = clamp_inputs(data.x)
        weight = torch.ones(len(data), dtype=x.dtype) if data.weight is None else data.weight.to(x.dtype)

        def energy(weights: Tensor) -> Tensor:
            log_prob = self.likelihood.log_prob(self.outputs_given(weights, x), data.y)  # (chains, rows)
            return 0.5 * self.config.precision * weights.square().sum(1) - (weight * log_prob).sum(-1)

        return energy

    @torch.no_grad()
    def on_fit_end(self, data: Batch, generator: Generator) -> None:
        """Run the chains from the trained weights, in float64: differences of energies are small."""
        targets = data.y.double() if data.y.is_floating_point() else data.y
        double = Batch(data.x.double(), targets, data.size, data.index, data.weight)
        counts = len(self.samples), self.config.warmup, self.config.leapfrog
        found = hamiltonian.sample(self.energy(double), self._weights().double(), *counts, generator)
        self.samples.copy_(found.positions)
        self.acceptance.copy_(found.acceptance)
        self.sampled.fill_(True)

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        if not bool(self.sampled):
            return self.likelihood.predictive(self.network(x)[:, None, None])
        x = clamp_inputs(x)
        f = torch.stack([self.outputs_given(weights, x) for weights in self.samples], 1)
        return self.likelihood.predictive(f.unsqueeze(2))  # (chains, draws, 1, rows, outputs)

    @torch.no_grad()
    def nll(self, batch: Batch, n_samples: int, generator: Generator) -> Tensor:  # (members,)
        """Mean NLL of each chain's network at the mode, weighted by `batch.weight`."""
        return -weighted_row_mean(self.likelihood.log_prob(self.network(batch.x), batch.y), batch.weight)

    def floats_per_row(self, n_samples: int, n_inner: int) -> int:
        return super().floats_per_row(len(self.samples) * self.members, 1)
