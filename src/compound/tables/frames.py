"""Conversion of Arrow tables to data frames, with the column types of a fit or types inferred from values."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pandas as pd
import pyarrow as pa

from compound.estimators.number_forms import AmbiguousNumbersError, NumberForm, find_form
from compound.estimators.times import ISO_TIME, OTHER_DATE, TIME_OF_DAY
from compound.tables import column_types as types
from compound.tables.file_errors import delimiter_of, file_format, file_location

ColumnType: TypeAlias = str | NumberForm  # number, boolean, time or text, or the form of numbers
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")


class InferredTable(NamedTuple):
    """A table with inferred types."""

    frame: pd.DataFrame
    forms: dict[str, NumberForm]  # of the columns whose numbers are not plain ones


def cast_frame(path: Path, table: pa.Table, dtypes: Mapping[str, ColumnType], offset: int) -> pd.DataFrame:
    """The columns in `dtypes` with their fitted types.

    `offset` is the number of rows in the file before the first row of `table`, for messages.
    """
    return pd.DataFrame(
        {
            name: _cast_column(path, name, types.to_array(table[name]), dtype, offset)
            for name, dtype in dtypes.items()
        }
    )


def _cast_column(path: Path, name: str, column: pa.Array, dtype: ColumnType, offset: int) -> "pd.Series[Any]":
    """One column of `cast_frame`."""
    kind = "number" if isinstance(dtype, NumberForm) else dtype
    is_date = types.is_date(column.type)
    if not (types.is_scalar(column.type) or is_date) or (is_date and kind != "time"):
        raise ValueError(
            f"{path}, column {name!r} holds {column.type}: "
            f"the model was fitted on one {kind} per row, give the same"
        )
    if kind == "time":
        return _cast_times(path, name, column, offset)
    if kind == "text":
        return types.to_categories(column, parse_missing=file_format(path) != ".parquet")
    is_form = isinstance(dtype, NumberForm) and types.is_text(column.type)
    parsed = types.parse_form(column, dtype) if is_form else types.parse_numbers(column)  # type: ignore[arg-type]
    if parsed.invalid.any():
        row = int(parsed.invalid.argmax())
        where = file_location(path, offset + row)
        hint = f" such as {dtype.example}" if isinstance(dtype, NumberForm) else ""
        raise ValueError(
            f"{path}, {where}, column {name!r} holds {column[row].as_py()!r}: it must be a number{hint}"
        )
    return types.to_numbers(parsed, kind == "boolean")


def _cast_times(path: Path, name: str, column: pa.Array, offset: int) -> "pd.Series[Any]":
    """One column of times."""
    if types.is_date(column.type):
        return types.to_times(column)
    if pa.types.is_null(column.type):
        return pd.Series(pd.NaT, index=range(len(column)))
    if not types.is_text(column.type):
        raise ValueError(
            f"{path}, column {name!r} holds {column.type}: the model was fitted on dates, give dates"
        )
    times, invalid = types.parse_times(column)
    _check_dates(path, name, column, invalid, offset)
    return times


def _check_dates(path: Path, name: str, column: pa.Array, invalid: Any, offset: int = 0) -> None:
    """Raise ValueError at the first text that is no date."""
    if invalid.any():
        row = int(invalid.argmax())
        raise ValueError(
            f"{path}, {file_location(path, offset + row)}, column {name!r} holds {column[row].as_py()!r}, "
            "which is no date: write dates such as 2024-05-01, or leave it empty"
        )


def infer_frame(path: Path, table: pa.Table) -> InferredTable:
    """All columns, with types inferred from the text (csv) or taken from the schema (parquet)."""
    forms: dict[str, NumberForm] = {}
    delimiter = delimiter_of(path)
    columns = {
        name: _infer_column(path, name, types.to_array(table[name]), delimiter, forms)
        for name in table.column_names
    }
    decimals = {form.decimal for form in forms.values()}
    if decimals == {","} and delimiter == ";":  # a point may separate thousands here
        for name, values in columns.items():
            if name not in forms and pd.api.types.is_float_dtype(values):
                _check_points(path, name, types.to_array(table[name]))
    return InferredTable(pd.DataFrame(columns), forms)


def _check_points(path: Path, name: str, column: pa.Array) -> None:
    """Raise ValueError if 1.234 may be 1234: in a file with decimal commas, where all values are such."""
    texts = [text for text in types.distinct_text(column) if not text.lstrip("+-").isdigit()]
    if texts and all(_GROUPED.fullmatch(text) for text in texts):
        raise ValueError(
            f"{path}, column {name!r} holds {texts[0]!r}, and other columns have decimal commas: "
            "write its numbers without separators of thousands"
        )


def _infer_column(
    path: Path, name: str, column: pa.Array, delimiter: str, forms: dict[str, NumberForm]
) -> "pd.Series[Any]":
    """One column of `infer_frame`; ValueError for values that are no scalars or dates. Adds to `forms`."""
    if types.is_date(column.type):
        return types.to_times(column)
    if types.is_temporal(column.type):
        raise _times_of_day(path, name)
    if not types.is_scalar(column.type):
        raise ValueError(
            f"{path}, column {name!r} holds {column.type}, not one number or category per row: "
            "leave it out with --drop"
        )
    if types.is_text(column.type):
        return _infer_text_column(path, name, column, delimiter, forms)
    if pa.types.is_decimal(column.type) or pa.types.is_null(column.type):
        column = column.cast(pa.float64())
    return column.to_pandas()


def _infer_text_column(
    path: Path, name: str, column: pa.Array, delimiter: str, forms: dict[str, NumberForm]
) -> "pd.Series[Any]":
    """A text column as numbers, booleans, times or categories; ValueError where a typo is likely.

    Plain numbers in text of parquet stay categories.
    """
    is_parquet = not delimiter
    parsed = types.parse_numbers(column)
    numbers = None if is_parquet else types.infer_numbers(column, parsed)
    if numbers is not None:
        return numbers
    if (times := _infer_times(path, name, column)) is not None:
        return times
    try:
        form = find_form(types.distinct_text(column), delimiter == ",")
    except AmbiguousNumbersError as error:
        raise ValueError(f"{path}, column {name!r} {error}, or leave it out with --drop") from error
    if form is not None:
        forms[name] = form
        return types.to_numbers(types.parse_form(column, form), False)
    if not is_parquet and (typo := types.find_typo(parsed)):
        raise _typo(path, name, column, *typo, "numbers")
    return types.to_categories(column, parse_missing=not is_parquet)


def _infer_times(path: Path, name: str, column: pa.Array) -> "pd.Series[Any] | None":
    """A text column as times, None if it holds none; ValueError for dates that are not ISO, and typos."""
    if types.all_match(column, TIME_OF_DAY):
        raise _times_of_day(path, name)
    if not types.all_match(column, ISO_TIME) and types.all_match(column, OTHER_DATE):
        raise ValueError(
            f"{path}, column {name!r} holds dates such as {types.distinct_text(column)[0]!r}, "
            "whose order is not certain: write them as 2024-05-01, or leave it out with --drop"
        )
    is_iso = types.all_match(column, ISO_TIME)
    if not (is_iso or types.starts_with_time(column)):
        return None
    times, invalid = types.parse_times(column)
    if is_iso:
        _check_dates(path, name, column, invalid)  # 2020-02-31
        return times
    if typo := types.first_typo(invalid, int(times.notna().sum())):
        raise _typo(path, name, column, *typo, "dates")
    return None


def _times_of_day(path: Path, name: str) -> ValueError:
    return ValueError(
        f"{path}, column {name!r} holds times without a date: "
        "write them as numbers, such as hours, or leave it out with --drop"
    )


def _typo(path: Path, name: str, column: pa.Array, row: int, percent: int, kind: str) -> ValueError:
    return ValueError(
        f"{path}, {file_location(path, row)}, column {name!r} holds {column[row].as_py()!r}, "
        f"{percent}% of the others are {kind}: fix it or leave it empty"
    )
