"""Quantiles of a stream of numbers in bounded memory: the sketch of Karnin, Lang and Liberty (KLL, 2016).

Level h holds at most CAPACITY sorted numbers of weight 2^h. A level that overflows is halved: every other
number, from the first or the second at random, moves one level up. Each halving moves any rank by at most 2^h
/ 2, up or down alike, so the errors of ranks nearly cancel: for any number of rows the standard deviation is
about 1 / CAPACITY of them. While nothing was halved, quantiles are exact.

Libraries of sketches draw their random bits from a generator of their own; here a seed decides, so that a fit
is repeated to the same bits.
"""

from typing import Any

import numpy as np

from compound.random import derive_seed

Array = np.ndarray[Any, Any]
CAPACITY = 8192


class QuantileSketch:
    """Numbers of a stream, with weights.

    Parameters
    ----------
    seed : int
        Seed of the random bits.
    capacity : int, default=8192
        Numbers that a level holds.

    Examples
    --------
    >>> import numpy as np
    >>> from compound.estimators.quantile_sketch import QuantileSketch
    >>> sketch = QuantileSketch(seed=0)
    >>> for start in range(0, 10**6, 10**5):
    ...     sketch.update(np.arange(start, start + 10**5, dtype=np.float64))
    >>> bool(abs(sketch.median() - 5e5) < 1e3)
    True
    """

    def __init__(self, seed: int, capacity: int = CAPACITY):
        self.capacity = capacity
        self.count = 0
        self._random = np.random.default_rng(derive_seed(seed, "sketch"))
        self._levels: list[list[Array]] = [[]]  # sorted arrays, each of at most `capacity` after `update`

    def update(self, values: Array) -> None:
        """Add numbers (rows,), none of them NaN."""
        self.count += len(values)
        self._levels[0].append(np.sort(values))
        level = 0
        while level < len(self._levels):
            parts = self._levels[level]
            if sum(map(len, parts)) > self.capacity:
                merged = np.sort(np.concatenate(parts), kind="stable") if len(parts) > 1 else parts[0]
                odd = len(merged) % 2  # the largest stays: weights add up to the number of rows
                if level + 1 == len(self._levels):
                    self._levels.append([])
                self._levels[level + 1].append(merged[int(self._random.integers(2)) : len(merged) - odd : 2])
                self._levels[level] = [merged[len(merged) - odd :]]
            level += 1

    @property
    def is_exact(self) -> bool:
        """Whether all numbers are kept."""
        return len(self._levels) == 1

    def items(self) -> tuple[Array, Array]:  # (values,) each
        """Distinct numbers in ascending order, and how many rows each stands for; these add up to `count`."""
        parts = [(values, 2**level) for level, arrays in enumerate(self._levels) for values in arrays]
        if not parts:
            return np.zeros(0), np.zeros(0)
        values = np.concatenate([part for part, _ in parts])
        weights = np.concatenate([np.full(len(part), float(weight)) for part, weight in parts])
        distinct, index = np.unique(values, return_inverse=True)
        return distinct, np.bincount(index, weights, len(distinct))

    def quantile(self, level: float) -> float:
        """The smallest kept number up to which a part `level` of the rows lies."""
        values, weights = self.items()
        return float(
            values[min(int(np.searchsorted(np.cumsum(weights), level * self.count)), len(values) - 1)]
        )

    def median(self) -> float:
        """The middle number, or the mean of the two; NaN without numbers."""
        values, weights = self.items()
        if not len(values):
            return float("nan")
        cumulative = np.cumsum(weights)
        middle = [
            np.searchsorted(cumulative, rank, side="right")
            for rank in ((self.count - 1) // 2, self.count // 2)
        ]
        return float(values[np.minimum(middle, len(values) - 1)].mean())
