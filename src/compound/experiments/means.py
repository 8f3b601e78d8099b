"""Means over seeds or splits with their standard errors."""

import math
from collections.abc import Iterable
from statistics import fmean, stdev
from typing import NamedTuple


class Mean(NamedTuple):
    """A mean and its standard error, which is None for a single value."""

    mean: float
    error: float | None

    @classmethod
    def from_values(cls, values: Iterable[float]) -> "Mean":
        sample = list(values)
        return cls(fmean(sample), stdev(sample) / math.sqrt(len(sample)) if len(sample) > 1 else None)

    def text(self, digits: int = 3) -> str:
        """Mean ± standard error, with this many digits after the point."""
        return f"{self.mean:.{digits}f}" + ("" if self.error is None else f" ± {self.error:.{digits}f}")

    def text_by_error(self) -> str:
        """Mean ± standard error, both with as many digits as show two significant digits of the error."""
        if self.error is None:
            return f"{self.mean:.4g}"
        return self.text(max(0, min(8, 1 - math.floor(math.log10(self.error)))) if self.error > 0 else 4)
