"""95% confidence intervals of metrics: the bootstrap over rows, and Wilson's interval for proportions.

A bootstrap sample is a vector of counts, one per row, so that every metric is a function of weighted sums.
Proportions have Wilson's interval instead: resampling ten correct predictions never gives a wrong one.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

Array = NDArray[Any]
SAMPLES = 500
LARGE_TABLE = 50_000  # rows from which on a fifth of the samples suffices
BLOCK_COUNTS = 1 << 22  # counts held in memory at once: 32 MB


class Metric(NamedTuple):
    """The value of a metric with its 95% confidence interval."""

    name: str
    value: float
    low: float
    high: float

    @classmethod
    def from_samples(cls, name: str, samples: Array) -> "Metric":
        """The percentile interval of bootstrap samples; the first is the value on the data themselves."""
        low, high = np.quantile(samples[1:], [0.025, 0.975])
        return cls(name, float(samples[0]), float(low), float(high))

    @classmethod
    def from_proportion(cls, name: str, proportion: float, rows: int) -> "Metric":
        """Wilson's interval of a proportion of `rows` rows."""
        low, high = wilson_interval(np.array(proportion), np.array(rows))
        return cls(name, float(proportion), float(low), float(high))


class Bootstrap:
    """Resampling of `rows` rows with replacement; every iteration gives the same samples."""

    def __init__(self, rows: int, generator: Generator):
        self.rows = rows
        self.samples = SAMPLES if rows <= LARGE_TABLE else SAMPLES // 5
        self.seed = int(torch.randint(2**62, (), generator=generator))

    def counts(self) -> Iterator[Tensor]:  # each (rows,) float64
        """How often each row occurs in a sample; the first sample is the data themselves."""
        yield torch.ones(self.rows, dtype=torch.float64)
        generator = Generator().manual_seed(self.seed)
        for _ in range(self.samples):
            indices = torch.randint(self.rows, (self.rows,), generator=generator)
            yield torch.bincount(indices, minlength=self.rows).double()

    def evaluate(self, statistic: Callable[[Tensor], Tensor]) -> Array:  # (1 + samples, ...)
        """A statistic of every sample: `statistic` maps weights (samples, rows) to values (samples, ...)."""
        return torch.cat([statistic(block) for block in _stack(self.counts(), self.rows)]).numpy()


def _stack(counts: Iterator[Tensor], rows: int) -> Iterator[Tensor]:
    size = max(1, BLOCK_COUNTS // rows)
    while block := list(islice(counts, size)):
        yield torch.stack(block)


def wilson_interval(proportion: Array, rows: Array) -> tuple[Array, Array]:
    """All p with `proportion` within 1.96 standard errors sqrt(p (1 - p) / rows) of p (Wilson 1927)."""
    z = 1.959963984540054
    half_width = z * np.sqrt(proportion * (1 - proportion) / rows + (z / (2 * rows)) ** 2)
    centre = proportion + z**2 / (2 * rows)
    low, high = ((centre + sign * half_width) / (1 + z**2 / rows) for sign in (-1, 1))
    return np.maximum(low, 0), np.minimum(high, 1)  # against rounding
