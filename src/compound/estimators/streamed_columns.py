"""The encoder of a table that passes by once in chunks: what each column adds up, and the fitted column.

For few rows it is the encoder of `Encoder.fit`, apart from rounding; for many, medians come from a sketch
(`quantile_sketch`) and of text with very many values only frequent ones are counted. `edges` gives the
distribution of every encoded number, from which the network's piecewise-linear encoding takes its bins.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from compound.estimators.columns import Array, category_values, is_boolean, numeric_values
from compound.estimators.encoder import (
    LIMIT,
    MARGIN,
    NEW_VALUES,
    Column,
    Encoder,
    choose_categories,
)
from compound.estimators.encoder_columns import CategoricalColumn, NumericColumn
from compound.estimators.quantile_sketch import QuantileSketch
from compound.estimators.time_column import PARTS, TimeColumn, calendar, choose_parts
from compound.estimators.times import time_values
from compound.random import derive_seed

Counts = tuple[Array, Array]  # distinct values in ascending order, and how many rows have them
MAX_LABELS = 100_000  # of a text column that are counted; beyond, rare ones are forgotten


class Moments:
    """Count, mean, variance and range of numbers, added in chunks (Chan, Golub and LeVeque 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = 0.0  # sum of squared deviations from the mean
        self.low, self.high = math.inf, -math.inf

    def update(self, values: Array) -> None:
        """Add numbers (rows,)."""
        if len(values):
            mean = float(values.mean())
            squares = float(np.square(values - mean).sum())
            self.add(len(values), mean, squares, float(values.min()), float(values.max()))

    def add(self, count: int, mean: float, squares: float, low: float, high: float) -> None:
        """Add `count` numbers of this mean, sum of squared deviations and range."""
        if not count:
            return
        total = self.count + count
        apart = mean - self.mean
        self.mean += apart * count / total
        self.squares += squares + apart * apart * self.count * count / total
        self.count = total
        self.low, self.high = min(self.low, low), max(self.high, high)

    @property
    def scale(self) -> float:
        """The standard deviation; 1 where numbers are equal up to rounding, as by scikit-learn's scaler."""
        variance = self.squares / self.count
        eps = np.finfo(np.float64).eps
        bound = self.count * eps * variance + (self.count * self.mean * eps) ** 2
        return 1.0 if variance <= bound else math.sqrt(variance)


class ColumnStatistics(ABC):
    """What a column adds up."""

    def __init__(self, name: str):
        self.name = name
        self.rows = 0

    @abstractmethod
    def update(self, values: "pd.Series[Any]") -> None:
        """Add the values of a chunk."""

    @abstractmethod
    def counts(self, column: Any) -> list[Counts]:
        """The distribution of each encoded number before standardisation, for the fitted column."""


class NumericStatistics(ColumnStatistics):
    """Numbers or booleans."""

    def __init__(self, name: str, seed: int):
        super().__init__(name)
        self.moments = Moments()
        self.sketch = QuantileSketch(derive_seed(seed, name))
        self.boolean = True

    def update(self, values: "pd.Series[Any]") -> None:
        self.boolean = self.boolean and is_boolean(values)
        self.add(self._numbers(values))

    def _numbers(self, values: "pd.Series[Any]") -> Array:
        return numeric_values(values, self.name)

    def add(self, numbers: Array) -> None:
        """Add numbers (rows,), NaN where missing."""
        present = numbers[~np.isnan(numbers)]
        self.rows += len(numbers)
        with np.errstate(over="ignore", invalid="ignore"):
            self.moments.update(present)
        self.sketch.update(present)

    @property
    def missing(self) -> int:
        return self.rows - self.sketch.count

    @property
    def fill(self) -> float:
        """The median, which replaces missing numbers; 0 where all are missing."""
        return self.sketch.median() if self.sketch.count else 0.0

    def fit(self) -> NumericColumn:
        fill = self.fill
        filled = Moments()
        m = self.moments
        filled.add(m.count, m.mean, m.squares, m.low, m.high)
        filled.add(self.missing, fill, 0.0, fill, fill)
        if not (math.isfinite(filled.mean) and math.isfinite(filled.squares)):
            raise ValueError(
                f"column {self.name!r} holds numbers too large to square: divide it by a constant"
            )
        margin = MARGIN / self.rows * (filled.high - filled.low)
        return NumericColumn(
            self.name,
            filled.mean,
            filled.scale,
            fill,
            self.missing > 0,
            filled.low - margin,
            filled.high + margin,
            self.boolean,
        )

    def counts(self, column: NumericColumn) -> list[Counts]:
        numbers = with_value(self.sketch.items(), column.fill, self.missing)
        return [numbers, (np.array([0.0, 1.0]), np.array([self.rows - self.missing, self.missing]))][
            : column.width
        ]


class TimeStatistics(NumericStatistics):
    """Dates and times, as days since 1970; every number of the calendar adds up by itself."""

    def __init__(self, name: str, seed: int):
        super().__init__(name, seed)
        kinds = [kind for part, circle in PARTS.items() for kind in (part, *circle)]
        self.parts = {kind: NumericStatistics(f"{name} {kind}", seed) for kind in kinds}

    def _numbers(self, values: "pd.Series[Any]") -> Array:
        return time_values(values, self.name)

    def add(self, numbers: Array) -> None:
        super().add(numbers)
        present = numbers[~np.isnan(numbers)]
        for kind, values in calendar(present).items():
            if kind in self.parts:
                self.parts[kind].add(values)

    def fit(self) -> TimeColumn:  # type: ignore[override]
        elapsed = replace(super().fit(), boolean=False)
        filled = {}
        for kind, value in calendar(np.array([elapsed.fill])).items():
            if kind in self.parts:
                part = self.parts[kind].moments
                filled[kind] = Moments()
                filled[kind].add(part.count, part.mean, part.squares, part.low, part.high)
                filled[kind].add(self.missing, float(value[0]), 0.0, float(value[0]), float(value[0]))
        numbers = {
            kind: (m.mean, math.sqrt(m.squares / m.count), m.high - m.low) for kind, m in filled.items()
        }
        low, high = min(self.moments.low, elapsed.fill), max(self.moments.high, elapsed.fill)
        return choose_parts(elapsed, numbers, low, high)

    def counts(self, column: TimeColumn) -> list[Counts]:  # type: ignore[override]
        fill = calendar(np.array([column.elapsed.fill]))
        parts = [
            with_value(self.parts[part.kind].sketch.items(), float(fill[part.kind][0]), self.missing)
            for part in column.parts
        ]
        return [*super().counts(column.elapsed), *parts]


class CategoricalStatistics(ColumnStatistics):
    """Text: how often each label occurs, None for a missing one.

    With more than MAX_LABELS labels the rarer half is forgotten, as often as necessary: a label that is kept
    may have lost a few rows, those forgotten are among the rare.
    """

    def __init__(self, name: str):
        super().__init__(name)
        self.labels: Counter[str | None] = Counter()
        self.forgot = False

    def update(self, values: "pd.Series[Any]") -> None:
        self.rows += len(values)
        self.labels.update(category_values(values).tolist())
        if len(self.labels) > MAX_LABELS:
            self.labels = Counter(dict(self.labels.most_common(MAX_LABELS // 2)))
            self.forgot = True

    @property
    def new_value_rate(self) -> float:
        """Good-Turing estimate of the fraction of rows with a new label: that of labels seen once."""
        return 1.0 if self.forgot else sum(count == 1 for count in self.labels.values()) / self.rows

    def fit(self, remember: bool) -> CategoricalColumn:
        column = choose_categories(self.name, self.labels, self.rows, remember and not self.forgot)
        return replace(column, has_other=True) if self.forgot else column

    def counts(self, column: CategoricalColumn) -> list[Counts]:
        ones = [self.labels[value] for value in column.values]
        ones += [self.rows - sum(ones)] * column.has_other
        return [indicator_counts(self.rows - count, count) for count in ones]


def column_statistics(name: str, kind: str, seed: int) -> ColumnStatistics:
    """The statistics of a column that is read as a number, boolean, time or text."""
    if kind == "text":
        return CategoricalStatistics(name)
    return TimeStatistics(name, seed) if kind == "time" else NumericStatistics(name, seed)


def fit_columns(statistics: Sequence[ColumnStatistics]) -> Encoder:
    """The encoder of a table whose columns have passed by."""
    columns: dict[str, Column] = {
        each.name: each.fit() for each in statistics if isinstance(each, NumericStatistics)
    }
    new_values = 0.0  # fraction of rows expected to bring any
    text = [each for each in statistics if isinstance(each, CategoricalStatistics)]
    for each in sorted(text, key=lambda each: each.new_value_rate):
        new_values += each.new_value_rate
        columns[each.name] = each.fit(remember=new_values <= NEW_VALUES)
    return Encoder(tuple(columns[each.name] for each in statistics))


def encoded_counts(statistics: Sequence[ColumnStatistics], encoder: Encoder) -> list[Counts]:
    """The distribution of every standardised number that the encoder gives, for `from_counts`."""
    counts = [
        part for each, column in zip(statistics, encoder.columns, strict=True) for part in each.counts(column)
    ]
    counts.append((np.zeros(1), np.array([statistics[0].rows])))  # no training row surprises
    out = []
    for (values, weights), shift, scale in zip(counts, encoder.shift, encoder.scale, strict=True):
        present = weights > 0
        with np.errstate(over="ignore"):
            standard = np.clip((values[present] - shift) / scale, -LIMIT, LIMIT).astype(np.float32)
        distinct, index = np.unique(standard, return_inverse=True)
        out.append((distinct, np.bincount(index, weights[present], len(distinct))))
    return out


def indicator_counts(zeros: float, ones: float) -> Counts:
    return np.array([0.0, 1.0]), np.array([zeros, ones])


def with_value(counts: Counts, value: float, rows: int) -> Counts:
    """Counts with `rows` more rows of a value."""
    if not rows:
        return counts
    values, index = np.unique(np.append(counts[0], value), return_inverse=True)
    return values, np.bincount(index, np.append(counts[1], rows), len(values))
