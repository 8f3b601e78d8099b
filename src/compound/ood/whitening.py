"""Whitening with a ridge: directions of small variance are not magnified without bound.

    u = A (x - m),    A'A = (S + ridge)⁻¹,    ridge = RIDGE · mean variance

Up to FULL_RANK inputs all directions are whitened. Of more inputs the leading directions are whitened, and
one squared length represents all others.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor

RIDGE = (0.15, 0.3)  # of the mean variance, for few and for many inputs
FULL_RANK = 64  # inputs up to which all directions are whitened
MAX_RANK = 128


class Whitening(NamedTuple):
    """The affine map x -> u."""

    shift: Tensor  # (features,) m
    whiten: Tensor  # (features, rank) A'
    residual_scale: (
        Tensor  # () one over the standard deviation of the directions beyond the rank, 0 without any
    )

    @classmethod
    def fit(cls, x: Tensor) -> Self:
        """The whitening of rows x (rows, features) by their mean and covariance, computed in float64."""
        rows, features = x.shape
        data = x.double()
        shift = data.mean(0)
        if rows > 1:
            covariance = torch.cov(data.T).reshape(features, features)
        else:
            covariance = torch.eye(features, dtype=torch.float64)
        ridge = RIDGE[features > FULL_RANK] * covariance.diagonal().mean().item() or 1.0
        values, vectors = torch.linalg.eigh(covariance)
        values = values.flip(0).clamp_min(0)
        vectors = vectors.flip(1)
        # directions with little variance beside the ridge are alike after whitening: one norm represents them
        rank = features if features <= FULL_RANK else min(MAX_RANK, int((values > 0.1 * ridge).sum()))
        whiten = (vectors[:, :rank] / (values[:rank] + ridge).sqrt()).to(x.dtype)
        beyond = (values[rank:].mean().item() + ridge) ** -0.5 if rank < features else 0.0
        return cls(shift.to(x.dtype), whiten.contiguous(), torch.tensor(beyond, dtype=x.dtype))

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """u (rows, rank) of x (rows, features), and the squared whitened length that u leaves out (rows,)."""
        centred = x - self.shift
        u = centred @ self.whiten
        if self.whiten.shape[0] == self.whiten.shape[1]:
            return u, u.new_zeros(len(u))
        lengths = self.whiten.square().sum(0)  # 1 / (value + ridge): eigenvectors have length 1
        inside = (u.square() / lengths).sum(-1)
        return u, self.residual_scale.square() * (centred.square().sum(-1) - inside).clamp_min(0)
