"""What methods have in common that train one network, or several side by side, for one observation model."""

from dataclasses import dataclass
from typing import Literal

from torch import Generator

from compound.models.base import WIDTHS, Model, train_mask, with_defaults
from compound.models.observation import ObservationModel, observation_model
from compound.types import Batch, Task


@dataclass(frozen=True)
class NetworkConfig:
    """Options of every such method.

    Parameters
    ----------
    widths : tuple of int, optional
        Units of the hidden layers; None: (100,) for classes, (50,) for targets.
    noise : float, default=0.0
        Standard deviation of targets given the network; 0: learnt.
    noise_rate : float, default=5.0
        Factor on the learning rate of the learnt noise.
    """

    widths: tuple[int, ...] | None = None
    noise: float = 0.0
    noise_rate: float = 5.0


@dataclass(frozen=True)
class NetworkVarianceConfig(NetworkConfig):
    """Options of those whose network may predict a variance for each row.

    Parameters
    ----------
    variance : {'one', 'rows'}, default='one'
        Targets: one variance, or one per row from the network.
    """

    variance: Literal["one", "rows"] = "one"


class NetworkModel(Model):
    """A method with the options of `NetworkConfig`; a subclass adds networks, loss and prediction."""

    likelihood: ObservationModel

    def __init__(self, inputs: int, task: Task, config: NetworkConfig, members: int = 1):
        super().__init__()
        self.inputs, self.task, self.members = inputs, task, members
        self.config = with_defaults(config, {"widths": WIDTHS[task.kind]})
        variance = config.variance if isinstance(config, NetworkVarianceConfig) else "one"
        self.likelihood = observation_model(task, members, config.noise, variance)

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of inputs, of units of each hidden layer, and of outputs."""
        return self.inputs, *self.config.widths, self.likelihood.outputs

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        """Set the constants of the likelihood from the training targets."""
        self.likelihood.on_fit_start(data.y[train_mask(data)])

    def lr_multipliers(self) -> dict[str, float]:
        return {"log_noise": self.config.noise_rate}
