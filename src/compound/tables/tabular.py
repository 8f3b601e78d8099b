"""Tables from files: csv, tsv and parquet, plain or .gz, whole or in pieces.

Whatever is wrong with a file is said in one sentence with its line and column. A header line is needed; text is UTF-8.
csv and tsv are read as text, and text is what is kept of them; numbers are made from it for those columns that somebody needs.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from compound.estimators.encoder import Encoder as Encoder
from compound.tables import columns as convert
from compound.tables.lines import BLOCK, header, line_of, refuse_bytes, refuse_strays

DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
WIDEST = 20_000  # columns of a file: each takes 15 kB to read, whatever is in it
LISTED = 10  # names in a message
CERTAIN = 2  # times what is free: beyond, a guess from the first blocks will do
CELL = 45  # bytes of a value on its way from text to a fit


class Piece(NamedTuple):
    """Some rows of a file."""

    own: pa.Table  # every column as it is in the file: text, or what parquet says
    frame: pd.DataFrame  # the columns that were asked for, as numbers, truth values and words


def read_table(
    path: str | Path,
    types: Mapping[str, str] | None = None,
    columns: Collection[str] | None = None,
    room: int | None = None,
) -> pd.DataFrame:
    """The whole table, or those `columns` of it.

    `types` (number, boolean, text by column, as `Encoder.types` gives) leaves nothing to guess. A table that would need more than
    `room` bytes is refused as soon as that shows.
    """
    path = Path(path)
    names = column_names(path)
    _refuse_lacking(path, types or (), names)
    chosen = set(types if types is not None else names if columns is None else columns)
    wanted, tables, rows, size = [name for name in names if name in chosen], [], 0, 0
    for table, share in _tables(path, names, wanted, 1 << 16):
        tables.append(table.select(wanted))
        rows, size = rows + len(table), size + tables[-1].nbytes
        needed = rows * len(wanted) * CELL + size
        if room is not None and (needed > room or needed / share > CERTAIN * room):
            raise ValueError(
                f"{path} holds about {rows / share:,.0f} rows of {len(wanted):,} columns, which take {needed / share / 1e9:.1f} GB, "
                f"{room / 1e9:.1f} GB are free: give a sample of the rows, or fewer columns"
            )
    _refuse_empty(path, rows)
    whole = pa.concat_tables(tables)
    return _guessed(path, whole) if types is None else _typed(path, whole, types, 0)


def read_chunks(path: str | Path, types: Mapping[str, str], rows: int = 65_536) -> Iterator[Piece]:
    """The table in pieces of at most `rows` rows, for tables larger than memory."""
    path = Path(path)
    names, done = column_names(path), 0
    _refuse_lacking(path, types, names)
    for table, _ in _tables(path, names, names, rows):
        for start in range(0, len(table), rows):
            part = table.slice(start, rows)
            yield Piece(part, _typed(path, part, types, done))
            done += len(part)
    _refuse_empty(path, done)


def exact_types(path: str | Path) -> dict[str, pa.DataType]:
    """What the columns of a csv file can be kept as without loss: whole numbers, numbers, truth values, else text. Reads all of it."""
    path = Path(path)
    names = column_names(path)
    left, filled = dict.fromkeys(names, convert.EXACT), set()
    for table, _ in _tables(path, names, names, 1 << 16):
        for name, kinds in left.items():
            column = convert.flat(table[name])
            left[name] = tuple(kind for kind in kinds if convert.exactly(column, kind) is not None)
            if name not in filled and pc.any(pc.not_equal(column, "")).as_py():
                filled.add(name)
    return {name: kinds[0] if kinds and name in filled else pa.string() for name, kinds in left.items()}


def column_names(path: str | Path) -> list[str]:
    """The names of a table's columns; its rows are left alone."""
    path = Path(path)
    kind = _kind(path)
    with _reading(path):
        names = (
            pyarrow.parquet.read_schema(path).names if kind == ".parquet" else header(path, DELIMITERS[kind])
        )
    if not names:
        raise ValueError(f"{path} is empty: give a table with a header line and at least one row")
    if len(names) > WIDEST:
        raise ValueError(
            f"{path} has {len(names):,} columns, at most {WIDEST:,} can be read: leave out those that say nothing"
        )
    if any(not name.isprintable() and re.search("[\udc80-\udcff]", name) for name in names):
        refuse_bytes(path, DELIMITERS[kind])
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{path} has two columns {twice[0]!r}: give every column its own name")
    return names


