"""What all predictive distributions have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from torch import Generator, Tensor

from compound.predictive.rows import RowContainer, join_scores


@dataclass(frozen=True)
class Predictive(RowContainer, ABC):
    """The predictive distribution of a number of rows.

    `len(p)` is their number, `p[3]`, `p[2:9]` or `p[mask]` the predictive of some, `p.to("cuda")` moves it.

    Its parts of the uncertainty are variances (rows, targets) for regression, entropies in nats (rows,) for
    classification.

    Parameters
    ----------
    component : Tensor of shape (rows,) or (rows, targets)
        Uncertainty of y given the parameters of its distribution.
    mixing : Tensor of the same shape
        What the mixing distribution adds.
    posterior : Tensor of the same shape
        What is not known about the model: more data would reduce it.
    ood : OODScores, optional
        Scores and threshold behind `is_ood`, where whoever predicted knows them.
    conformal : callable, optional
        Maps a coverage to a conformal quantile, where held-out rows have calibrated one.

    Examples
    --------
    >>> import torch
    >>> from compound import CategoricalPredictive
    >>> logs = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log().reshape(2, 1, 1, 2)  # two networks, one row
    >>> p = CategoricalPredictive.from_draws(logs)
    >>> bool(torch.isclose(p.total, p.aleatoric + p.epistemic))
    True
    """

    component: Tensor
    mixing: Tensor
    posterior: Tensor

    @property
    def aleatoric(self) -> Tensor:
        """component + mixing."""
        return self.component + self.mixing

    @property
    def epistemic(self) -> Tensor:
        """posterior."""
        return self.posterior

    @property
    def total(self) -> Tensor:
        """component + mixing + posterior."""
        return self.component + self.mixing + self.posterior

    @abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:  # (rows,)
        """Log of the predictive probability of labels y (rows,), or density of targets y (rows, targets)."""

    @abstractmethod
    def entropy(self) -> Tensor:  # (rows,) or (rows, targets)
        """Entropy of the predictive distribution, in nats."""

    @abstractmethod
    def sample(self, n: int, generator: Generator) -> Tensor:  # (n, rows) or (n, rows, targets)
        """n draws of y for every row."""

    @abstractmethod
    def sets(self, coverage: float = 0.9) -> Any:
        """Classes: sets (rows, classes) bool. Targets: the bounds of an interval, (rows, targets) each.

        They are conformal, so that they hold y with this probability, if held-out rows have calibrated them;
        otherwise they take the predictive at its word.
        """

    @abstractmethod
    def plot(self, row: int = 0, *, axis: Any = None) -> Any:
        """Draw the predictive of one row on a matplotlib axis, by default a new one; returns the axis."""

    @abstractmethod
    def with_far_noise(self, t: Tensor, far_params: Tensor) -> Self:
        """The predictive with far noise t (rows,) added.

        For classes t is the log-odds that the probabilities are far_params (classes,). For targets the
        variance far_params² exp(t) is added, far_params (targets,).
        """

    @abstractmethod
    def _concat(self, parts: Sequence[Self]) -> Self:
        """`concat` for parts of this class."""

    @staticmethod
    def concat(parts: "Sequence[Predictive]") -> "Predictive":
        """One predictive for all rows, from the predictives of consecutive chunks of them."""
        if len(parts) == 1:
            return parts[0]
        return cast(Predictive, join_scores(parts, parts[0]._concat(parts)))
