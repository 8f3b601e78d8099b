"""Far noise: doubt that grows with the distance of an input from the training data, whatever was learnt there.

    u = A (x - m),   d(x) = |u - c_k|_k,   t(x) = clamp( level + kappa (d(x) - d50) / (d99 - d50), -20, cap )

and beyond every ordinary row exp(t) grows at least with the sixth power of the distance, up to SURE (or the cap) at 2.9 d99:
however gently the ramp had to be chosen, what is three times farther away than d99 is met with full doubt.

A whitens with a ridge, c_k is the nearest of the k-means centres of the whitened training inputs; lengths are ordinary ones for narrow
inputs, in the shape of the centre's own rows for wide ones (`nn.clusters`). d50 and d99 are quantiles of distances that rows have from
what was learnt without them: units, A, m and centres. What the loudness t means the task decides: for classes the log-odds that nothing
is known, for targets a log-variance. No outlier is ever looked at.
"""

from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from compound.ood.clusters import Clusters
from compound.ood.whitening import FULL_RANK, Whitening

SAMPLE = 20_000  # rows that mean, covariance and centres are learnt from
CENTRES = 500, 200  # at most, for narrow and for wide inputs
ROWS_EACH = 3, 20  # distinct rows per centre, at least
FOLDS = (
    20,
    5,
)  # at most, where rows are few and each fold takes neighbours that new rows would find, and at least
ENOUGH = 20_000  # folds times rows
SURE = 8.0  # loudness that every row beyond 2.9 d99 gets, where the cap allows it


class DistanceAwareNoise(nn.Module):
    """d(x) and the loudness t(x) of the far noise; silent (t = -inf) until fitted."""

    shift: Tensor  # (features,)
    whiten: Tensor  # (features, rank)
    rest: (
        Tensor  # () one over the standard deviation of the directions beyond the rank, 0 where there are none
    )
    centres: Tensor  # (centres, rank)
    precision_roots: Tensor  # (centres, rank, rank) of the inverse shapes around them; none where lengths are ordinary ones
    residual_precision: Tensor  # (centres,) what a square outside the leading directions counts there
    ramp: Tensor  # (6,) d50, d99, edge (the farthest ordinary row, at most 2 d99), level, kappa, cap

    def __init__(self, features: int):
        super().__init__()
        self.register_buffer("shift", torch.zeros(features))
        self.register_buffer("whiten", torch.zeros(features, 0))
        self.register_buffer("rest", torch.zeros(()))
        self.register_buffer("centres", torch.zeros(0, 0))
        self.register_buffer("precision_roots", torch.zeros(0, 0, 0))
        self.register_buffer("residual_precision", torch.zeros(0))
        self.register_buffer("ramp", torch.zeros(6))

    @property
    def fitted(self) -> bool:
        return len(self.centres) > 0

    @property
    def whitening(self) -> Whitening:
        return Whitening(self.shift, self.whiten, self.rest)

    @property
    def clusters(self) -> Clusters:
        return Clusters(self.centres, self.precision_roots, self.residual_precision)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if (
            prefix + "centres" in state_dict and prefix + "precision_roots" not in state_dict
        ):  # a file from before there were shapes
            state_dict |= {
                prefix + "precision_roots": torch.zeros(0, 0, 0),
                prefix + "residual_precision": torch.zeros(0),
            }
        for name in (
            "whiten",
            "centres",
            "precision_roots",
            "residual_precision",
        ):  # their sizes come from the data
            if prefix + name in state_dict:
                setattr(self, name, getattr(self, name).new_empty(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def distance(self, x: Tensor) -> Tensor:  # (rows,)
        """Whitened distance from the nearest centre."""
        if not self.fitted:
            raise ValueError("far noise knows no rows yet: call fit before asking how far a row is from them")
        return self.clusters.distance(*self.whitening(x))

    def forward(self, x: Tensor) -> Tensor:  # (rows,)
        """Loudness of the far noise."""
        return self.at(self.distance(x)) if self.fitted else x.new_full((len(x),), -torch.inf)

    def at(self, distance: Tensor) -> Tensor:
        d50, d99, edge, level, kappa, cap = self.ramp.unbind()
        rise = level + kappa * (distance - d50) / (d99 - d50)
        sure = cap.clamp_max(SURE) + 6 * ((distance - edge) / (2.9 * d99 - edge)).clamp(1e-6, 1.0).log()
        return torch.minimum(torch.maximum(rise, sure).clamp_min(-20), cap)

    def set_ramp(self, level: float, kappa: float, cap: float) -> None:
        self.ramp = torch.cat([self.ramp[:3], self.ramp.new_tensor([level, kappa, cap])])

    def fit(self, x: Tensor, generator: Generator) -> Tensor:  # (rows,)
        """Learn the distance from training rows; returns their distances as if they were new.

        Units, whitening and centres of a fold's distances are learnt without it: rows that took part in any of them seem too near.
        Beyond SAMPLE rows only a sample is used; rows outside it were seen by nothing that was learnt, and are simply measured.
        """
        order = torch.randperm(len(x), generator=generator)
        sample = order[:SAMPLE]
        seed = int(torch.randint(2**31 - 1, (), generator=generator))
        out = torch.full((len(x),), torch.inf, dtype=x.dtype)
        wide = x.shape[1] > FULL_RANK
        count = _count(
            x[sample], wide
        )  # in folds too: with fewer centres their rows would seem farther than new rows are
        folds = min(FOLDS[0], max(FOLDS[1], ENOUGH // len(sample)), len(sample))
        for fold in range(folds if len(sample) > 1 else 0):
            mine = sample[fold::folds]
            others = x[torch.cat([sample[other::folds] for other in range(folds) if other != fold])]
            unit = _unit(x[sample], others)
            whitening = Whitening.fit(unit * others)
            clusters = Clusters.fit(whitening(unit * others)[0], count, wide, seed)
            out[mine] = clusters.distance(*whitening(unit * x[mine]))
        self.shift, self.whiten, self.rest = whole = Whitening.fit(x[sample])
        self.centres, self.precision_roots, self.residual_precision = Clusters.fit(
            whole(x[sample])[0], count, wide, seed
        )
        left = torch.isinf(out)
        out[left] = self.distance(x[left])
        d50, d99 = torch.quantile(
            out[sample].double(), torch.tensor([0.5, 0.99], dtype=torch.float64)
        ).tolist()
        d99 = max(d99, d50 + 1e-6 * d50 + 1e-12)  # rows all alike: any other row is far
        edge = min(max(d99, float(out[sample].max())), 2 * d99)
        self.ramp = torch.tensor([d50, d99, edge, -20.0, 0.0, -20.0], dtype=x.dtype)
        return out


def _count(x: Tensor, wide: bool) -> int:
    """One centre per ROWS_EACH distinct rows, at most CENTRES."""
    return max(1, min(CENTRES[wide], len(np.unique(x.numpy(), axis=0)) // ROWS_EACH[wide]))


def _unit(x: Tensor, others: Tensor) -> Tensor:  # (features,)
    """What brings the columns of `others` to the spread that `x` has: as if they had been standardised by themselves.

    Indicators and pixels, which nobody standardises, stay as they are: the deviation of numbers from 0 to 1 is at most 1/2.
    """
    wished, found = (rows.double().std(0, correction=0) for rows in (x, others))
    return torch.where((wished > 0.5) & (found > 1e-6 * wished), wished / found, 1.0).to(x.dtype)