def no_column(path: Path, name: str, names: Sequence[str], role: str = "") -> ValueError:
    """What to say where a column is missing."""
    other = (
        next((sign for sign in (";", "\t", "|", ",") if sign in names[0]), None) if len(names) == 1 else None
    )
    if other:
        return ValueError(
            f"{path} has no column {name!r}{role}, its values seem to be separated by {other!r}: save it with commas (.csv) or tabs (.tsv)"
        )
    return ValueError(f"{path} has no column {name!r}{role}: it has {listed(names)}")


def listed(names: Sequence[Any]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - LISTED
    return ", ".join(map(str, names[:LISTED])) + (f" and {more:,} more" if more > 0 else "")


def file_location(path: str | Path, row: int) -> str:
    """Where row `row`, counted from 0, stands in its file: "line 2", or "row 1" where a file has no lines."""
    path = Path(path)
    kind = _kind(path)
    return f"row {row + 1}" if kind == ".parquet" else f"line {line_of(path, DELIMITERS[kind], row + 2)}"


def _tables(
    path: Path, names: Sequence[str], wanted: Collection[str], rows: int
) -> Iterator[tuple[pa.Table, float]]:
    """The file from top to bottom, a block at a time, and how much of it has been read by then (0 to 1)."""
    kind = _kind(path)
    with _reading(path):
        if kind == ".parquet":
            file, done = pyarrow.parquet.ParquetFile(path), 0
            for batch in file.iter_batches(rows, columns=list(wanted)):
                done += len(batch)
                yield pa.Table.from_batches([batch]), done / file.metadata.num_rows
            return
        with pa.OSFile(str(path)) as raw:
            yield from ((batch, raw.tell() / raw.size()) for batch in _texts(path, raw, names, wanted))


def _texts(path: Path, raw: Any, names: Sequence[str], wanted: Collection[str]) -> Iterator[pa.Table]:
    """A csv or tsv file as text."""
    delimiter, looked = DELIMITERS[_kind(path)], False
    known = {
        name: pa.string() if name in wanted else pa.binary() for name in names
    }  # others may be of any encoding
    reader = pyarrow.csv.open_csv(
        pa.CompressedInputStream(raw, "gzip") if path.suffix == ".gz" else raw,
        pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK),  # with threads, messages lose the row
        pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        pyarrow.csv.ConvertOptions(column_types=known, null_values=[], strings_can_be_null=False),
    )
    for batch in reader:
        if not looked and any(_breaks(column) for column in batch.columns):
            refuse_strays(path, delimiter)
            looked = True
        yield pa.Table.from_batches([batch])


def _breaks(column: pa.Array) -> bool:
    """Whether a value has a line break in it."""
    return any(bool(pc.any(pc.match_substring(column, sign)).as_py()) for sign in ("\n", "\r"))


def _typed(path: Path, table: pa.Table, types: Mapping[str, str], before: int) -> pd.DataFrame:
    """Columns as they were learnt from; `before` rows of the file come before the first of `table`."""
    out = {}
    for name, kind in types.items():
        column = convert.flat(table[name])
        if convert.is_time(column.type):
            out[name] = column.to_pandas()
        elif not convert.is_simple(column.type):
            raise ValueError(
                f"{path}, column {name!r} holds {column.type}: a {kind} per row was learnt from there, give the same"
            )
        elif kind == "text":
            out[name] = convert.words(column, gaps=_kind(path) != ".parquet")
        else:
            found = convert.parsed(column)
            if found.wrong.any():
                row = int(found.wrong.argmax())
                raise ValueError(
                    f"{path}, {file_location(path, before + row)}, column {name!r} holds {column[row].as_py()!r}: it must be a number"
                )
            out[name] = convert.numbers(found, kind == "boolean")
    return pd.DataFrame(out)


