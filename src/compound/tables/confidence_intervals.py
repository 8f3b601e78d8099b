"""95% confidence intervals of metrics: the bootstrap over rows, and Wilson's interval for proportions.

A bootstrap sample is stored as counts, how often it holds each row: metrics are computed from sums weighted
by them. Proportions have Wilson's interval, since the bootstrap interval of 10 correct out of 10 has width 0.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

Array = NDArray[Any]
SAMPLES = 500  # of the bootstrap
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
        """Percentile interval from a metric's values (1 + samples,), as `Bootstrap.evaluate` returns them."""
        low, high = np.quantile(samples[1:], [0.025, 0.975])
        return cls(name, float(samples[0]), float(low), float(high))

    @classmethod
    def from_proportion(cls, name: str, proportion: float, rows: int) -> "Metric":
        """Wilson's interval of a proportion observed in `rows` rows."""
        low, high = wilson_interval(np.array(proportion), np.array(rows))
        return cls(name, float(proportion), float(low), float(high))


class Bootstrap:
    """Bootstrap samples of `rows` rows; every call of `counts` or `evaluate` uses the same samples."""

    def __init__(self, rows: int, generator: Generator):
        self.rows = rows
        self.samples = SAMPLES if rows <= LARGE_TABLE else SAMPLES // 5
        self.seed = int(torch.randint(2**62, (), generator=generator))

    def counts(self) -> Iterator[Tensor]:  # each (rows,) float64
        """How often each row occurs in a sample, sample by sample; the first is the data, each row once."""
        yield torch.ones(self.rows, dtype=torch.float64)
        generator = Generator().manual_seed(self.seed)
        for _ in range(self.samples):
            indices = torch.randint(self.rows, (self.rows,), generator=generator)
            yield torch.bincount(indices, minlength=self.rows).double()

    def evaluate(self, statistic: Callable[[Tensor], Tensor]) -> Array:  # (1 + samples, ...)
        """A statistic of the data, then of each sample; it maps counts (n, rows) to values (n, ...)."""
        return torch.cat([statistic(block) for block in _stack_blocks(self.counts(), self.rows)]).numpy()


def _stack_blocks(counts: Iterator[Tensor], rows: int) -> Iterator[Tensor]:  # each (samples, rows)
    """Counts (rows,) stacked into blocks of at most BLOCK_COUNTS entries."""
    size = max(1, BLOCK_COUNTS // rows)
    while block := list(islice(counts, size)):
        yield torch.stack(block)


def wilson_interval(proportion: Array, rows: Array) -> tuple[Array, Array]:
    """Lower and upper ends of the 95% interval of each proportion observed in `rows` rows (Wilson 1927).

    The interval holds all p with |proportion - p| <= 1.96 sqrt(p (1 - p) / rows).
    """
    z = 1.959963984540054
    half_width = z * np.sqrt(proportion * (1 - proportion) / rows + (z / (2 * rows)) ** 2)
    centre = proportion + z**2 / (2 * rows)
    low, high = ((centre + sign * half_width) / (1 + z**2 / rows) for sign in (-1, 1))
    return np.maximum(low, 0), np.minimum(high, 1)  # against rounding
