"""Dates and times of data frames: which columns hold them, and their values as days since 1970.

Text counts as times where every value is an ISO date, alone or with a time of day: 2024-05-01, 2024/05/01,
2024-05-01 10:30, 2024-05-01T10:30:00.5+02:00. Times with a zone are converted to UTC, others are taken as
they are. Dates of another order, such as 1/2/2024, are refused: they are ambiguous.
"""

import datetime
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types as dtypes

from compound.estimators.columns import Array

_DATE = r"\d{4}(-\d\d-\d\d|/\d\d/\d\d)"
_CLOCK = r"\d\d:\d\d(:\d\d(\.\d+)?)?"
ISO_TIME = rf"{_DATE}([ T]{_CLOCK} ?(Z|[+-]\d\d:?\d\d)?)?"
TIME_OF_DAY = _CLOCK
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_SMALL = r"(0?[1-9]|[12]\d|3[01])"  # a day or month
OTHER_DATE = (  # 1/2/2024, 1.2.2024, 1 Feb 2024, 1-Feb-24, Feb 1, 2024, 2024-5-1; a time of day may follow
    rf"(?i)({_SMALL}/{_SMALL}/(\d{{4}}|\d\d)|{_SMALL}\.{_SMALL}\.\d{{4}}|{_SMALL}-{_SMALL}-\d{{4}}"
    rf"|{_SMALL}[ .-]+{_MONTH}[ ,.-]+(\d{{4}}|\d\d)|{_MONTH} +{_SMALL},? +\d{{4}}"
    rf"|\d{{4}}(/{_SMALL}/{_SMALL}|-{_SMALL}-{_SMALL}|\.{_SMALL}\.{_SMALL}))"
    r"([ T,]+\d{1,2}:\d\d(:\d\d(\.\d+)?)?( ?[ap]m)?)?"
)
DAYS = (-719_162.0, 2_932_896.0)  # of the years 1 to 9999
_ISO = re.compile(ISO_TIME)
_OTHER = re.compile(OTHER_DATE)
_DURATIONS = ("timedelta", "duration", "time")  # how pandas' names of dtypes without a date begin
_TIME_OBJECTS = ("datetime", "datetime64", "date", "period")  # of `infer_dtype`
_MICROSECONDS = 86_400_000_000  # of a day


def is_time(column: "pd.Series[Any]") -> bool:
    """Whether a column holds dates or times: of such a dtype, as objects, or as ISO text throughout.

    ValueError for durations, times of day, and dates as text whose order is ambiguous.
    """
    if dtypes.is_datetime64_any_dtype(column) or isinstance(column.dtype, pd.PeriodDtype):
        return True
    if dtypes.is_numeric_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype):
        return False
    kind = column.dtype.name
    if dtypes.is_object_dtype(column) or dtypes.is_string_dtype(column):
        kind = dtypes.infer_dtype(column, skipna=True)
    if kind.startswith(("date32", "date64", "timestamp")) or kind in _TIME_OBJECTS:
        return True
    if kind.startswith(_DURATIONS):
        raise ValueError(
            f"column {str(column.name)!r} holds times without a date: "
            "give numbers instead, such as hours, or leave it out"
        )
    if kind != "string":
        return False
    distinct = column.dropna().unique().tolist()
    if distinct and _all_match(_OTHER, distinct) and not _all_match(_ISO, distinct):
        raise ValueError(
            f"column {str(column.name)!r} holds dates such as {distinct[0]!r}, "
            "whose order is not certain: convert it with pandas.to_datetime, or leave it out"
        )
    return bool(distinct) and _all_match(_ISO, distinct)


def time_values(
    column: "pd.Series[Any]", name: str
) -> Array:  # (rows,) float64 days since 1970, NaN = missing
    """The values of a column of times; ValueError for a value that is none, such as 2020-02-31.

    `name` is that of the column, for the message.
    """
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    if dtypes.is_datetime64_any_dtype(column):
        return _days(column)
    if dtypes.is_numeric_dtype(column) and column.notna().any():
        raise ValueError(f"column {name!r} holds numbers: it held dates in training, give dates")
    codes, distinct = pd.factorize(column)
    if not len(distinct):
        return np.full(len(column), np.nan)
    parsed = parse_times(list(distinct))
    if np.isnan(parsed).any():
        wrong = int(np.isnan(parsed).argmax())
        row = int((codes == wrong).argmax())
        raise ValueError(
            f"column {name!r} holds {distinct[wrong]!r} at row {row}, which is no date: "
            "give dates such as 2024-05-01, or a missing value"
        )
    return np.append(parsed, np.nan)[codes]  # the code of a missing value is -1, the last


def parse_times(values: list[Any]) -> Array:  # (values,) float64
    """Text, dates and times as days since 1970; NaN for what is none of them."""
    out = np.full(len(values), np.nan)
    texts = [i for i, v in enumerate(values) if isinstance(v, str) and _ISO.fullmatch(v.strip())]
    if texts:
        text = pd.Series([values[i].strip() for i in texts], dtype=object)
        out[texts] = _days(pd.to_datetime(text, format="ISO8601", utc=True, errors="coerce"))
    dates = [i for i, v in enumerate(values) if isinstance(v, datetime.date | np.datetime64)]
    if dates:
        objects = pd.Series([values[i] for i in dates], dtype=object)
        out[dates] = _days(pd.to_datetime(objects, utc=True, errors="coerce"))
    periods = [i for i, v in enumerate(values) if isinstance(v, pd.Period)]
    if periods:
        out[periods] = _days(pd.Series([values[i].to_timestamp() for i in periods]))
    return out


def format_time(days: float, with_clock: bool) -> str:
    """Days since 1970 as ISO text, to the minute `with_clock`, else to the day."""
    seconds = np.clip(days, *DAYS) * 86400
    unit = "m" if with_clock else "D"
    return str(np.datetime64(round(float(seconds)), "s").astype(f"datetime64[{unit}]")).replace("T", " ")


def _days(times: "pd.Series[Any]") -> Array:
    """A column of datetimes as days since 1970 in UTC, NaN for NaT."""
    if getattr(times.dt, "tz", None) is not None:
        times = times.dt.tz_convert("UTC").dt.tz_localize(None)
    exact = times.to_numpy("datetime64[us]")
    return np.where(np.isnat(exact), np.nan, exact.astype(np.int64) / _MICROSECONDS)


def _all_match(pattern: "re.Pattern[str]", values: Iterable[str]) -> bool:
    return all(pattern.fullmatch(value.strip()) for value in values)