def _guessed(path: Path, table: pa.Table) -> pd.DataFrame:
    """Columns as what they seem to be (csv) or are said to be (parquet)."""
    out = {}
    for name in table.column_names:
        column = convert.flat(table[name])
        text = convert.is_text(column.type)
        if convert.is_time(column.type) or (text and _kind(path) != ".parquet" and convert.is_clock(column)):
            raise ValueError(
                f"{path}, column {name!r} holds times: write them as numbers, such as days, or leave it out with --drop"
            )
        if not convert.is_simple(column.type):
            raise ValueError(
                f"{path}, column {name!r} holds {column.type}, not a number or word per row: leave it out with --drop"
            )
        if pa.types.is_decimal(column.type) or pa.types.is_null(column.type):
            column = column.cast(pa.float64())
        if not text or _kind(path) == ".parquet":
            out[name] = column.to_pandas()
            continue
        found = convert.parsed(column)
        seems = convert.guessed(column, found)
        if seems is None and (slip := convert.slip(found)):
            row, share = slip
            where, value = file_location(path, row), column[row].as_py()
            raise ValueError(
                f"{path}, {where}, column {name!r} holds {value!r}, {share}% of the others are numbers: fix it or leave it empty"
            )
        out[name] = convert.words(column, gaps=True) if seems is None else seems
    return pd.DataFrame(out)


class _reading:
    """Turns what pyarrow says about a bad file into one sentence with line and column."""

    def __init__(self, path: Path):
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (pa.ArrowException, OSError, UnicodeDecodeError)) and not isinstance(
            error, FileNotFoundError
        ):
            _explain(self.path, error)


def _explain(path: Path, error: BaseException) -> NoReturn:
    text, kind = str(error), _kind(path)
    record, expected = re.search(r"Row #(\d+)", text), re.search(r"Expected (\d+) columns, got (\d+)", text)
    reason = text.split(". ")[0].replace("\n", " ")
    line = ""
    if isinstance(error, OSError):
        raise ValueError(f"{path} is cut off or damaged ({reason}): get the file again") from error
    if "Empty CSV" in text:
        raise ValueError(f"{path} is empty: give a table with a header line and at least one row") from error
    if kind != ".parquet":
        if "UTF8" in text:
            refuse_bytes(path, DELIMITERS[kind])
        refuse_strays(path, DELIMITERS[kind], int(record.group(1)) if record else None)
        line = f", line {line_of(path, DELIMITERS[kind], int(record.group(1)))}" if record else ""
    if expected:
        raise ValueError(
            f"{path}{line} has {expected.group(2)} entries, the header {expected.group(1)}: fix the line"
        ) from error
    if "straddling" in text:
        raise ValueError(
            f"{path} has a row of more than {BLOCK:,} bytes: check that it is a table with a row per line"
        ) from error
    raise ValueError(
        f"{path}{line} cannot be read as a table ({reason}): check that the file is whole"
    ) from error


def _refuse_lacking(path: Path, wanted: Collection[str], names: Sequence[str]) -> None:
    there = set(names)
    for name in wanted:
        if name not in there:
            raise no_column(path, name, names)


def _refuse_empty(path: Path, rows: int) -> None:
    if rows == 0:
        raise ValueError(f"{path} has a header but no rows: give at least one")


def _kind(path: Path) -> str:
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind.lower() not in (*DELIMITERS, ".parquet") or (path.suffix == ".gz" and kind == ".parquet"):
        raise ValueError(
            f"{path} is of no known kind: give .csv, .tsv or .parquet; csv and tsv may end in .gz"
        )
    if not path.is_file():
        raise ValueError(f"{path} is missing or not a file: check the path")
    return kind.lower()
