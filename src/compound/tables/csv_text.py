"""Text of csv and tsv files, plain or gzipped, read line by line in bounded memory: header, UTF-8, quotes."""

import csv
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

BLOCK = 1 << 20  # characters: the longest line, header or row
_INVALID_BYTE = re.compile("[\udc80-\udcff]")  # how `surrogateescape` decodes a byte that is not UTF-8
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a file, with their line ends; bytes that are not UTF-8 become lone surrogates."""
    open_file = gzip.open if path.suffix == ".gz" else open
    try:
        with io.TextIOWrapper(open_file(path, "rb"), "utf-8-sig", "surrogateescape", newline="") as file:
            number = 0
            while line := file.readline(BLOCK + 1):
                number += 1
                if len(line) > BLOCK:
                    raise ValueError(
                        f"{path}, line {number} is longer than {BLOCK:,} characters: "
                        "check that this is a table with one row per line"
                    )
                yield line
    except FileNotFoundError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is truncated or damaged ({error}): get the file again") from error


def read_header(path: Path, delimiter: str) -> list[str]:
    """Column names from the first line that is not blank; [] for an empty file."""
    size = 0

    def limited_lines() -> Iterator[str]:
        nonlocal size
        for line in read_lines(path):
            size += len(line)
            if size > BLOCK:
                raise ValueError(f"{path} has no header in its first {BLOCK:,} characters: check its quotes")
            yield line

    try:
        return next((row for row in csv.reader(limited_lines(), delimiter=delimiter) if row), [])
    except csv.Error as error:
        raise ValueError(f"{path} has an unreadable header ({error}): check its quotes") from error


def line_number(path: Path, delimiter: str, record: int) -> int:
    """The line, from 1, on which a record ends; `record` counts from 1, the header, without blank lines.

    Lines and records differ where there are blank lines or line breaks in quotes.
    """
    reader = csv.reader(read_lines(path), delimiter=delimiter)
    try:
        for number, _ in enumerate((row for row in reader if row), 1):
            if number == record:
                return reader.line_num
    except csv.Error:  # a value beyond the csv module's limit of 131,072 characters
        pass
    return record


def check_utf8(path: Path, delimiter: str) -> None:
    """Raise ValueError with the first line and column that are not UTF-8, if any."""
    for number, line in enumerate(read_lines(path), 1):
        if invalid := _INVALID_BYTE.search(line):
            names = [] if number == 1 else read_header(path, delimiter)
            index = line[: invalid.start()].count(delimiter)
            column = f", column {names[index]!r}" if index < len(names) else ""
            raise ValueError(f"{path}, line {number}{column} is not UTF-8 text: save the table as UTF-8")


def check_quotes(path: Path, delimiter: str, n_records: int | None = None) -> None:
    """Raise ValueError at a stray quote, which would merge the rows up to the next quote into one value.

    Only needed for files with a line break inside a value. Rejected are a quote that is never closed, text
    after a closing quote, and a value over several lines each of which is a complete row. Reads the first
    `n_records` records, or all.
    """
    record: list[str] = []  # lines of the current record
    size = 0

    def recorded_lines() -> Iterator[str]:
        nonlocal size
        for line in read_lines(path):
            record.append(line)
            size += len(line)
            if size > 2 * BLOCK:  # longer than any readable row
                raise csv.Error(f"a row of more than {size:,} characters")
            yield line

    reader = csv.reader(recorded_lines(), delimiter=delimiter, strict=True)
    start = 1
    n_columns = 0
    advice = "remove the quote, or double it inside a quoted value"
    try:
        for row in itertools.islice(reader, n_records):
            n_columns = n_columns or len(row)
            if len(record) > 1 and n_columns > 1 and _are_complete_rows(record, delimiter, n_columns):
                raise ValueError(
                    f"{path}, line {start} opens a quote that spans rows up to line "
                    f"{start + len(record) - 1}, each of which is complete without it: {advice}"
                )
            start += len(record)
            record.clear()
            size = 0
    except csv.Error as error:
        raise ValueError(f'{path}, line {start} has a stray " in it ({error}): {advice}') from error


def _are_complete_rows(lines: list[str], delimiter: str, n_columns: int) -> bool:
    """Whether, without quotes, each line has `n_columns` entries, and each column only numbers or text."""
    split = [[entry.strip().strip('"') for entry in line.rstrip("\r\n").split(delimiter)] for line in lines]
    if any(len(entries) != n_columns for entries in split):
        return False
    columns = zip(*split, strict=True)
    kinds = [{bool(_NUMBER.fullmatch(entry)) for entry in column if entry} for column in columns]
    return all(len(kind) < 2 for kind in kinds)
