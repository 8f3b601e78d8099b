"""What predictive distributions of targets have in common, whatever the family of their components."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from compound.predictive.base import Predictive
from compound.predictive.sets import check_coverage


@dataclass(frozen=True)
class TargetPredictive(Predictive):
    """Targets: a distribution for each row, whose parts of uncertainty are variances (rows, targets)."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:  # (rows, targets)
        """Mean of y."""

    @property
    def variance(self) -> Tensor:  # (rows, targets)
        """Variance of y: `total`.

        The variance of the mixture itself is a little smaller, since its mean varies with the draws.
        """
        return self.total

    @property
    def std(self) -> Tensor:
        return self.variance.sqrt()

    @abstractmethod
    def cdf(self, y: Tensor) -> Tensor:  # (rows, targets)
        """P(Y <= y) of each target."""

    @abstractmethod
    def log_tails(self, y: Tensor) -> tuple[Tensor, Tensor]:  # (rows, targets) each
        """log P(Y <= y) and log P(Y >= y) of each target, y (rows, targets); accurate in both tails."""

    @abstractmethod
    def z_quantiles(self, z: Tensor) -> Tensor:  # (levels, rows, targets)
        """Quantiles of levels Φ(z), z (levels, 1 or targets) float64."""

    @abstractmethod
    def rescale(self, shift: Tensor | float, scale: Tensor | float) -> Self:
        """The predictive of shift + scale * y: from standard units back to the original ones."""

    @abstractmethod
    def of_members(self, index: Tensor, members: int) -> Self:
        """The predictive of row i with only the draws of member index[i]; index is (rows,).

        The draws must be ordered by member, equally many of each.
        """

    @abstractmethod
    def of_target(self, target: int) -> Self:
        """The predictive of one of several targets."""

    @abstractmethod
    def density(self, y: Tensor, target: int = 0) -> Tensor:  # (points,)
        """Density, or probability, of one target of the first row at points y (points,)."""

    def plot_range(self, mean: float, std: float) -> Tensor:  # (points,)
        """Points at which to draw the density of a row with this mean and standard deviation."""
        return torch.linspace(mean - 4 * std, mean + 4 * std, 400, dtype=self.component.dtype)

    def quantile(self, q: float) -> Tensor:  # (rows, targets)
        return self._quantiles([q])[0]

    def interval(self, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """Bounds (rows, targets) of the central interval that holds y with probability `coverage`."""
        check_coverage(coverage)
        lower, upper = self._quantiles([(1 - coverage) / 2, (1 + coverage) / 2])
        return lower, upper

    def _quantiles(self, levels: Sequence[float]) -> Tensor:  # (levels, rows, targets)
        if not all(0 < q < 1 for q in levels):
            raise ValueError(f"q is {levels[0]}: a quantile level must lie between 0 and 1")
        z = torch.special.ndtri(torch.tensor(levels, dtype=torch.float64)).unsqueeze(-1)  # (levels, 1)
        return self.z_quantiles(z)

    def sets(self, coverage: float = 0.9) -> tuple[Tensor, Tensor]:  # (rows, targets) each
        """Bounds of an interval: quantiles Φ(-z), Φ(z) with the conformal z; without one, `interval`."""
        check_coverage(coverage)
        if self.conformal is None:
            return self.interval(coverage)
        z = self.conformal(coverage).double()  # of every target
        lower, upper = self.z_quantiles(torch.stack([-z, z]))
        return lower, upper


def rows_of_members(values: Tensor, index: Tensor, members: int) -> Tensor:  # (draws / members, rows, ...)
    """Of values (draws, rows, ...), for row i the draws of member index[i]."""
    per_member = values.unflatten(0, (members, -1))
    return per_member[index, :, torch.arange(len(index))].transpose(0, 1)
