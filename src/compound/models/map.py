"""Maximum a posteriori: one set of weights θ, with a Gaussian prior as penalty.

    minimise  mean -log p(y | f(x; θ)) + δ / (2 N) |θ|²

δ = 1 is the centre of the Laplace posterior, δ = 0 maximum likelihood. Biases are penalised like weights.

A draw: there is none, and the posterior part is 0.
"""

from dataclasses import dataclass

from torch import Generator, Tensor

from compound.models.base import Loss
from compound.models.network_model import NetworkModel, NetworkVarianceConfig
from compound.nn.networks import Network, l2_penalty
from compound.predictive import Predictive
from compound.random import Generators, named_generator
from compound.types import Batch, Task


@dataclass(frozen=True)
class MAPConfig(NetworkVarianceConfig):
    """Options of `map`.

    Parameters
    ----------
    precision : float, default=1.0
        δ, prior precision of every weight.
    """

    precision: float = 1.0


class MAP(NetworkModel):
    """A network at the mode of its posterior."""

    method = "map"
    takes_families = True
    Config = MAPConfig
    reference = "MacKay (1992)"
    components = ("component",)

    def __init__(self, inputs: int, task: Task, config: MAPConfig, seed: int = 0):
        if config.precision < 0:
            raise ValueError(f"precision is {config.precision}: give a number >= 0")
        super().__init__(inputs, task, config)
        self.network = Network(self.widths, [named_generator(seed, "weights")])

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        nll = self.likelihood.nll(self.network(batch.x).squeeze(0), batch.y, batch.row_weights)  # () or (1,)
        penalty = l2_penalty(self.network.parameters(), self.config.precision / batch.size)  # (1,)
        return Loss((nll + penalty).sum(), nll.detach(), penalty.detach())

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        return self.likelihood.predictive(self.network(x)[:, None, None])
