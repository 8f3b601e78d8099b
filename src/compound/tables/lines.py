"""The text of csv and tsv files line by line: no more than a block is ever held, whatever a file unpacks to."""

import csv
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

BLOCK = 1 << 20  # letters of a line, a header, a row
_BAD_BYTE = re.compile("[\udc80-\udcff]")  # how `surrogateescape` spells a byte that is no UTF-8
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def lines(path: Path) -> Iterator[str]:
    """Line ends included; bytes that are no UTF-8 come as lone surrogates."""
    packed = path.suffix == ".gz"
    try:
        with io.TextIOWrapper(
            gzip.open(path) if packed else path.open("rb"), "utf-8-sig", "surrogateescape", newline=""
        ) as file:  # type: ignore[arg-type]
            number = 0
            while line := file.readline(BLOCK + 1):
                number += 1
                if len(line) > BLOCK:
                    raise ValueError(
                        f"{path}, line {number} is longer than {BLOCK:,} letters: check that this is a table with a row per line"
                    )
                yield line
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} is cut off or damaged ({error}): get the file again") from error


def header(path: Path, delimiter: str) -> list[str]:
    """The names in the first line that is not blank; an empty file has none."""
    size = 0

    def some() -> Iterator[str]:
        nonlocal size
        for line in lines(path):
            size += len(line)
            if size > BLOCK:
                raise ValueError(f"{path} has no header in its first {BLOCK:,} letters: check its quotes")
            yield line

    try:
        return next((row for row in csv.reader(some(), delimiter=delimiter) if row), [])
    except csv.Error as error:
        raise ValueError(f"{path} has no header that can be read ({error}): check its quotes") from error


def line_of(path: Path, delimiter: str, record: int) -> int:
    """The line on which a record ends; blank lines and line breaks within quotes make the two differ."""
    reader = csv.reader(lines(path), delimiter=delimiter)
    try:
        for found, _ in enumerate((row for row in reader if row), 1):
            if found == record:
                return reader.line_num
    except csv.Error:  # a value beyond the module's limit of 131,072 letters
        pass
    return record


def refuse_bytes(path: Path, delimiter: str) -> None:
    """Text must be UTF-8: names the first line that is not."""
    for number, line in enumerate(lines(path), 1):
        if bad := _BAD_BYTE.search(line):
            names = [] if number == 1 else header(path, delimiter)
            place = line[: bad.start()].count(delimiter)
            where = f", column {names[place]!r}" if place < len(names) else ""
            raise ValueError(f"{path}, line {number}{where} is not UTF-8 text: save the table as UTF-8")


def refuse_strays(path: Path, delimiter: str, upto: int | None = None) -> None:
    """A quote that somebody forgot swallows the rows up to the next one: for files in which a value has a line break.

    Refused: a quote that is never closed, text after a closing one, and a value over several lines each of which is a row by itself.
    Looked at: the first `upto` records, or all.
    """
    mine: list[str] = []  # the lines of one record
    size = 0

    def watched() -> Iterator[str]:
        nonlocal size
        for line in lines(path):
            mine.append(line)
            size += len(line)
            if size > 2 * BLOCK:  # more than any row that can be read
                raise csv.Error(f"a row of more than {size:,} letters")
            yield line

    reader, start, columns = csv.reader(watched(), delimiter=delimiter, strict=True), 1, 0
    advice = "remove the quote, or write it twice within quotes"
    try:
        for row in itertools.islice(reader, upto):
            columns = columns or len(row)
            if len(mine) > 1 and columns > 1 and _rows_by_themselves(mine, delimiter, columns):
                raise ValueError(
                    f"{path}, line {start} opens a quote that swallows rows up to line {start + len(mine) - 1}, "
                    f"each of which is whole without it: {advice}"
                )
            start += len(mine)
            mine.clear()
            size = 0
    except csv.Error as error:
        raise ValueError(f'{path}, line {start} has a stray " in it ({error}): {advice}') from error


def _rows_by_themselves(several: list[str], delimiter: str, columns: int) -> bool:
    """Whether each line has an entry for every column, with numbers where the others have numbers."""
    split = [[entry.strip().strip('"') for entry in line.rstrip("\r\n").split(delimiter)] for line in several]
    if any(len(entries) != columns for entries in split):
        return False
    kinds = [
        {bool(_NUMBER.fullmatch(entry)) for entry in column if entry} for column in zip(*split, strict=True)
    ]
    return all(len(kind) < 2 for kind in kinds)
