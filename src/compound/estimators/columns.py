"""Columns of a data frame: which are numeric, boolean or categorical, and their values for the encoder."""

import re
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types as dtypes

Array = np.ndarray[Any, Any]
NUMERIC_KINDS = ("floating", "integer", "mixed-integer-float", "decimal", "boolean", "empty")  # of objects
_TRUTH = {"true": 1, "false": 0}
_INTEGRAL = re.compile(r"-?(0|[1-9]\d*)\.0*")


def as_frame(X: Any) -> pd.DataFrame | None:
    """Convert a data frame of pandas, polars or pyarrow to one of pandas; None if X is not a data frame."""
    if isinstance(X, pd.DataFrame):
        return X
    if hasattr(X, "columns") and hasattr(X, "to_pandas"):  # polars, pyarrow
        return X.to_pandas()
    return None


def is_categorical(column: "pd.Series[Any]") -> bool:
    """Whether a column is to be one-hot encoded: text, categories, or objects that are not all numbers."""
    if (
        dtypes.is_numeric_dtype(column)
        or dtypes.is_datetime64_any_dtype(column)
        or dtypes.is_timedelta64_dtype(column)
    ):
        return False
    if dtypes.is_object_dtype(column):
        return dtypes.infer_dtype(column, skipna=True) not in NUMERIC_KINDS
    return True


def is_boolean(column: "pd.Series[Any]") -> bool:
    """Whether a column holds booleans, with or without missing values."""
    return bool(dtypes.is_bool_dtype(column)) or (
        dtypes.is_object_dtype(column) and dtypes.infer_dtype(column, skipna=True) == "boolean"
    )


def is_numeric_frame(table: pd.DataFrame) -> bool:
    """Whether all columns are of numeric dtypes, so that an array of numbers holds the same information."""
    return all(dtypes.is_numeric_dtype(dtype) and not dtypes.is_bool_dtype(dtype) for dtype in table.dtypes)


def numeric_values(column: "pd.Series[Any]", name: str) -> Array:  # (rows,) float64, NaN = missing
    """The values of a numeric column; ValueError for times, for text that is no number, and for infinity.

    `name` is that of the column, for the message.
    """
    if dtypes.is_datetime64_any_dtype(column) or dtypes.is_timedelta64_dtype(column):
        raise ValueError(f"column {name!r} holds times: it was numeric in training, give numbers")
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)  # its own type may lack missing values
    try:
        values = _to_numbers(column)
    except (ValueError, TypeError) as error:
        row, value = next((i, v) for i, v in enumerate(column) if not _is_number(v))
        raise ValueError(
            f"column {name!r} holds {value!r} at row {row}: it was numeric in training, give numbers"
        ) from error
    if np.isinf(values).any():
        row = int(np.flatnonzero(np.isinf(values))[0])
        raise ValueError(
            f"column {name!r} holds {values[row]} at row {row}: drop such rows or give a finite number"
        )
    return values


def _to_numbers(column: "pd.Series[Any]") -> Array:
    """The values as float64; text "True" and "false" as 1 and 0."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "fiub":
        return column.to_numpy(np.float64, copy=True)
    try:
        return pd.to_numeric(column).to_numpy(np.float64, na_value=np.nan)
    except (ValueError, TypeError):
        numbers = column.map(lambda v: _TRUTH.get(v.lower(), v) if isinstance(v, str) else v)
        return pd.to_numeric(numbers.astype(object)).to_numpy(np.float64, na_value=np.nan)


def category_values(column: "pd.Series[Any]") -> Array:  # (rows,) of text, None = missing
    """The values of a categorical column as text: "1" for 1 and for 1.0."""
    labels, codes = distinct_labels(column)
    return labels[codes]


def distinct_labels(column: "pd.Series[Any]") -> tuple[Array, Array]:  # (labels,), (rows,)
    """The different values of a categorical column as text, then None, and the number of each row's value."""
    codes, distinct = pd.factorize(column)
    labels = np.array([*(_label(value) for value in distinct), None], dtype=object)
    return labels, codes  # the code of a missing value is -1, the last


def canonical_label(label: str | None) -> str | None:
    """A spelling shared by equal values: "1" for "1.0" and "True", "0" for "false"; else the label itself.

    It identifies labels that training had in another spelling.
    """
    if label is None:
        return None
    if label.lower() in _TRUTH:
        return str(_TRUTH[label.lower()])
    whole = label.rstrip("0").removesuffix(".") if _INTEGRAL.fullmatch(label) else label
    return "0" if whole == "-0" else whole


def _label(value: Any) -> str:
    """A value as text; a whole number has the same text whether a table holds it as 1, 1.0 or "1"."""
    if isinstance(value, float | np.floating | Decimal) and value == value // 1:  # false for infinity
        return str(int(value))
    return str(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in _TRUTH:
        return True
    try:
        float(value)
    except (ValueError, TypeError):
        return value is None or value is pd.NA
    return True
