"""Whitening with a ridge: directions in which rows differ little are not magnified without bound.

    u = A (x - m),    A'A = (S + ridge)⁻¹,    ridge = RIDGE · mean variance

Narrow inputs are whitened fully. Of wide ones the leading directions are kept, and one squared length stands for all others.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor

RIDGE = (
    0.15,
    0.3,
)  # of the mean variance, for narrow and for wide inputs: whitening magnifies no direction by more than this allows
FULL_RANK = 64  # inputs up to this wide are whitened fully
MAX_RANK = 128


class Whitening(NamedTuple):
    shift: Tensor  # (features,)
    whiten: Tensor  # (features, rank)
    rest: (
        Tensor  # () one over the standard deviation of the directions beyond the rank, 0 where there are none
    )

    @classmethod
    def fit(cls, x: Tensor) -> Self:
        """From rows (rows, features)."""
        rows, features = x.shape
        data = x.double()
        shift = data.mean(0)
        covariance = (
            torch.cov(data.T).reshape(features, features)
            if rows > 1
            else torch.eye(features, dtype=torch.float64)
        )
        ridge = RIDGE[features > FULL_RANK] * covariance.diagonal().mean().item() or 1.0
        values, vectors = torch.linalg.eigh(covariance)
        values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
        # directions with little variance beside the ridge look alike after whitening: one squared norm stands for them all
        rank = features if features <= FULL_RANK else min(MAX_RANK, int((values > 0.1 * ridge).sum()))
        whiten = (
            (vectors[:, :rank] / (values[:rank] + ridge).sqrt()).to(x.dtype).contiguous()
        )  # as it will be loaded
        beyond = (values[rank:].mean().item() + ridge) ** -0.5 if rank < features else 0.0
        return cls(shift.to(x.dtype), whiten, torch.tensor(beyond, dtype=x.dtype))

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """u (rows, rank), and the squared whitened length outside the leading directions (rows,)."""
        centred = x - self.shift
        u = centred @ self.whiten
        if not bool(self.rest):
            return u, u.new_zeros(len(u))
        lengths = self.whiten.square().sum(0)  # eigenvectors have length 1: this is 1 / (value + ridge)
        inside = (u.square() / lengths).sum(-1)
        return u, self.rest.square() * (centred.square().sum(-1) - inside).clamp_min(0)
