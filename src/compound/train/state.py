"""The state of a fit that is in neither model nor optimizer; a checkpoint holds all three."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from compound.models.base import Model
from compound.train.config import TrainConfig
from compound.train.history import COLUMNS, History


@dataclass
class TrainState:
    """What the next step reads besides model and optimizer."""

    ema: list[Tensor]  # moving averages of the trained parameters; empty without averaging
    best: list[Tensor]  # parameters and buffers at the best evaluation; empty before the first finite one
    sums: Tensor  # (2, members) NLL and KL summed over the steps since the last entry of the history
    columns: dict[str, list[float]]  # of the history
    step: int = 0  # steps done
    best_step: int = 0
    best_nll: float = math.inf  # held-out NLL of the best evaluation
    stale: int = 0  # evaluations since the best one
    skipped: int = 0  # members' gradients that were not finite, since the last entry of the history
    held_out: float = math.nan  # NLL of the last evaluation

    @classmethod
    def initial(cls, model: Model, config: TrainConfig, device: torch.device) -> "TrainState":
        """The state before the first step."""
        ema = [parameter.detach().clone() for parameter in trained_parameters(model)]
        sums = torch.zeros(2, model.members, dtype=torch.float64, device=device)
        return cls(ema if config.ema_decay else [], [], sums, History().columns)

    def out_of_patience(self, config: TrainConfig) -> bool:
        """Whether `config.patience` evaluations without a better held-out NLL have passed."""
        return config.patience > 0 and self.stale >= config.patience

    def record(self, lr: float) -> None:
        """Append an entry to the history, with `lr` as learning rate, and reset the sums."""
        steps = self.columns["step"]
        count = self.step - (steps[-1] if steps else 0)
        nll, kl = (self.sums.mean(1) / count).tolist()
        values = (self.step, lr, nll, kl, self.held_out, self.skipped)
        for name, value in zip(COLUMNS, values, strict=True):
            self.columns[name].append(value)
        self.sums.zero_()
        self.skipped = 0

    def history(self) -> History:
        """The learning curve of a fit that is complete."""
        return History(self.columns, self.best_step if self.best else self.step)


def trained_parameters(model: Model) -> list[Tensor]:
    """The parameters that the optimizer changes."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def model_tensors(model: Model) -> list[Tensor]:
    """Trained parameters and all buffers (some methods keep running estimates there): what a fit changes."""
    return [*trained_parameters(model), *model.buffers()]


@torch.no_grad()
def copy_tensors(targets: list[Tensor], values: list[Tensor]) -> None:
    """Copy values into the tensors of `targets`, one by one, in place."""
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)
