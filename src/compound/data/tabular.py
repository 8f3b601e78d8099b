"""Tables from files: csv, tsv and parquet, plain or .gz, whole or in pieces.

Whatever is wrong with a file is said in one sentence with its line and column. A header line is needed; text is UTF-8.
"""

import csv
import gzip
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from compound.data.encoder import Encoder as Encoder

DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?", "#N/A"]
TYPES = {"number": pa.float64(), "boolean": pa.bool_(), "text": pa.string()}
ALMOST = 0.9  # a text column with at least this share of numbers is a number column with a slip


def read_table(path: str | Path, types: Mapping[str, str] | None = None) -> pd.DataFrame:
    """The whole table. `types` (number, boolean, text by column, as `Encoder.types` gives) leaves nothing to guess."""
    path = Path(path)
    if _kind(path) == ".parquet":
        return _frame(pa.Table.from_batches(_parquet(path, 1 << 20)), path, types)
    with _reading(path, types):
        table = pyarrow.csv.read_csv(_open(path), _options(), _parse(path), _convert(types))
        _refuse_twice(path, table.column_names)
        if types is None:
            _refuse_slips(path, table)
    return _frame(table, path, types)


def read_chunks(path: str | Path, types: Mapping[str, str], rows: int = 65_536) -> Iterator[pd.DataFrame]:
    """The table in pieces of at most `rows` rows, for tables larger than memory."""
    path = Path(path)
    if _kind(path) == ".parquet":
        for batch in _parquet(path, rows):
            yield _frame(pa.Table.from_batches([batch]), path, types)
        return
    with _reading(path, types):
        for batch in pyarrow.csv.open_csv(_open(path), _options(), _parse(path), _convert(types)):
            for start in range(0, len(batch), rows):
                yield _frame(pa.Table.from_batches([batch.slice(start, rows)]), path, types)


def column_names(path: str | Path) -> list[str]:
    """The names of a table's columns; its rows are left alone."""
    path = Path(path)
    with _reading(path, None):
        names = pyarrow.parquet.read_schema(path).names if _kind(path) == ".parquet" else _header(path)
    if not names:
        raise ValueError(f"{path} is empty: give a table with a header line and at least one row")
    if any("\ufffd" in name for name in names):
        _refuse_bytes(path)
    _refuse_twice(path, names)
    return names


def place(path: str | Path, row: int) -> str:
    """Where row `row`, counted from 0, stands in its file: "line 2", or "row 1" where a file has no lines."""
    path = Path(path)
    return f"row {row + 1}" if _kind(path) == ".parquet" else f"line {_line(path, row + 2)}"


def as_frame(X: Any) -> pd.DataFrame | None:
    """A data frame of pandas, polars or pyarrow as one of pandas; None where X has no named columns."""
    if isinstance(X, pd.DataFrame):
        return X
    if hasattr(X, "columns") and hasattr(X, "to_pandas"):  # polars, pyarrow
        return X.to_pandas()
    return None


class _reading:
    """Turns what pyarrow says about a bad file into one sentence with line and column."""

    def __init__(self, path: Path, types: Mapping[str, str] | None):
        self.path, self.types = path, types

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (pa.ArrowException, OSError, UnicodeDecodeError)) and not isinstance(error, FileNotFoundError):
            _explain(self.path, error)


def _explain(path: Path, error: BaseException) -> NoReturn:
    if _kind(path) != ".parquet":
        _refuse_bytes(path)
    text = str(error)
    record, column = re.search(r"Row #(\d+)", text), re.search(r"column #(\d+)", text)
    line = f", line {_line(path, int(record.group(1)))}" if record else ""
    expected = re.search(r"Expected (\d+) columns, got (\d+)", text)
    value = re.search(r"invalid value '(.*)'", text)
    if "Empty CSV" in text:
        raise ValueError(f"{path} is empty: give a table with a header line and at least one row") from error
    if expected:
        raise ValueError(f"{path}{line} has {expected.group(2)} entries, the header {expected.group(1)}: mend the line") from error
    if value:
        name = _header(path)[int(column.group(1))] if column else "?"
        raise ValueError(f"{path}{line}, column {name!r} holds {value.group(1)!r}: it must be a number") from error
    reason = text.split(". ")[0]
    raise ValueError(f"{path}{line} cannot be read as a table ({reason}): check that the file is whole") from error


