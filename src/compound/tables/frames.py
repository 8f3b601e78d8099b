"""Conversion of Arrow tables to data frames, with the column types of a fit or types inferred from values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from compound.tables import column_types as types
from compound.tables.file_errors import file_format, file_location


def cast_frame(path: Path, table: pa.Table, dtypes: Mapping[str, str], offset: int) -> pd.DataFrame:
    """The columns in `dtypes` with their fitted types (number, boolean, text).

    `offset` is the number of rows in the file before the first row of `table`, for messages.
    """
    return pd.DataFrame(
        {
            name: _cast_column(path, name, types.to_array(table[name]), dtype, offset)
            for name, dtype in dtypes.items()
        }
    )


def _cast_column(path: Path, name: str, column: pa.Array, dtype: str, offset: int) -> "pd.Series[Any]":
    """One column of `cast_frame`; dates and times are returned as they are."""
    if types.is_temporal(column.type):
        return column.to_pandas()
    if not types.is_scalar(column.type):
        raise ValueError(
            f"{path}, column {name!r} holds {column.type}: "
            f"the model was fitted on one {dtype} per row, give the same"
        )
    if dtype == "text":
        return types.to_categories(column, parse_missing=file_format(path) != ".parquet")
    parsed = types.parse_numbers(column)
    if parsed.invalid.any():
        row = int(parsed.invalid.argmax())
        where = file_location(path, offset + row)
        raise ValueError(
            f"{path}, {where}, column {name!r} holds {column[row].as_py()!r}: it must be a number"
        )
    return types.to_numbers(parsed, dtype == "boolean")


def infer_frame(path: Path, table: pa.Table) -> pd.DataFrame:
    """All columns, with types inferred from the text (csv) or taken from the schema (parquet)."""
    is_parquet = file_format(path) == ".parquet"
    return pd.DataFrame(
        {
            name: _infer_column(path, name, types.to_array(table[name]), is_parquet)
            for name in table.column_names
        }
    )


def _infer_column(path: Path, name: str, column: pa.Array, is_parquet: bool) -> "pd.Series[Any]":
    """One column of `infer_frame`; ValueError for times and for values that are not scalars."""
    is_csv_text = types.is_text(column.type) and not is_parquet
    if types.is_temporal(column.type) or (is_csv_text and types.is_time_text(column)):
        raise ValueError(
            f"{path}, column {name!r} holds times: "
            "write them as numbers, such as days, or leave it out with --drop"
        )
    if not types.is_scalar(column.type):
        raise ValueError(
            f"{path}, column {name!r} holds {column.type}, not one number or category per row: "
            "leave it out with --drop"
        )
    if is_csv_text:
        return _infer_text_column(path, name, column)
    if pa.types.is_decimal(column.type) or pa.types.is_null(column.type):
        column = column.cast(pa.float64())
    return column.to_pandas()


def _infer_text_column(path: Path, name: str, column: pa.Array) -> "pd.Series[Any]":
    """A csv column as numbers, booleans or categories; ValueError where a typo is likely."""
    parsed = types.parse_numbers(column)
    numbers = types.infer_numbers(column, parsed)
    if numbers is not None:
        return numbers
    if typo := types.find_typo(parsed):
        row, percent = typo
        raise ValueError(
            f"{path}, {file_location(path, row)}, column {name!r} holds {column[row].as_py()!r}, "
            f"{percent}% of the others are numbers: fix it or leave it empty"
        )
    return types.to_categories(column, parse_missing=True)
