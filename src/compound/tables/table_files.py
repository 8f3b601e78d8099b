"""Table files: csv, tsv and parquet, the first two plain or gzipped, read at once or in chunks.

csv and tsv need a header line and UTF-8 text. They are read as text, which `predict` writes back unchanged;
only the columns that a model uses are parsed. Errors name the line and column.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from compound.tables.column_types import LOSSLESS_TYPES, cast_lossless, to_array
from compound.tables.csv_text import BLOCK, check_quotes, check_utf8, read_header
from compound.tables.file_errors import delimiter_of, file_format, missing_column, reading_errors
from compound.tables.frames import ColumnType, InferredTable, cast_frame, infer_frame

MAX_COLUMNS = 20_000  # of a file: each takes 15 kB to read, whatever it holds
BATCH_ROWS = 1 << 16
EXTRAPOLATION = 2  # a table is rejected if its extrapolated size exceeds the free memory by this factor
CELL_BYTES = 45  # peak memory per value, while a table is read and a model fitted


class Chunk(NamedTuple):
    """Some rows of a file."""

    table: pa.Table  # all columns as in the file: text, or the types of parquet
    frame: pd.DataFrame  # the columns that the model uses: numbers, booleans and categories


def read_table(
    path: str | Path,
    dtypes: Mapping[str, ColumnType],
    max_bytes: int | None = None,
) -> pd.DataFrame:
    """Read the columns in `dtypes` with these types: number, boolean, time, text, or a form of numbers.

    A table that needs more than `max_bytes` of memory is rejected with a ValueError while it is read.
    """
    path = Path(path)
    return cast_frame(path, _read_arrow(path, dtypes, max_bytes), dtypes, 0)


def infer_table(
    path: str | Path, columns: Collection[str] | None = None, max_bytes: int | None = None
) -> InferredTable:
    """Read `columns` of a table, all by default, and infer their types; `max_bytes` as in `read_table`."""
    path = Path(path)
    return infer_frame(path, _read_arrow(path, columns, max_bytes))


def _read_arrow(path: Path, columns: Collection[str] | None, max_bytes: int | None) -> pa.Table:
    """The rows of some columns, all by default, as they are in the file."""
    names = column_names(path)
    _check_present(path, columns or (), names)
    selected = set(names if columns is None else columns)
    names_read = [name for name in names if name in selected]
    batches: list[pa.Table] = []
    rows = 0
    table_bytes = 0
    for batch, fraction in read_batches(path, names, names_read, BATCH_ROWS):
        batches.append(batch.select(names_read))
        rows += len(batch)
        table_bytes += batches[-1].nbytes
        if max_bytes is not None:
            needed = rows * len(names_read) * CELL_BYTES + table_bytes
            _check_memory(path, needed, max_bytes, rows, len(names_read), fraction)
    _check_not_empty(path, rows)
    return pa.concat_tables(batches)


def read_chunks(
    path: str | Path,
    dtypes: Mapping[str, ColumnType],
    rows: int = BATCH_ROWS,
    all_columns: bool = True,
) -> Iterator[Chunk]:
    """Read a table larger than memory in chunks of at most `rows` rows; `dtypes` is as in `read_table`.

    Without `all_columns`, those that are not in `dtypes` are not read.
    """
    path = Path(path)
    names = column_names(path)
    _check_present(path, dtypes, names)
    n_read = 0
    for batch, _ in read_batches(path, names, names if all_columns else [*dtypes], rows):
        for start in range(0, len(batch), rows):
            part = batch.slice(start, rows)
            yield Chunk(part, cast_frame(path, part, dtypes, n_read))
            n_read += len(part)
    _check_not_empty(path, n_read)


def lossless_types(path: str | Path) -> dict[str, pa.DataType]:
    """For each column of a csv file the type that keeps all information: int64, float64, bool or string.

    Reads the whole file.
    """
    path = Path(path)
    names = column_names(path)
    candidates = dict.fromkeys(names, LOSSLESS_TYPES)
    non_empty = set()
    for batch, _ in read_batches(path, names, names, BATCH_ROWS):
        for name, dtypes in candidates.items():
            column = to_array(batch[name])
            candidates[name] = tuple(dtype for dtype in dtypes if cast_lossless(column, dtype) is not None)
            if name not in non_empty and pc.any(pc.not_equal(column, "")).as_py():
                non_empty.add(name)
    return {
        name: dtypes[0] if dtypes and name in non_empty else pa.string()
        for name, dtypes in candidates.items()
    }


def column_names(path: str | Path) -> list[str]:
    """The column names of a table, unique and not empty, without reading its rows."""
    path = Path(path)
    suffix = file_format(path)
    with reading_errors(path):
        if suffix == ".parquet":
            names = pyarrow.parquet.read_schema(path).names
        else:
            names = read_header(path, delimiter_of(path))
    if not names:
        raise ValueError(f"{path} is empty: give a table with a header line and at least one row")
    if len(names) > MAX_COLUMNS:
        raise ValueError(
            f"{path} has {len(names):,} columns, at most {MAX_COLUMNS:,} can be read: remove some"
        )
    if any(not name.isprintable() and re.search("[\udc80-\udcff]", name) for name in names):
        check_utf8(path, delimiter_of(path))
    duplicates = [name for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise ValueError(f"{path} has two columns {duplicates[0]!r}: give every column a unique name")
    return names


def read_batches(
    path: Path, names: Sequence[str], names_read: Collection[str], rows: int
) -> Iterator[tuple[pa.Table, float]]:
    """Batches in file order, each with the fraction of the file read so far (0 to 1).

    `names` are all columns of the file, `names_read` those needed. Batches of parquet have at most `rows`
    rows; those of csv and tsv have about BLOCK bytes.
    """
    with reading_errors(path):
        if file_format(path) == ".parquet":
            file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
            n_read = 0
            for batch in file.iter_batches(rows, columns=list(names_read)):
                n_read += len(batch)
                yield pa.Table.from_batches([batch]), n_read / file.metadata.num_rows
            return
        with pa.OSFile(str(path)) as raw:
            for table in _read_csv(path, raw, names, names_read):
                yield table, raw.tell() / raw.size()


def _read_csv(path: Path, raw: Any, names: Sequence[str], names_read: Collection[str]) -> Iterator[pa.Table]:
    """Batches of the csv or tsv file `raw`, open at `path`: text, or bytes if not in `names_read`."""
    delimiter = delimiter_of(path)
    dtypes = {name: pa.string() if name in names_read else pa.binary() for name in names}
    reader = pyarrow.csv.open_csv(
        pa.CompressedInputStream(raw, "gzip") if path.suffix == ".gz" else raw,
        pyarrow.csv.ReadOptions(
            use_threads=False, block_size=BLOCK
        ),  # threads lose the row in error messages
        pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        pyarrow.csv.ConvertOptions(column_types=dtypes, null_values=[], strings_can_be_null=False),
    )
    quotes_checked = False
    for batch in reader:
        if not quotes_checked and any(_has_line_break(column) for column in batch.columns):
            check_quotes(path, delimiter)
            quotes_checked = True
        yield pa.Table.from_batches([batch])


def _has_line_break(column: pa.Array) -> bool:
    return any(bool(pc.any(pc.match_substring(column, sign)).as_py()) for sign in ("\n", "\r"))


def _check_present(path: Path, columns: Collection[str], names: Sequence[str]) -> None:
    """Raise ValueError if one of `columns` is not among `names`, the columns of the file."""
    present = set(names)
    for name in columns:
        if name not in present:
            raise missing_column(path, name, names)


def _check_not_empty(path: Path, rows: int) -> None:
    if rows == 0:
        raise ValueError(f"{path} has a header but no rows: give at least one")


def _check_memory(
    path: Path, required: int, max_bytes: int, rows: int, columns: int, fraction: float
) -> None:
    """Raise ValueError if the rows read so far exceed `max_bytes`, or the extrapolated table does by far.

    `required` bytes are for `rows` rows of `columns` columns, which are a `fraction` of the file.
    """
    total = required / fraction
    if required > max_bytes or total > EXTRAPOLATION * max_bytes:
        raise ValueError(
            f"{path} holds about {rows / fraction:,.0f} rows of {columns:,} columns, "
            f"which take {total / 1e9:.1f} GB, {max_bytes / 1e9:.1f} GB are free: "
            "give a sample of the rows, or fewer columns"
        )
