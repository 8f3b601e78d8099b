"""Columns that name rows: they tell nothing about new rows, so `compound fit` leaves them out unless kept.

A column of at least MIN_ROWS rows without gaps is taken for names of rows if it holds

- text, each value once, or
- integers that rise from every row to the next, unless all could be years or dates such as 20240501.

Numbers with a fraction, dates, and integers in any other order are never taken for names.
"""

from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from compound.estimators.columns import is_categorical

MIN_ROWS = 100
YEARS = (1500, 2200)
DATES = (15_000_101, 22_000_101)  # as numbers: year, month, day


def id_columns(table: pd.DataFrame) -> list[str]:
    """The names of the columns of a table that seem to name its rows."""
    return [str(name) for name in table if _is_id(table[name])]


def _is_id(column: "pd.Series[Any]") -> bool:
    if len(column) < MIN_ROWS or types.is_datetime64_any_dtype(column):
        return False
    if types.is_integer_dtype(column):
        return not column.isna().any() and _rises(column.to_numpy())
    return is_categorical(column) and not column.isna().any() and bool(column.is_unique)


def _rises(values: np.ndarray[Any, Any]) -> bool:
    """Whether integers rise from row to row, and are no years and dates."""
    if not (values[1:] > values[:-1]).all():
        return False
    in_years = YEARS[0] <= values[0] and values[-1] <= YEARS[1]
    in_dates = DATES[0] <= values[0] and values[-1] <= DATES[1]
    if in_dates:
        parsed = pd.to_datetime(pd.Series(values).astype(str), format="%Y%m%d", errors="coerce")
        in_dates = bool(parsed.notna().all())
    return not (in_years or in_dates)
