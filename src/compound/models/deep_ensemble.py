"""Deep ensemble: networks θ_1..θ_M with different initial weights, each trained by itself on all rows.

    minimise for every m  mean -log p(y | f(x; θ_m)) [ + mean -log p(y | f(x'; θ_m)) ] + δ / (2 N) |θ_m|²
    predict               p(y | x) = 1/M sum_m p(y | f(x; θ_m))
    x' = x + ε sign ∇_x -log p(y | f(x; θ_m)),   ε a fraction of each input's range (optional)

Lakshminarayanan, Pritzel and Blundell (2017). Targets get a variance for every row, from the network. Losses
of members are summed, not averaged: each member takes the steps it would take alone.

A draw: a member. All of them are used in every prediction, so nothing is random, and n_samples and n_inner
have no effect.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from compound.attacks import fgsm
from compound.models.base import Loss, train_mask, weighted_row_mean
from compound.models.network_model import NetworkModel, NetworkVarianceConfig
from compound.nn.networks import Network, l2_penalty
from compound.ops.clamp import clamp_inputs
from compound.predictive import Predictive
from compound.random import Generators, member_seed, named_generator
from compound.types import Batch, Task


@dataclass(frozen=True)
class DeepEnsembleConfig(NetworkVarianceConfig):
    """Options of `deep-ensemble`.

    Parameters
    ----------
    members : int, default=5
        M, networks of the ensemble.
    adversarial : float, default=0.0
        ε as a fraction of each input's range, 0.01 in the paper; 0: no adversarial training.
    precision : float, default=0.0
        δ, prior precision of every weight.
    variance : {'one', 'rows'}, default='rows'
        Targets: a variance per row from the network, or one for all.
    """

    members: int = 5
    adversarial: float = 0.0
    precision: float = 0.0
    variance: Literal["one", "rows"] = "rows"


class DeepEnsemble(NetworkModel):
    """Networks side by side, as one batched computation."""

    method = "deep-ensemble"
    takes_families = True
    Config = DeepEnsembleConfig
    reference = "Lakshminarayanan et al. (2017)"
    components = ("component", "posterior")
    fgsm_eps: Tensor  # (inputs,) ε times the range of each input

    def __init__(self, inputs: int, task: Task, config: DeepEnsembleConfig, seed: int = 0):
        if config.members < 1:
            raise ValueError(f"members is {config.members}: give at least one")
        for name in ("adversarial", "precision"):
            if not getattr(config, name) >= 0:
                raise ValueError(f"{name} is {getattr(config, name)}: give a number >= 0")
        if config.noise and config.variance == "rows":
            raise ValueError(f"noise is {config.noise}: a given noise needs variance='one'")
        super().__init__(inputs, task, config, config.members)
        streams = [named_generator(member_seed(seed, k), "weights") for k in range(self.members)]
        self.network = Network(self.widths, streams)
        self.register_buffer("fgsm_eps", torch.zeros(inputs, dtype=torch.float32))

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        """Set the constants of the likelihood, and ε from the range of each input, from the training rows."""
        super().on_fit_start(data, generator)
        x = clamp_inputs(data.x[train_mask(data)])
        self.fgsm_eps.copy_(self.config.adversarial * (x.amax(0) - x.amin(0)))

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:  # (members, rows)
        """Log-densities of y under each member, for x (rows, inputs) or (members, rows, inputs)."""
        return self.likelihood.log_prob(self.network(x), y)

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        nll = -weighted_row_mean(self.log_prob(batch.x, batch.y), batch.row_weights)  # (members,)
        total = nll
        if self.config.adversarial:
            x = clamp_inputs(batch.x).expand(self.members, -1, -1)
            attacked = fgsm(lambda x: -self.log_prob(x, batch.y), x, self.fgsm_eps)  # (members, rows, inputs)
            total = total - weighted_row_mean(self.log_prob(attacked, batch.y), batch.row_weights)
        if not self.config.precision:
            return Loss(total.sum(), nll.detach(), torch.zeros_like(nll))
        penalty = l2_penalty(self.network.parameters(), self.config.precision / batch.size)  # (members,)
        return Loss((total + penalty).sum(), nll.detach(), penalty.detach())

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        return self.likelihood.predictive(self.network(x)[:, None, None])

    @torch.no_grad()
    def nll(self, batch: Batch, n_samples: int, generator: Generator) -> Tensor:  # (members,)
        """Mean NLL under each member's own predictive, weighted by `batch.weight`."""
        return -weighted_row_mean(self.log_prob(batch.x, batch.y), batch.weight)
