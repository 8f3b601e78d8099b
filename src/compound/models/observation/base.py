"""The interface of observation models."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from compound.models.base import weighted_row_mean
from compound.predictive import Predictive
from compound.types import RowWeights


class ObservationModel(nn.Module, ABC):
    """The distribution p(y | f) of labels or targets y, given a network's outputs f."""

    outputs: int  # numbers that the network must output per row

    def on_fit_start(self, y: Tensor) -> None:
        """Set constants from y of the training rows, (rows,) or (rows, targets); default: none."""

    @abstractmethod
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:  # (members, ..., rows)
        """log p(y | f) of each row, for outputs f (members, ..., rows, outputs)."""

    def nll(self, f: Tensor, y: Tensor, weight: Tensor | RowWeights | None) -> Tensor:  # (members,) or ()
        """Mean over rows of -log p(y | f), for f (members, rows, outputs) or (rows, outputs).

        `weight` is as in `weighted_row_mean`: that of the rows, (rows,) or (members, rows), or None.
        """
        return -weighted_row_mean(self.log_prob(f, y), weight)

    @abstractmethod
    def predictive(self, f: Tensor) -> Predictive:
        """The predictive of a mixture over draws f (members, n_samples, n_inner, rows, outputs)."""
