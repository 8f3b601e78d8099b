"""The observation model of ordered classes: cumulative probit.

    P(y <= j | f) = Φ(c_j - f),    c_0 < c_1 < ... < c_{K-2} learnt

With f ~ N(m, v) this is Φ((c_j - m) / sqrt(1 + v)), so a compound network's last layer is integrated over in
closed form. McCullagh (1980).
"""

import numpy as np
import torch
from torch import Tensor, nn

from compound.models.observation.base import ObservationModel
from compound.predictive import CategoricalPredictive, entropy, take_label

NODES = 16  # of Gauss-Hermite quadrature, for the entropy given f


class Ordinal(ObservationModel):
    """Ordered classes 0..K-1 with one latent number f; the thresholds are those of each member."""

    outputs = 1

    def __init__(self, classes: int, members: int = 1):
        super().__init__()
        self.classes = classes
        self.start = nn.Parameter(torch.zeros(members, 1, dtype=torch.float32))
        self.log_gaps = nn.Parameter(torch.zeros(members, classes - 2, dtype=torch.float32))

    @torch.no_grad()
    def on_fit_start(self, y: Tensor) -> None:
        """Set the thresholds to the quantiles of the class frequencies of the training labels (rows,)."""
        counts = torch.bincount(y, minlength=self.classes).double() + 1
        quantiles = torch.special.ndtri(counts.cumsum(0)[:-1] / counts.sum()).to(self.start.dtype)
        self.start.copy_(quantiles[:1].expand_as(self.start))
        self.log_gaps.copy_(quantiles.diff().clamp_min(1e-3).log().expand_as(self.log_gaps))

    def thresholds(self) -> Tensor:  # (members, K - 1)
        """c_0 < c_1 < ..."""
        return torch.cat([self.start, self.start + self.log_gaps.exp().cumsum(1)], 1)

    def log_probs(self, f: Tensor, variance: Tensor | None = None) -> Tensor:  # (members, ..., rows, K)
        """Log-probabilities of all classes for f ~ N(f, variance), (members, ..., rows, 1) each."""
        c = self.thresholds().to(f.dtype)
        c = c.view(-1, *[1] * (f.ndim - 2), self.classes - 1)
        z = c - f  # (members, ..., rows, K - 1)
        z = z if variance is None else z / (1 + variance).sqrt()
        # P(a < y <= b) by the tail in which it is small: Φ(b) - Φ(a), or Φ(-a) - Φ(-b)
        ends = z.new_full((*z.shape[:-1], 1), 40.0)
        low, high = torch.cat([-ends, z], -1), torch.cat([z, ends], -1)
        flip = low > 0
        low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
        log_low, log_high = torch.special.log_ndtr(low), torch.special.log_ndtr(high)
        gap = (log_low - log_high).clamp_max(-1e-6)
        return log_high + torch.log(-torch.expm1(gap))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return take_label(self.log_probs(f), y)

    def predictive(self, f: Tensor) -> CategoricalPredictive:
        return CategoricalPredictive.from_draws(self.log_probs(f).flatten(0, 1), len(f))

    def expected_entropy(self, mean: Tensor, variance: Tensor) -> Tensor:  # (members, ..., rows)
        """E H[y | f] for f ~ N(mean, variance), by quadrature."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        weights = weights / weights.sum()
        total = mean.new_zeros(mean.shape[:-1])
        for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
            total = total + weight * entropy(self.log_probs(mean + node * variance.sqrt()).exp())
        return total
