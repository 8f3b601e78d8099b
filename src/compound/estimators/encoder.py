"""Encoding of a table as standardised numbers. A fitted encoder is a few numbers and labels, saved as JSON.

Numeric columns: missing values become the median, with an indicator column where training had missing values;
then they are standardised in float64. Dates and times become several numbers (`time_column`). Text,
categories and other objects are one-hot encoded; rare values, unseen ones and those beyond the most frequent
share a last column. Medians, means and scales are fitted by scikit-learn's transformers; `streamed_columns`
fits the same encoder to a table that does not fit in memory.

A last number, the surprise, is 0 for all training rows. It is SURE for a value that new rows of the same
distribution would hardly bring: an unseen category, a missing value in a column that had none, a number
beyond the training range by half its width; for smaller excess it is SURE (2 excess)³. No network can learn
from it, but the out-of-distribution distance sees it.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from compound.estimators.columns import (
    Array,
    category_values,
    distinct_labels,
    is_boolean,
    is_categorical,
    numeric_values,
)
from compound.estimators.encoder_columns import CategoricalColumn, NumericColumn
from compound.estimators.number_forms import warn_of_written_numbers
from compound.estimators.time_column import CalendarPart, TimeColumn, fit_time
from compound.estimators.times import is_time, time_values

LIMIT = 1e4  # standardised values are clipped to ±LIMIT
MAX_CATEGORIES = 300  # indicator columns of a categorical column
MIN_FREQUENCY = (3, 10)  # rows of a category with an indicator column: of n rows n / 500, within these
MAX_RARE = 10_000  # values without one that are remembered
MARGIN = 10  # a range of n rows is widened by MARGIN / n of its width: few rows show little of their range
NEW_VALUES = 0.003  # fraction of rows that may bring a value that is new in its column, all columns together

Table: TypeAlias = "pd.DataFrame | Array"
Column: TypeAlias = NumericColumn | TimeColumn | CategoricalColumn


@dataclass(frozen=True)
class Encoder:
    """The encoding fitted to a training table; `transform` encodes any table with the same columns."""

    columns: tuple[Column, ...]

    @classmethod
    def fit(cls, table: Table, names: Sequence[str] | None = None) -> "Encoder":
        """Fit an encoder to a table. `names` are those of an array's columns; x0, x1 and so on by default."""
        if isinstance(table, np.ndarray):
            return cls(tuple(_fit_numeric(names or [f"x{i}" for i in range(table.shape[1])], table)))
        series = [table.iloc[:, i] for i in range(table.shape[1])]
        times = {i for i, values in enumerate(series) if is_time(values)}
        labels_of = {
            i: category_values(values)
            for i, values in enumerate(series)
            if i not in times and is_categorical(values)
        }
        columns: list[Column | None] = [None] * len(series)
        new_values = 0.0  # fraction of rows expected to bring any
        for i, labels in labels_of.items():
            if isinstance(series[i].dtype, pd.CategoricalDtype):
                continue
            distinct = [label for label in pd.unique(labels) if label is not None]
            warn_of_written_numbers(str(table.columns[i]), distinct)
        for i in sorted(labels_of, key=lambda i: _new_value_rate(labels_of[i])):
            new_values += _new_value_rate(labels_of[i])
            columns[i] = _fit_categorical(
                str(table.columns[i]), labels_of[i], remember=new_values <= NEW_VALUES
            )
        numeric = [i for i, column in enumerate(columns) if column is None]
        if numeric:  # all at once: a table may have thousands
            names = [str(table.columns[i]) for i in numeric]
            values = np.column_stack(
                [
                    (time_values if i in times else numeric_values)(series[i], name)
                    for i, name in zip(numeric, names, strict=True)
                ]
            )
            for k, (i, column) in enumerate(zip(numeric, _fit_numeric(names, values), strict=True)):
                columns[i] = (
                    fit_time(column, values[:, k])
                    if i in times
                    else replace(column, boolean=is_boolean(series[i]))
                )
        return cls(tuple(column for column in columns if column is not None))

    @property
    def is_numeric(self) -> bool:
        """Whether all columns are numeric, so that an array can be encoded too."""
        return all(isinstance(column, NumericColumn) for column in self.columns)

    @property
    def width(self) -> int:
        """How many numbers a row is encoded as."""
        return sum(column.width for column in self.columns) + 1

    @property
    def sources(self) -> list[int]:  # (width,)
        """For each encoded number, the index of its column; the last, surprise, counts as one more."""
        widths = [*(column.width for column in self.columns), 1]
        return [j for j, width in enumerate(widths) for _ in range(width)]

    @cached_property
    def shift(self) -> Array:  # (width,)
        """Means of numbers, 0 for indicators."""
        return np.array([*(value for column in self.columns for value in column.shift), 0.0])

    @cached_property
    def scale(self) -> Array:  # (width,)
        """Standard deviations of numbers, 1 for indicators."""
        return np.array([*(value for column in self.columns for value in column.divisor), 1.0])

    @property
    def names(self) -> list[str]:
        """Names of the `width` encoded columns: age, age missing, colour = red, ..., and last: surprise."""
        return [*(label for column in self.columns for label in column.labels), "surprise"]

    def types(self) -> dict[str, str]:
        """The type as which each column, by name, must be read from a file: number, boolean, time or text."""
        return {column.name: _type_of(column) for column in self.columns}

    def numbers(self, table: Table) -> Array:  # (rows, width) float64
        """The encoded table before standardisation: missing values replaced, categories as indicators."""
        if table.shape[1] != len(self.columns):
            raise ValueError(
                f"the table has {table.shape[1]} columns, {len(self.columns)} were learnt from: "
                "give the same columns"
            )
        out = np.zeros((len(table), self.width))
        start = 0
        for column, (values, index) in zip(self.columns, self._values(table), strict=True):
            block = out[:, start : start + column.width]
            if index is None:
                column.encode(block, values)
                out[:, -1] += column.surprise(values)
            else:
                encoded = np.zeros((len(values), column.width))
                column.encode(encoded, values)
                block[:] = encoded[index]
                out[:, -1] += column.surprise(values)[index]
            start += column.width
        return out

    def surprises(self, table: Table) -> Array:  # (rows, columns)
        """Surprise of each value of a table: the last encoded number is their sum."""
        parts = zip(self.columns, self._values(table), strict=True)
        surprises = ((column.surprise(values), index) for column, (values, index) in parts)
        return np.column_stack([each if index is None else each[index] for each, index in surprises])

    def standardize(self, numbers: Array) -> Array:  # (rows, width) float32
        """Standardise encoded numbers (rows, width), and clip them to ±LIMIT."""
        with np.errstate(over="ignore"):  # 1e308 over a tiny scale is clipped like any other large value
            return np.clip((numbers - self.shift) / self.scale, -LIMIT, LIMIT).astype(np.float32)

    def transform(self, table: Table) -> Array:  # (rows, width) float32
        """Encode and standardise a table."""
        return self.standardize(self.numbers(table))

    def to_config(self) -> list[dict[str, Any]]:
        """A JSON configuration from which `from_config` makes an equal encoder."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_config(cls, config: Sequence[dict[str, Any]]) -> "Encoder":
        """The encoder of which `to_config` gave this configuration."""
        return cls(tuple(_column(entry) for entry in config))

    def _values(self, table: Table) -> list[tuple[Array, Array | None]]:
        """The values of each column: float64 numbers or days (rows,), or different labels as text.

        With labels comes the number of each row's label (rows,), with numbers None.
        """
        if isinstance(table, np.ndarray):
            for column in self.columns:
                if not isinstance(column, NumericColumn):
                    kind = "categorical" if isinstance(column, CategoricalColumn) else "a time"
                    raise ValueError(
                        f"column {column.name!r} is {kind}: "
                        "give a data frame with the columns of the training table"
                    )
            return [(table[:, i].astype(np.float64), None) for i in range(table.shape[1])]
        return [_column_values(column, table.iloc[:, i]) for i, column in enumerate(self.columns)]


def _column_values(column: Column, values: "pd.Series[Any]") -> tuple[Array, Array | None]:
    """What the encoding of a column takes, as in `Encoder._values`."""
    if isinstance(column, NumericColumn):
        return numeric_values(values, column.name), None
    if isinstance(column, TimeColumn):
        return time_values(values, column.name), None
    return distinct_labels(values)


def _type_of(column: Column) -> str:
    """number, boolean, time or text."""
    if isinstance(column, NumericColumn):
        return "boolean" if column.boolean else "number"
    return "time" if isinstance(column, TimeColumn) else "text"


def _column(entry: dict[str, Any]) -> Column:
    """The column of which `asdict` gave this entry."""
    if "values" in entry:
        rare = None if entry["rare"] is None else tuple(entry["rare"])
        values = tuple(entry["values"])
        return CategoricalColumn(entry["name"], values, entry["has_other"], rare, entry["has_missing"])
    if "parts" in entry:
        parts = tuple(CalendarPart(**part) for part in entry["parts"])
        return TimeColumn(entry["name"], NumericColumn(**entry["elapsed"]), parts)
    return NumericColumn(**entry)


def _new_value_rate(labels: Array) -> float:
    """Good-Turing estimate of the fraction of rows with a new value: that of labels (rows,) seen once."""
    return float((pd.Series(labels).value_counts(dropna=False) == 1).sum() / len(labels))


def _fit_categorical(name: str, labels: Array, remember: bool) -> CategoricalColumn:
    """Fit a categorical column of labels (rows,): choose the values with an indicator column of their own.

    With `remember` the other values are remembered, unless they are too many, so that new ones are known.
    """
    return choose_categories(name, Counter(labels.tolist()), len(labels), remember)


def choose_categories(
    name: str, counts: Mapping[str | None, int], rows: int, remember: bool
) -> CategoricalColumn:
    """The encoding of a column whose labels occur so often in `rows` rows, as by scikit-learn's encoder.

    Of equally frequent labels those first in the alphabet are left to the last column.
    """
    least = min(max(rows // 500, MIN_FREQUENCY[0]), MIN_FREQUENCY[1])
    labels = sorted(counts, key=lambda label: (label is None, label))  # a missing one is the last
    frequency = np.array([counts[label] for label in labels])
    infrequent = frequency < least
    if len(labels) - int(infrequent.sum()) + bool(infrequent.any()) > MAX_CATEGORIES:
        infrequent[np.argsort(frequency, kind="stable")[: -(MAX_CATEGORIES - 1)]] = True
    rare = tuple(label for label, is_rare in zip(labels, infrequent, strict=True) if is_rare)
    values = tuple(label for label, is_rare in zip(labels, infrequent, strict=True) if not is_rare)
    known = remember and len(rare) <= MAX_RARE
    return CategoricalColumn(name, values, bool(rare), rare if known else None, None in counts)


def _fit_numeric(names: Sequence[str], values: Array) -> list[NumericColumn]:
    """Fit numeric columns to values (rows, columns); ValueError for numbers too large to square."""
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    values = np.asarray(values, dtype=np.float64)
    has_missing = np.isnan(values).any(0)
    imputer = SimpleImputer(strategy="median", keep_empty_features=True).fit(values)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # overflow is refused below
        scaler = StandardScaler().fit(imputer.transform(values))
    for i, name in enumerate(names):
        if not (np.isfinite(scaler.mean_[i]) and np.isfinite(scaler.var_[i])):
            raise ValueError(f"column {name!r} holds numbers too large to square: divide it by a constant")
    filled = np.where(np.isnan(values), imputer.statistics_, values)
    low, high = filled.min(0), filled.max(0)
    margin = MARGIN / len(values) * (high - low)
    statistics = (scaler.mean_, scaler.scale_, imputer.statistics_, has_missing, low - margin, high + margin)
    return [
        NumericColumn(name, float(mean), float(scale), float(fill), bool(missing), float(least), float(most))
        for name, mean, scale, fill, missing, least, most in zip(names, *statistics, strict=True)
    ]
