"""Slices of a table: the rows with one value, or one range of values, of a column, with their metrics.

Intervals are Wilson's for coverage and error rate, and Student's for means. Slices of fewer than RANKED rows
are shown with the others, and never ranked: the worst of many small slices is bad by chance.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types
from scipy.special import stdtrit

from compound.estimators.row_predictions import RowScores
from compound.report.page import format_number
from compound.tables.confidence_intervals import wilson_interval
from compound.tables.prediction_metrics import NOMINAL, nominal_index
from compound.tables.row_measures import SET_SIZE, WIDTH

Array = NDArray[Any]
QUANTILE_BINS = 5  # slices of a numeric column
MIN_SLICE = 5  # fewest rows of a slice
RANKED = 30  # rows from which on a slice is compared with others


class Estimate(NamedTuple):
    """A value with its 95% confidence interval; without one (NaN) for a single row."""

    value: float
    low: float
    high: float


class Slice(NamedTuple):
    """Metrics of the rows with one value, or one range of values, of a column."""

    column: str
    value: str
    rows: int
    coverage: Estimate  # of the 90% interval or set
    nll: Estimate
    error: Estimate  # RMSE, or error rate
    size: float  # mean width of intervals, or size of sets
    epistemic: float  # mean

    @property
    def verdict(self) -> str:
        """Whether the coverage differs from the nominal one by more than chance."""
        if self.rows < RANKED:
            return "few rows"
        if self.coverage.high < NOMINAL:
            return "too low"
        return "too high" if self.coverage.low > NOMINAL else ""


def slices(
    scores: RowScores, table: pd.DataFrame, is_regression: bool, columns: Sequence[str]
) -> list[Slice]:
    """Metrics by value, or quantile bin, of each column of the table."""
    return [
        _slice(scores, rows, is_regression, column, value)
        for column in columns
        for value, rows in group_rows(table[column])
        if rows.sum() >= MIN_SLICE
    ]


def lowest_coverage(parts: Sequence[Slice], count: int) -> list[Slice]:
    """The slices of lowest coverage, of those with enough rows."""
    return sorted((part for part in parts if part.rows >= RANKED), key=lambda part: part.coverage.value)[
        :count
    ]


def _slice(scores: RowScores, rows: Array, is_regression: bool, column: str, value: str) -> Slice:
    error = scores.error[rows]
    size = scores.measures.get(WIDTH if is_regression else SET_SIZE)
    return Slice(
        column,
        value,
        int(rows.sum()),
        proportion(scores.inside[rows, nominal_index(scores.levels)]),
        mean(scores.nll[rows]),
        root(mean(error**2)) if is_regression else proportion(error),
        float("nan") if size is None else float(size[rows].mean()),
        float(scores.predictions["epistemic"].to_numpy()[rows].mean()),
    )


def proportion(values: Array) -> Estimate:
    """The mean of values 0 and 1 (rows,), with Wilson's interval."""
    value = float(values.mean())
    low, high = wilson_interval(np.array(value), np.array(len(values)))
    return Estimate(value, float(low), float(high))


def mean(values: Array) -> Estimate:
    """The mean of values (rows,), with Student's interval."""
    rows, value = len(values), float(values.mean())
    if rows < 2:
        return Estimate(value, float("nan"), float("nan"))
    half = float(stdtrit(rows - 1, 0.975) * values.std(ddof=1) / np.sqrt(rows))
    return Estimate(value, value - half, value + half)


def root(square: Estimate) -> Estimate:
    """Square roots of an estimate and its interval, which begins at 0 at the least."""
    return Estimate(*(float(np.sqrt(np.maximum(part, 0.0))) for part in square))


def group_rows(column: "pd.Series[Any]") -> list[tuple[str, Array]]:
    """A name and a row mask for each value of a column, or for each quantile bin of a numeric column."""
    missing = column.isna().to_numpy()
    if types.is_datetime64_any_dtype(column) and column.nunique() > QUANTILE_BINS:
        return _group_times(column)
    is_number = types.is_numeric_dtype(column) and not types.is_bool_dtype(column)
    if is_number and column.nunique() > QUANTILE_BINS:
        values = column.to_numpy(np.float64, na_value=np.nan)
        edges = np.unique(np.quantile(values[~missing], np.linspace(0, 1, QUANTILE_BINS + 1)))
        bins = np.searchsorted(edges[1:-1], values, side="left")
        groups = [
            (f"{format_number(low)} to {format_number(high)}", (bins == i) & ~missing)
            for i, (low, high) in enumerate(pairwise(edges.tolist()))
        ]
    else:
        text = column.astype(str).to_numpy()
        groups = [(str(value), (text == value) & ~missing) for value in sorted(set(text[~missing]))]
    return groups + ([("missing", missing)] if missing.any() else [])


def _group_times(column: "pd.Series[Any]") -> list[tuple[str, Array]]:
    """`group_rows` of a column of times."""
    bins = pd.qcut(column, QUANTILE_BINS, duplicates="drop")
    groups = [
        (f"{bounds.left:%Y-%m-%d} to {bounds.right:%Y-%m-%d}", (bins == bounds).to_numpy())
        for bounds in bins.cat.categories
    ]
    missing = column.isna().to_numpy()
    return groups + ([("missing", missing)] if missing.any() else [])
