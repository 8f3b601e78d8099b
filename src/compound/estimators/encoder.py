"""A table's columns as numbers in standard units: learnt once, kept as plain words.

Numbers are filled where missing (median, with an indicator column beside where training had gaps), then standardised in float64.
Text, categories and dates of other kinds become one column per value; values seen once, unseen ones and those beyond the most
frequent share a last one. scikit-learn's transformers learn all of it; only their numbers are kept, so loading runs nothing.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types as kinds

LIMIT = 1e4  # standard units saturate here: what lies farther out is equally strange
TIMES = ("datetime", "date", "timedelta", "time", "period")  # how pandas' names of types begin
_WHOLE = re.compile(r"-?(0|[1-9]\d*)\.0*")
VALUES = 32  # of a text column that get a column of their own


@dataclass(frozen=True)
class Number:
    """A column of numbers, truth values (0, 1) or times (days)."""

    name: str
    mean: float
    scale: float  # standard deviation; 1 where the column was constant
    fill: float  # the median stands for missing values
    gaps: bool  # training had missing values: an indicator column follows
    boolean: bool = False

    @property
    def width(self) -> int:
        return 1 + self.gaps


@dataclass(frozen=True)
class Category:
    """A column of words; None is "missing" as a value of its own."""

    name: str
    values: tuple[str | None, ...]
    rest: bool  # a last column for all other values

    @property
    def width(self) -> int:
        return len(self.values) + self.rest


@dataclass(frozen=True)
class Encoder:
    """What was learnt from the training table; `transform` encodes any table of the same columns."""

    columns: tuple[Number | Category, ...]

    @classmethod
    def fit(
        cls, table: "pd.DataFrame | np.ndarray[Any, Any]", names: "Sequence[str] | None" = None
    ) -> "Encoder":
        """`names` are those of an array's columns; without them they are x0, x1 and so on."""
        if isinstance(table, np.ndarray):
            return cls(tuple(_learn_numbers(names or [f"x{i}" for i in range(table.shape[1])], table)))
        found: list[Number | Category | None] = [
            _learn_category(str(name), table.iloc[:, i]) if is_words(table.iloc[:, i]) else None
            for i, name in enumerate(table.columns)
        ]
        numbers = [
            i for i, column in enumerate(found) if column is None
        ]  # all at once: a table may have thousands
        if numbers:
            labels = [str(table.columns[i]) for i in numbers]
            values = np.column_stack(
                [number_values(table.iloc[:, i], label) for i, label in zip(numbers, labels, strict=True)]
            )
            for i, column in zip(numbers, _learn_numbers(labels, values), strict=True):
                found[i] = replace(column, boolean=is_truths(table.iloc[:, i]))
        return cls(tuple(column for column in found if column is not None))

    @property
    def plain(self) -> bool:
        """Whether the table is numbers only, so that a bare array will do."""
        return all(isinstance(column, Number) for column in self.columns)

    @property
    def width(self) -> int:
        """How many numbers a row becomes."""
        return sum(column.width for column in self.columns)

    @cached_property
    def shift(self) -> "np.ndarray[Any, Any]":  # (width,)
        return np.array([value for column in self.columns for value in _padded(column, "mean", 0.0)])

    @cached_property
    def scale(self) -> "np.ndarray[Any, Any]":  # (width,)
        return np.array([value for column in self.columns for value in _padded(column, "scale", 1.0)])

    @property
    def names(self) -> list[str]:
        """One for each encoded number: age, age missing, colour = red, colour = other."""
        out = []
        for column in self.columns:
            if isinstance(column, Number):
                out += [column.name, f"{column.name} missing"][: column.width]
            else:
                words = ["missing" if value is None else value for value in column.values]
                out += [f"{column.name} = {word}" for word in [*words, "other"][: column.width]]
        return out

    def types(self) -> dict[str, str]:
        """How each column must be read from a file: number, boolean or text."""
        kind = {True: "boolean", False: "number"}
        return {c.name: kind[c.boolean] if isinstance(c, Number) else "text" for c in self.columns}

    def numbers(
        self, table: "pd.DataFrame | np.ndarray[Any, Any]"
    ) -> "np.ndarray[Any, Any]":  # (rows, width)
        """Gaps filled and words spelt out, still in the table's own units."""
        if table.shape[1] != len(self.columns):
            raise ValueError(
                f"the table has {table.shape[1]} columns, {len(self.columns)} were learnt from: give the same columns"
            )
        if isinstance(table, np.ndarray):
            if not self.plain:
                text = next(column.name for column in self.columns if isinstance(column, Category))
                raise ValueError(
                    f"column {text!r} holds words: give a data frame with the columns of the training table"
                )
            values = [table[:, i].astype(np.float64) for i in range(table.shape[1])]
        else:
            values = [
                number_values(table.iloc[:, i], c.name)
                if isinstance(c, Number)
                else text_values(table.iloc[:, i])
                for i, c in enumerate(self.columns)
            ]
        out = np.zeros((len(table), self.width))
        start = 0
        for column, mine in zip(self.columns, values, strict=True):
            part = out[:, start : start + column.width]
            _fill_number(part, mine, column) if isinstance(column, Number) else _fill_category(
                part, mine, column
            )
            start += column.width
        return out

    def standard(self, numbers: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":  # (rows, width) float32
        with np.errstate(over="ignore"):  # 1e308 over a tiny scale: saturates like any other far value
            return np.clip((numbers - self.shift) / self.scale, -LIMIT, LIMIT).astype(np.float32)

    def transform(
        self, table: "pd.DataFrame | np.ndarray[Any, Any]"
    ) -> "np.ndarray[Any, Any]":  # (rows, width) float32
        return self.standard(self.numbers(table))

    def words(self) -> list[dict[str, Any]]:
        """Plain words from which `of` makes the same encoder."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_config(cls, words: Sequence[dict[str, Any]]) -> "Encoder":
        return cls(
            tuple(
                Category(w["name"], tuple(w["values"]), w["rest"]) if "values" in w else Number(**w)
                for w in words
            )
        )


def is_words(column: "pd.Series[Any]") -> bool:
    """Whether a column is encoded value by value: text, categories, objects that are not all numbers."""
    if (
        kinds.is_numeric_dtype(column)
        or kinds.is_datetime64_any_dtype(column)
        or kinds.is_timedelta64_dtype(column)
    ):
        return False
    if kinds.is_object_dtype(column):
        return kinds.infer_dtype(column, skipna=True) not in (
            "floating",
            "integer",
            "mixed-integer-float",
            "decimal",
            "boolean",
            "empty",
        )
    return True


def is_truths(column: "pd.Series[Any]") -> bool:
    """Whether a column holds truth values, with or without gaps."""
    return bool(kinds.is_bool_dtype(column)) or (
        kinds.is_object_dtype(column) and kinds.infer_dtype(column, skipna=True) == "boolean"
    )


def all_numbers(table: pd.DataFrame) -> bool:
    """Whether an array of numbers says all that the table does."""
    return all(kinds.is_numeric_dtype(kind) and not kinds.is_bool_dtype(kind) for kind in table.dtypes)


def refuse_times(table: pd.DataFrame) -> None:
    """Dates and durations are not learnt from as they are."""
    for i, name in enumerate(table.columns):
        column = table.iloc[:, i]
        kind = kinds.infer_dtype(column, skipna=True) if kinds.is_object_dtype(column) else column.dtype.name
        if kind.startswith(TIMES):
            raise ValueError(
                f"column {str(name)!r} holds times: give numbers instead, such as days, or leave it out"
            )


def number_values(
    column: "pd.Series[Any]", name: str
) -> "np.ndarray[Any, Any]":  # (rows,) float64, NaN = missing
    if kinds.is_datetime64_any_dtype(column):
        naive = column.dt.tz_convert(None) if getattr(column.dt, "tz", None) is not None else column
        return ((naive - pd.Timestamp(0)) / pd.Timedelta(days=1)).to_numpy(np.float64)
    if kinds.is_timedelta64_dtype(column):
        return (column / pd.Timedelta(days=1)).to_numpy(np.float64)
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    try:
        values = pd.to_numeric(column).to_numpy(np.float64, na_value=np.nan)
    except (ValueError, TypeError) as error:
        place, value = next((i, v) for i, v in enumerate(column) if not _is_number(v))
        raise ValueError(
            f"column {name!r} holds {value!r} at row {place}: numbers were learnt from there, give numbers"
        ) from error
    return _finite(values, name)


def text_values(column: "pd.Series[Any]") -> "np.ndarray[Any, Any]":  # (rows,) of text, None = missing
    codes, distinct = pd.factorize(column)
    words = np.array([*(_spelt(value) for value in distinct), None], dtype=object)
    return words[codes]  # -1 is the last


def _spelt(value: Any) -> str:
    """One spelling for a code, whether a table holds it as 1, 1.0 or "1"."""
    if isinstance(value, float | np.floating | Decimal) and value == value // 1:  # infinity is not
        return str(int(value))
    return str(value)


def _meant(word: str | None) -> str | None:
    """What a word that is not known may stand for: "1.0" and "True" for 1, "false" for 0."""
    if word is None:
        return None
    if word.lower() in ("true", "false"):
        return str(int(word.lower() == "true"))
    return word.rstrip("0").removesuffix(".") if _WHOLE.fullmatch(word) else word


def _learn_category(name: str, column: "pd.Series[Any]") -> Category:
    from sklearn.preprocessing import OneHotEncoder

    learner = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=2, max_categories=VALUES)
    learner.fit(text_values(column)[:, None])
    rare = learner.infrequent_categories_[0]
    others = set() if rare is None else set(rare.tolist())
    return Category(
        name,
        tuple(value for value in learner.categories_[0].tolist() if value not in others),
        rare is not None,
    )


def _learn_numbers(names: Sequence[str], values: "np.ndarray[Any, Any]") -> list[Number]:
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    values = np.asarray(values, dtype=np.float64)
    gaps = np.isnan(values).any(0)
    imputer = SimpleImputer(strategy="median", keep_empty_features=True).fit(values)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # overflow is refused below, in words
        scaler = StandardScaler().fit(imputer.transform(values))
    for i, name in enumerate(names):
        if not (np.isfinite(scaler.mean_[i]) and np.isfinite(scaler.var_[i])):
            raise ValueError(f"column {name!r} holds numbers too large to square: divide it by a constant")
    rows = zip(names, scaler.mean_, scaler.scale_, imputer.statistics_, gaps, strict=True)
    return [
        Number(name, float(mean), float(scale), float(fill), bool(gap))
        for name, mean, scale, fill, gap in rows
    ]


def _fill_number(part: "np.ndarray[Any, Any]", values: "np.ndarray[Any, Any]", column: Number) -> None:
    missing = np.isnan(values)
    part[:, 0] = np.where(missing, column.fill, values)
    if column.gaps:
        part[:, 1] = missing


def _fill_category(part: "np.ndarray[Any, Any]", values: "np.ndarray[Any, Any]", column: Category) -> None:
    place = {_meant(value): i for i, value in reversed(list(enumerate(column.values)))}
    place |= {value: i for i, value in enumerate(column.values)}  # as written, before what it may mean
    other = len(column.values) if column.rest else -1
    at = np.fromiter(
        (place[v] if v in place else place.get(_meant(v), other) for v in values),
        dtype=np.int64,
        count=len(values),
    )
    rows = np.flatnonzero(at >= 0)
    part[rows, at[rows]] = 1.0


def _padded(column: Number | Category, field: str, idle: float) -> list[float]:
    return (
        [getattr(column, field), idle][: column.width]
        if isinstance(column, Number)
        else [idle] * column.width
    )


def _finite(values: "np.ndarray[Any, Any]", name: str) -> "np.ndarray[Any, Any]":
    if np.isinf(values).any():
        place = int(np.flatnonzero(np.isinf(values))[0])
        raise ValueError(
            f"column {name!r} holds {values[place]} at row {place}: drop such rows or give a finite number"
        )
    return values


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return value is None or value is pd.NA
    return True


def as_frame(X: Any) -> pd.DataFrame | None:
    """A data frame of pandas, polars or pyarrow as one of pandas; None where X has no named columns."""
    if isinstance(X, pd.DataFrame):
        return X
    if hasattr(X, "columns") and hasattr(X, "to_pandas"):  # polars, pyarrow
        return X.to_pandas()
    return None
