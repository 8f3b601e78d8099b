"""Which rows are out of distribution: those farther from the training rows than nearly all rows like them.

The score is the distance d(x) of `compound.ood.distance`. The threshold is a quantile of the training rows'
cross-fitted distances, so that about `false_alarms` of new rows from the same distribution exceed it.

The rate at which new rows exceed a threshold from n rows varies itself, by 1 / sqrt(n false_alarms) of its
size. With fewer than ENOUGH rows expected beyond the threshold not even a factor 2 is certain: then
`promised` is False. With fewer than one, the largest distance is exceeded at the rate 1 / (n + 1); where no
tail is heavier than one of finite variance, P(d > t) ~ t⁻², the requested rate lies by the factor sqrt(1 /
((n + 1) false_alarms)) beyond it. Lighter tails are flagged less often.
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
        """From training rows (rows, features), for a rate of false alarms between 0 and 1."""
        distance = Distance(x.shape[1])
        return cls.from_distances(distance, distance.fit(x, generator), false_positive_rate)

    @classmethod
    def from_distances(cls, distance: Distance, cross_fitted: Tensor, false_positive_rate: float) -> Self:
        """From a fitted distance, and distances (rows,) of rows as if they were new.

        Cross-fitted, or new ones.
        """
        # a new distance is equally likely in each of the n + 1 gaps between n distances: method "weibull"
        threshold = float(
            np.quantile(cross_fitted.double().numpy(), 1 - false_positive_rate, method="weibull")
        )
        beyond = (len(cross_fitted) + 1) * false_positive_rate  # expected number of rows there
        return cls(distance, threshold / math.sqrt(min(beyond, 1.0)), beyond >= ENOUGH)

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:  # (rows,)
        """Distances of rows (rows, features)."""
        return self.distance(x)
