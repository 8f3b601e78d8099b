"""How unlike the training table a row is, and from where on it counts as strange.

The score is the whitened distance d(x) from the nearest of up to 500 centres of the training rows (`nn.far`). The threshold comes from
training rows whose distance was measured by units, whitening and centres learnt without them, so it holds for new rows: of rows
like those of training about `false_alarms` are flagged.

A threshold from n rows is exceeded at a rate that itself varies, from table to table, by 1 / sqrt(n false_alarms) of its size. With
fewer than ENOUGH rows expected beyond it, not even a factor 2 can be promised: then `promised` is False. With fewer than one, the
farthest of the rows is exceeded at the rate 1 / (n + 1); where no tail is heavier than one of finite variance, P(d > t) ~ t⁻², the
wished rate lies by the factor sqrt(1 / ((n + 1) false_alarms)) beyond it. Lighter tails are flagged more seldom: it errs on the quiet
side.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from compound.ood.noise import DistanceAwareNoise

ENOUGH = 5.0  # rows expected beyond the threshold: the rate is then within a factor 2 in six tables of seven


@dataclass(frozen=True)
class OODDetector:
    far: DistanceAwareNoise
    threshold: float
    promised: bool = True  # rows were enough for the wished rate

    @classmethod
    def fit(cls, x: Tensor, false_alarms: float, generator: Generator) -> "OODDetector":
        far = DistanceAwareNoise(x.shape[1])
        distances = far.fit(x, generator).double().numpy()  # cross-fitted
        # a new row is as likely to fall into each of the gaps between n distances: "weibull" counts n + 1 of them
        threshold = float(np.quantile(distances, 1 - false_alarms, method="weibull"))
        beyond = (len(x) + 1) * false_alarms  # how many rows are expected there
        return cls(far, threshold / math.sqrt(min(beyond, 1.0)), beyond >= ENOUGH)

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:  # (rows,)
        return self.far.distance(x)
