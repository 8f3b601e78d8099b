"""Answers for a table file of any length: piece by piece, in memory that does not grow, into a file that appears whole or not at all."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from compound.data.tabular import column_names
from compound.estimators.base import Estimator
from compound.estimators.rows import ask
from compound.outputs import check_writable, temporary
from compound.tables.reading import arrow_types, chunks, model_columns

KINDS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
PIECE = 8192  # rows asked about at once


class Told(NamedTuple):
    """What was done."""

    rows: int
    strange: int
    seconds: float


def predict(estimator: Estimator, source: Path, out: Path, coverage: float, only: bool, watch: Callable[[int], None]) -> Told:
    """The table with the answers beside each row's own columns, or with the answers `only`."""
    check_output(out)
    if out.exists() and out.samefile(source):
        raise ValueError(f"{out} is the table itself: choose another --out")
    begin, rows, strange = time.monotonic(), 0, 0
    own = {} if only else arrow_types(source, estimator)
    with _whole(out) as fresh, _Writer(fresh, out, own) as writer:
        for table in chunks(source, estimator):
            for start in range(0, len(table), PIECE):
                piece = table.iloc[start : start + PIECE].reset_index(drop=True)
                if rows == 0 and not only:
                    _refuse_clash(source, estimator, piece)
                found = ask(estimator, model_columns(source, piece, estimator, rows), coverage)
                writer.write(found if only else pd.concat([piece, found], axis=1))
                rows, strange = rows + len(piece), strange + int(found["is_ood"].sum())
                watch(rows)
        if rows == 0:
            raise ValueError(f"{source} has a header but no rows: give at least one")
    return Told(rows, strange, time.monotonic() - begin)


def check_output(out: Path) -> None:
    """A kind of file that can be written, in a folder that is there."""
    if not out.name.lower().endswith(KINDS):
        raise ValueError(f"{out} is of no known kind: end it in {', '.join(KINDS)}")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"{out.parent} is no folder: make it, or choose another --out")
    check_writable(out)


def _refuse_clash(source: Path, estimator: Estimator, piece: pd.DataFrame) -> None:
    """Asked of one row, before the long work."""
    new = ask(estimator, model_columns(source, piece.head(1), estimator), 0.5)
    twice = [name for name in column_names(source) if name in new]
    if twice:
        raise ValueError(f"{source} has a column {twice[0]!r} already: rename it, or leave the table's own columns out with --only")


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A temporary name that becomes `out` when all went well, and vanishes when not."""
    with temporary(out) as fresh:
        yield fresh
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(fresh, out)


class _Writer:
    """Frames one after the other into one file."""

    def __init__(self, path: Path, out: Path, own: dict[str, pa.DataType]):
        self.path, self.kind, self.own = path, out.name.lower(), own
        self.sink: Any = None
        self.writer: Any = None
        self.schema: Any = None

    def __enter__(self) -> "_Writer":
        return self

    def write(self, frame: pd.DataFrame) -> None:
        if self.writer is None:
            self._open(frame)
        self.writer.write_table(pa.Table.from_pandas(frame, self.schema, preserve_index=False))

    def _open(self, frame: pd.DataFrame) -> None:
        answers = pa.Schema.from_pandas(frame, preserve_index=False)
        self.schema = pa.schema([pa.field(field.name, self.own.get(field.name, field.type)) for field in answers])
        if self.kind.endswith(".parquet"):
            self.writer = pyarrow.parquet.ParquetWriter(self.path, self.schema)
            return
        self.sink = pa.output_stream(str(self.path), compression="gzip" if self.kind.endswith(".gz") else None)
        delimiter = "\t" if self.kind.endswith((".tsv", ".tsv.gz")) else ","
        self.writer = pyarrow.csv.CSVWriter(self.sink, self.schema, write_options=pyarrow.csv.WriteOptions(delimiter=delimiter))

    def __exit__(self, *_: Any) -> None:
        for open_file in (self.writer, self.sink):
            if open_file is not None:
                open_file.close()
