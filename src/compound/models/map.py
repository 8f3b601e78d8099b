"""Maximum a posteriori: one set of weights θ, with a Gaussian prior as penalty.

    minimise  mean -log p(y | f(x; θ)) + δ / (2 N) |θ|²

δ = 1 is the centre of the Laplace posterior, δ = 0 maximum likelihood. Biases are penalised like weights.

A draw: there is none, and the posterior part is 0.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Generator, Tensor

from compound.models.base import WIDTHS, Loss, Model, train_mask, with_defaults
from compound.models.observation import observation_model
from compound.nn.networks import Network, l2_penalty
from compound.predictive import Predictive
from compound.random import Generators, named_generator
from compound.types import Batch, Task


@dataclass(frozen=True)
class MAPConfig:
    """Options of `map`.

    Parameters
    ----------
    widths : tuple of int, optional
        Units of the hidden layers; None: (100,) for classes, (50,) for targets.
    precision : float, default=1.0
        δ, prior precision of every weight.
    noise : float, default=0.0
        Standard deviation of targets given the network; 0: learnt.
    noise_rate : float, default=5.0
        Factor on the learning rate of the learnt noise.
    variance : {'one', 'rows'}, default='one'
        Targets: one variance, or one per row from the network.
    """

    widths: tuple[int, ...] | None = None
    precision: float = 1.0
    noise: float = 0.0
    noise_rate: float = 5.0
    variance: Literal["one", "rows"] = "one"


class MAP(Model):
    """A network at the mode of its posterior."""

    method = "map"
    Config = MAPConfig
    reference = "MacKay (1992)"
    components = ("component",)

    def __init__(self, inputs: int, task: Task, config: MAPConfig, seed: int = 0):
        super().__init__()
        if config.precision < 0:
            raise ValueError(f"precision is {config.precision}: give a number >= 0")
        self.inputs, self.task = inputs, task
        self.config = with_defaults(config, {"widths": WIDTHS[task.kind]})
        self.likelihood = observation_model(task, 1, config.noise, config.variance)
        self.network = Network(
            (inputs, *self.config.widths, self.likelihood.outputs), [named_generator(seed, "weights")]
        )

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        """Set the constants of the likelihood from the training targets."""
        self.likelihood.on_fit_start(data.y[train_mask(data)])

    def lr_multipliers(self) -> dict[str, float]:
        return {"log_noise": self.config.noise_rate}

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        nll = self.likelihood.nll(self.network(batch.x).squeeze(0), batch.y, batch.weight)  # () or (1,)
        penalty = l2_penalty(self.network.parameters(), self.config.precision / batch.size)  # (1,)
        return Loss((nll + penalty).sum(), nll.detach(), penalty.detach())

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        return self.likelihood.predictive(self.network(x)[:, None, None])
