"""What all predictive distributions have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Generator, Tensor


@dataclass(frozen=True)
class Predictive(ABC):
    """The predictive distribution of a number of rows.

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
        return parts[0] if len(parts) == 1 else parts[0]._concat(parts)
