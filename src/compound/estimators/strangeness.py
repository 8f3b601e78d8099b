"""How unlike the training table a row is, and from where on it counts as strange.

The score is the whitened distance d(x) from the nearest of up to 500 centres of the training rows (`nn.far`). The threshold comes from
training rows whose distance was measured from centres fitted without them, so it holds for new rows: of rows like those
of training about `false_alarms` are flagged. Fewer than 1 / false_alarms rows cannot tell: then the farthest of them decides.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from compound.nn import FarNoise


@dataclass(frozen=True)
class Strangeness:
    far: FarNoise
    threshold: float

    @classmethod
    def fit(cls, x: Tensor, false_alarms: float, generator: Generator) -> "Strangeness":
        far = FarNoise(x.shape[1])
        distances = far.fit(x, generator).double().numpy()  # cross-fitted
        # a new row is as likely to fall into each of the gaps between n distances: "weibull" counts n + 1 of them
        return cls(far, float(np.quantile(distances, 1 - false_alarms, method="weibull")))

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:  # (rows,)
        return self.far.distance(x)
