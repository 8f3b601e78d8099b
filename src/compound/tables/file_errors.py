"""Formats of table files, positions in them, and error messages that name the file, line and column."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from compound.tables.csv_text import BLOCK, check_quotes, check_utf8, line_number, read_header

DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
MAX_NAMES = 10  # listed in a message


def file_format(path: Path) -> str:
    """The suffix of the format, without .gz; ValueError if it is unknown or the file is missing."""
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix.lower() not in (*DELIMITERS, ".parquet") or (path.suffix == ".gz" and suffix == ".parquet"):
        raise ValueError(
            f"{path} has an unknown format: give .csv, .tsv or .parquet; csv and tsv may end in .gz"
        )
    if not path.is_file():
        raise ValueError(f"{path} is missing or not a file: check the path")
    return suffix.lower()


def delimiter_of(path: Path) -> str:
    """What separates the columns of a csv or tsv file, "" for parquet.

    It is a semicolon where the header of a .csv file has semicolons, but no comma outside of quotes.
    """
    delimiter = DELIMITERS.get(file_format(path), "")
    if delimiter == "," and len(header := read_header(path, ",")) == 1 and ";" in header[0]:
        return ";"
    return delimiter


def file_location(path: str | Path, row: int) -> str:
    """Position of row `row`, counted from 0, for a message: "line 2", or "row 1" of a parquet file."""
    path = Path(path)
    delimiter = delimiter_of(path)
    return f"line {line_number(path, delimiter, row + 2)}" if delimiter else f"row {row + 1}"


def join_names(names: Sequence[Any]) -> str:
    """The first MAX_NAMES names, and how many more there are."""
    n_more = len(names) - MAX_NAMES
    return ", ".join(map(str, names[:MAX_NAMES])) + (f" and {n_more:,} more" if n_more > 0 else "")


def missing_column(path: Path, name: str, names: Sequence[str], role: str = "") -> ValueError:
    """The error for a column `name` that is not among `names`; `role` follows it in the message.

    The message has a hint where the delimiter seems wrong.
    """
    delimiters = [sign for sign in (";", "\t", "|", ",") if sign in names[0]] if len(names) == 1 else []
    if delimiters:
        return ValueError(
            f"{path} has no column {name!r}{role}, its values seem to be separated by {delimiters[0]!r}: "
            "save it with commas (.csv) or tabs (.tsv)"
        )
    return ValueError(f"{path} has no column {name!r}{role}: it has {join_names(names)}")


@contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Context in which an error of pyarrow about a damaged file becomes a ValueError that names the line."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        _raise_value_error(path, error)


def _raise_value_error(path: Path, error: BaseException) -> NoReturn:
    """Raise a ValueError that says what is wrong with the file, and where, from pyarrow's error."""
    message = str(error)
    reason = message.split(". ")[0].replace("\n", " ")
    if isinstance(error, OSError):
        raise ValueError(f"{path} is truncated or damaged ({reason}): get the file again") from error
    if "Empty CSV" in message:
        raise ValueError(f"{path} is empty: give a table with a header line and at least one row") from error
    line = _check_csv(path, message)
    if expected := re.search(r"Expected (\d+) columns, got (\d+)", message):
        raise ValueError(
            f"{path}{line} has {expected[2]} entries, the header {expected[1]}: fix the line"
        ) from error
    if "straddling" in message:
        raise ValueError(
            f"{path} has a row of more than {BLOCK:,} bytes: check that it is a table with one row per line"
        ) from error
    raise ValueError(
        f"{path}{line} cannot be read as a table ({reason}): check that the file is complete"
    ) from error


def _check_csv(path: Path, message: str) -> str:
    """Check encoding and quotes of a csv file; returns ", line N" if `message` of pyarrow names a row."""
    delimiter = delimiter_of(path)
    if not delimiter:
        return ""
    if "UTF8" in message:
        check_utf8(path, delimiter)
    match = re.search(r"Row #(\d+)", message)
    record = int(match[1]) if match else None
    check_quotes(path, delimiter, record)
    return f", line {line_number(path, delimiter, record)}" if record is not None else ""
