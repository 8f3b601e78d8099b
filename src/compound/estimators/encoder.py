"""Encoding of a table as standardised numbers. A fitted encoder is a few numbers and labels, saved as JSON.

Numeric columns: missing values become the median, with an indicator column where training had missing values;
then they are standardised in float64. Text, categories and other objects are one-hot encoded; rare values,
unseen ones and those beyond the most frequent share a last column. Medians, means, scales and categories are
fitted by scikit-learn's transformers.

A last number, the surprise, is 0 for all training rows. It is SURE for a value that new rows of the same
distribution would hardly bring: an unseen category, a missing value in a column that had none, a number
beyond the training range by half its width; for smaller excess it is SURE (2 excess)³. No network can learn
from it, but the out-of-distribution distance sees it.
"""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from compound.estimators.columns import (
    Array,
    canonical_label,
    category_values,
    is_boolean,
    is_categorical,
    numeric_values,
)

LIMIT = 1e4  # standardised values are clipped to ±LIMIT
MAX_CATEGORIES = 300  # indicator columns of a categorical column
MIN_FREQUENCY = (3, 10)  # rows of a category with an indicator column: of n rows n / 500, within these
MAX_RARE = 10_000  # values without one that are remembered
SURE = 100.0  # surprise in standard deviations: beyond any threshold
MARGIN = 10  # a range of n rows is widened by MARGIN / n of its width: few rows show little of their range
NEW_VALUES = 0.003  # fraction of rows that may bring a value that is new in its column, all columns together

Table: TypeAlias = "pd.DataFrame | Array"


@dataclass(frozen=True)
class NumericColumn:
    """The fitted encoding of a column of numbers, booleans (0, 1) or times (days)."""

    name: str
    mean: float
    scale: float  # standard deviation; 1 where the column was constant
    fill: float  # the median, which replaces missing values
    has_missing: bool  # training had missing values: an indicator column follows
    low: float = -np.inf  # range of the training values, with a margin
    high: float = np.inf
    boolean: bool = False  # the column held booleans in training

    @property
    def width(self) -> int:
        """How many numbers it is encoded as."""
        return 1 + self.has_missing

    def encode(self, out: Array, values: Array) -> None:
        """Write values (rows,), NaN where missing, into out (rows, width), before standardisation."""
        missing = np.isnan(values)
        out[:, 0] = np.where(missing, self.fill, values)
        if self.has_missing:
            out[:, 1] = missing

    def surprise(self, values: Array) -> Array:  # (rows,)
        """SURE for a missing value where training had none, less for a number beyond the range."""
        missing = np.isnan(values)
        excess = np.fmax(np.fmax(self.low - values, values - self.high), 0.0)  # 0 for NaN
        half_width = max(0.5 * (self.high - self.low), np.finfo(np.float64).tiny)
        with np.errstate(over="ignore"):
            beyond = SURE * np.minimum(excess / half_width, 1.0) ** 3
        return np.where(missing, 0.0 if self.has_missing else SURE, beyond)


@dataclass(frozen=True)
class CategoricalColumn:
    """The fitted one-hot encoding of a column of labels; None is a missing value, which is a category too."""

    name: str
    values: tuple[str | None, ...]  # those with an indicator column of their own
    has_other: bool  # a last indicator column for all other values
    rare: tuple[str | None, ...] | None = None  # other values that training had; None: new ones are ordinary

    @property
    def width(self) -> int:
        """How many numbers it is encoded as."""
        return len(self.values) + self.has_other

    def encode(self, out: Array, values: Array) -> None:
        """Write labels (rows,) as indicators into out (rows, width), which holds zeros."""
        index = {canonical_label(value): i for i, value in reversed(list(enumerate(self.values)))}
        index |= {value: i for i, value in enumerate(self.values)}  # exact labels have priority
        other = len(self.values) if self.has_other else -1
        positions = np.fromiter(
            (index[v] if v in index else index.get(canonical_label(v), other) for v in values),
            dtype=np.int64,
            count=len(values),
        )
        rows = np.flatnonzero(positions >= 0)
        out[rows, positions[rows]] = 1.0

    def surprise(self, values: Array) -> Array:  # (rows,)
        """SURE for a value that training did not have, where new values are not ordinary."""
        if self.rare is None:
            return np.zeros(len(values))
        known = {*self.values, *self.rare}
        known |= {canonical_label(value) for value in known}
        new = (v not in known and canonical_label(v) not in known for v in values)
        return SURE * np.fromiter(new, dtype=np.float64, count=len(values))


