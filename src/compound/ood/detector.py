"""Which rows are out of distribution: those farther from the training rows than nearly all rows like them.

The score is the distance d(x) of `compound.ood.distance`. The threshold is a quantile of the training rows'
cross-fitted distances, so that new rows from the same distribution exceed it at about the requested rate.

A threshold from n rows is itself random: the rate of new rows beyond it has a relative standard deviation of
1 / sqrt(n rate). With fewer than ENOUGH of n rows expected beyond it the rate may be wrong by a factor 2, and
`promised` is False. With fewer than one expected, the quantile is extrapolated: new rows exceed the largest
of n distances at the rate 1 / (n + 1), and for a tail P(d > t) ~ t⁻², the heaviest of finite variance, the
threshold is that distance times sqrt(1 / ((n + 1) rate)). For lighter tails the rate is below the requested
one.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Generator, Tensor

from compound.ood.distance import Distance

ENOUGH = 5.0  # rows expected beyond the threshold: the rate is then within a factor 2 in six tables of seven


@dataclass(frozen=True)
class OODDetector:
    """A fitted distance with a threshold.

    Parameters
    ----------
    distance : Distance
        Fitted to the training rows.
    threshold : float
        Rows with a larger distance are out of distribution.
    promised : bool, default=True
        Whether there were enough rows for the requested rate of false alarms.

    Examples
    --------
    >>> import torch
    >>> from compound import named_generator
    >>> from compound.ood import OODDetector
    >>> x = torch.randn(1000, 2, generator=named_generator(0, "x"))
    >>> detector = OODDetector.fit(x, 0.01, named_generator(0, "fit"))
    >>> detector.promised, bool(detector.scores(torch.full((1, 2), 9.0)) > detector.threshold)
    (True, True)
    """

    distance: Distance
    threshold: float
    promised: bool = True

    @classmethod
    def fit(cls, x: Tensor, false_positive_rate: float, generator: Generator) -> Self:
        """Fit the distance and its threshold to training rows (rows, features).

        `false_positive_rate`, between 0 and 1, is the fraction of such rows to be beyond the threshold.
        """
        distance = Distance(x.shape[1])
        return cls.from_distances(distance, distance.fit(x, generator), false_positive_rate)

    @classmethod
    def from_distances(cls, distance: Distance, cross_fitted: Tensor, false_positive_rate: float) -> Self:
        """The detector with a fitted distance, whose threshold is a quantile of distances (rows,).

        They are those of rows that the distance was not fitted to: cross-fitted, or of new rows.
        """
        return cls(distance, *ood_threshold(cross_fitted, false_positive_rate))

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:  # (rows,)
        """Distances of rows x (rows, features) from the training rows."""
        return self.distance(x)


def ood_threshold(scores: Tensor, false_positive_rate: float) -> tuple[float, bool]:
    """The score that new rows exceed at this rate, and whether so many rows (rows,) can promise it."""
    # a new score is equally likely in each of the n + 1 gaps between n scores: method "weibull"
    threshold = float(np.quantile(scores.double().numpy(), 1 - false_positive_rate, method="weibull"))
    beyond = (len(scores) + 1) * false_positive_rate  # expected number of rows there
    return threshold / math.sqrt(min(beyond, 1.0)), beyond >= ENOUGH
