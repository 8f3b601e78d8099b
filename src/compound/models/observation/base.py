"""The interface of observation models."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from compound.models.base import weighted_row_mean
from compound.predictive import Predictive


class ObservationModel(nn.Module, ABC):
    """p(y | f) of a network's outputs f."""

    outputs: int  # of the network

    def on_fit_start(self, y: Tensor) -> None:
        """Constants from the targets of the training rows."""

    @abstractmethod
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:  # (members, ..., rows)
        """Log-densities of y under outputs f (members, ..., rows, outputs)."""

    def nll(self, f: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:  # (members,) or ()
        """Mean over rows of -log p(y | f), weighted, for f ((members,) rows, outputs)."""
        return -weighted_row_mean(self.log_prob(f, y), weight)

    @abstractmethod
    def predictive(self, f: Tensor) -> Predictive:
        """From draws f (members, n_samples, n_inner, rows, outputs)."""