def _refuse_bytes(path: Path) -> None:
    """Text must be UTF-8: names the first line that is not."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    header = number == 1
                    place = 0 if header else line[: error.start].count(DELIMITERS[_kind(path)].encode())
                    where = "" if header else f", column {_header(path)[place]!r}"
                    raise ValueError(f"{path}, line {number}{where} is not UTF-8 text: save the table as UTF-8") from error
    except (OSError, EOFError) as error:
        raise ValueError(f"{path} is cut off or damaged ({error}): get the file again") from error


def _line(path: Path, record: int) -> int:
    """The line on which a record ends; blank lines and line breaks within quotes make the two differ."""
    with io.TextIOWrapper(gzip.open(path) if path.suffix == ".gz" else path.open("rb"), "utf-8", "replace", newline="") as file:  # type: ignore[arg-type]
        reader = csv.reader(file, delimiter=DELIMITERS[_kind(path)])
        for found, _ in enumerate((row for row in reader if row), 1):
            if found == record:
                return reader.line_num
    return record


def _refuse_slips(path: Path, table: pa.Table) -> None:
    """A word among numbers turns a whole column to text: say where it is instead."""
    for name in table.column_names:
        column = table[name]
        if pa.types.is_binary(column.type):
            _refuse_bytes(path)
        if not pa.types.is_string(column.type):
            continue
        values = column.to_pandas()
        here = values.notna()
        good = pd.to_numeric(values[here], errors="coerce").notna()
        if here.sum() >= 10 and ALMOST <= good.mean() < 1:
            row = int(np.flatnonzero(here)[int(np.flatnonzero(~good)[0])])
            line, share = _line(path, row + 2), int(100 * good.mean())
            raise ValueError(
                f"{path}, line {line}, column {name!r} holds {values[row]!r}, {share}% of the others are numbers: mend it or leave it empty"
            )


def _frame(table: pa.Table, path: Path, types: Mapping[str, str] | None) -> pd.DataFrame:
    names = table.column_names
    _refuse_twice(path, names)
    if len(table) == 0:
        raise ValueError(f"{path} has a header but no rows: give at least one")
    lacking = [name for name in types or () if name not in names]
    if lacking:
        raise ValueError(f"{path} has no column {lacking[0]!r}: it has {', '.join(names)}")
    return table.to_pandas()


def _refuse_twice(path: Path, names: Sequence[str]) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"{path} has two columns {twice[0]!r}: give every column its own name")


def _kind(path: Path) -> str:
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind.lower() not in (*DELIMITERS, ".parquet") or (path.suffix == ".gz" and kind == ".parquet"):
        raise ValueError(f"{path} is of no known kind: give .csv, .tsv or .parquet; csv and tsv may end in .gz")
    if not path.is_file():
        raise ValueError(f"{path} is missing or not a file: check the path")
    return kind.lower()


def _header(path: Path) -> list[str]:
    with io.TextIOWrapper(gzip.open(path) if path.suffix == ".gz" else path.open("rb"), "utf-8-sig", "replace", newline="") as file:  # type: ignore[arg-type]
        return next(csv.reader(file, delimiter=DELIMITERS[_kind(path)]), [])


def _open(path: Path) -> Any:
    return pa.input_stream(str(path), compression="gzip" if path.suffix == ".gz" else None)


def _options() -> Any:
    return pyarrow.csv.ReadOptions(use_threads=False)  # with threads, messages lose the row


def _parse(path: Path) -> Any:
    return pyarrow.csv.ParseOptions(delimiter=DELIMITERS[_kind(path)], newlines_in_values=True)


def _convert(types: Mapping[str, str] | None) -> Any:
    known = {name: TYPES[kind] for name, kind in (types or {}).items()}
    return pyarrow.csv.ConvertOptions(column_types=known, null_values=MISSING, strings_can_be_null=True, quoted_strings_can_be_null=True)


def _parquet(path: Path, rows: int) -> Iterator[pa.RecordBatch]:
    with _reading(path, None):
        yield from pyarrow.parquet.ParquetFile(path).iter_batches(rows)
