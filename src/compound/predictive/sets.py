"""Sets of classes and out-of-distribution scores: what whoever predicts may attach to a predictive."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# A coverage as the largest score of a class in the set (a number), or as |z| of the bounds of an interval
# (targets,); from held-out rows, as `ConformalSets.conformal_quantile` gives it.
ConformalQuantile = Callable[[float], Any]


@dataclass(frozen=True)
class OODScores:
    """Out-of-distribution scores of rows, with the threshold beyond which a row is out of distribution.

    Parameters
    ----------
    scores : Tensor of shape (rows,)
    threshold : float
    """

    scores: Tensor
    threshold: float

    @property
    def is_ood(self) -> Tensor:  # (rows,) bool
        return self.scores > self.threshold


def aps_score(probs: Tensor) -> Tensor:  # (rows, classes)
    """The score of each class: the total probability of all likelier classes; probs is (rows, classes).

    Of classes with equal probabilities, the first counts as likelier.
    """
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    return torch.empty_like(probs).scatter_(-1, order, ordered.cumsum(-1) - ordered)


def check_coverage(coverage: float) -> None:
    if not 0 < coverage < 1:
        raise ValueError(f"coverage is {coverage}: it must lie between 0 and 1, such as 0.9")