@dataclass(frozen=True)
class Encoder:
    """The encoding fitted to a training table; `transform` encodes any table with the same columns."""

    columns: tuple[NumericColumn | CategoricalColumn, ...]

    @classmethod
    def fit(cls, table: Table, names: Sequence[str] | None = None) -> "Encoder":
        """Fit an encoder to a table. `names` are those of an array's columns; x0, x1 and so on by default."""
        if isinstance(table, np.ndarray):
            return cls(tuple(_fit_numeric(names or [f"x{i}" for i in range(table.shape[1])], table)))
        labels_of = {
            i: category_values(table.iloc[:, i])
            for i in range(table.shape[1])
            if is_categorical(table.iloc[:, i])
        }
        columns: list[NumericColumn | CategoricalColumn | None] = [None] * table.shape[1]
        new_values = 0.0  # fraction of rows expected to bring any
        for i in sorted(labels_of, key=lambda i: _new_value_rate(labels_of[i])):
            new_values += _new_value_rate(labels_of[i])
            columns[i] = _fit_categorical(
                str(table.columns[i]), labels_of[i], remember=new_values <= NEW_VALUES
            )
        numeric = [i for i, column in enumerate(columns) if column is None]
        if numeric:  # all at once: a table may have thousands
            labels = [str(table.columns[i]) for i in numeric]
            values = np.column_stack(
                [numeric_values(table.iloc[:, i], label) for i, label in zip(numeric, labels, strict=True)]
            )
            for i, column in zip(numeric, _fit_numeric(labels, values), strict=True):
                columns[i] = replace(column, boolean=is_boolean(table.iloc[:, i]))
        return cls(tuple(column for column in columns if column is not None))

    @property
    def is_numeric(self) -> bool:
        """Whether all columns are numeric, so that an array can be encoded too."""
        return all(isinstance(column, NumericColumn) for column in self.columns)

    @property
    def width(self) -> int:
        """How many numbers a row is encoded as."""
        return sum(column.width for column in self.columns) + 1

    @cached_property
    def shift(self) -> Array:  # (width,)
        """Means of numeric columns, 0 for indicators."""
        return np.array([value for column in self.columns for value in _expand(column, "mean", 0.0)] + [0.0])

    @cached_property
    def scale(self) -> Array:  # (width,)
        """Standard deviations of numeric columns, 1 for indicators."""
        return np.array([value for column in self.columns for value in _expand(column, "scale", 1.0)] + [1.0])

    @property
    def names(self) -> list[str]:
        """Names of the `width` encoded columns: age, age missing, colour = red, ..., and last: surprise."""
        names = []
        for column in self.columns:
            if isinstance(column, NumericColumn):
                names += [column.name, f"{column.name} missing"][: column.width]
            else:
                labels = ["missing" if value is None else value for value in column.values]
                names += [f"{column.name} = {label}" for label in [*labels, "other"][: column.width]]
        return [*names, "surprise"]

    def types(self) -> dict[str, str]:
        """The type as which each column, by name, must be read from a file: number, boolean or text."""
        numeric = {True: "boolean", False: "number"}
        return {c.name: numeric[c.boolean] if isinstance(c, NumericColumn) else "text" for c in self.columns}

    def numbers(self, table: Table) -> Array:  # (rows, width) float64
        """The encoded table before standardisation: missing values replaced, categories as indicators."""
        if table.shape[1] != len(self.columns):
            raise ValueError(
                f"the table has {table.shape[1]} columns, {len(self.columns)} were learnt from: "
                "give the same columns"
            )
        out = np.zeros((len(table), self.width))
        start = 0
        for column, values in zip(self.columns, self._values(table), strict=True):
            column.encode(out[:, start : start + column.width], values)
            out[:, -1] += column.surprise(values)
            start += column.width
        return out

    def surprises(self, table: Table) -> Array:  # (rows, columns)
        """Surprise of each value of a table: the last encoded number is their sum."""
        parts = zip(self.columns, self._values(table), strict=True)
        return np.column_stack([column.surprise(values) for column, values in parts])

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
        return cls(
            tuple(
                CategoricalColumn(
                    entry["name"],
                    tuple(entry["values"]),
                    entry["has_other"],
                    None if entry["rare"] is None else tuple(entry["rare"]),
                )
                if "values" in entry
                else NumericColumn(**entry)
                for entry in config
            )
        )

    def _values(self, table: Table) -> list[Array]:
        """The values (rows,) of each column: float64 numbers, or labels as text."""
        if isinstance(table, np.ndarray):
            if not self.is_numeric:
                name = next(column.name for column in self.columns if isinstance(column, CategoricalColumn))
                raise ValueError(
                    f"column {name!r} is categorical: "
                    "give a data frame with the columns of the training table"
                )
            return [table[:, i].astype(np.float64) for i in range(table.shape[1])]
        return [
            numeric_values(table.iloc[:, i], column.name)
            if isinstance(column, NumericColumn)
            else category_values(table.iloc[:, i])
            for i, column in enumerate(self.columns)
        ]


def _new_value_rate(labels: Array) -> float:
    """Good-Turing estimate of the fraction of rows with a new value: that of labels (rows,) seen once."""
    return float((pd.Series(labels).value_counts(dropna=False) == 1).sum() / len(labels))


def _fit_categorical(name: str, labels: Array, remember: bool) -> CategoricalColumn:
    """Fit a categorical column of labels (rows,): choose the values with an indicator column of their own.

    With `remember` the other values are remembered, unless they are too many, so that new ones are known.
    """
    from sklearn.preprocessing import OneHotEncoder

    least = min(max(len(labels) // 500, MIN_FREQUENCY[0]), MIN_FREQUENCY[1])
    encoder = OneHotEncoder(
        handle_unknown="infrequent_if_exist", min_frequency=least, max_categories=MAX_CATEGORIES
    )
    encoder.fit(labels[:, None])
    infrequent = encoder.infrequent_categories_[0]
    rare = () if infrequent is None else tuple(infrequent.tolist())
    values = tuple(value for value in encoder.categories_[0].tolist() if value not in set(rare))
    known = remember and len(rare) <= MAX_RARE
    return CategoricalColumn(name, values, infrequent is not None, rare if known else None)


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


def _expand(column: NumericColumn | CategoricalColumn, field: str, indicator: float) -> list[float]:
    """One number per encoded column, (width,): `field` of a numeric column, `indicator` for indicators."""
    if isinstance(column, CategoricalColumn):
        return [indicator] * column.width
    return [getattr(column, field), indicator][: column.width]
