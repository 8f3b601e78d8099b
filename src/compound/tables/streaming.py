"""Answers for a table file of any length: piece by piece, in memory that does not grow, into a file that appears whole or not at all."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from compound.estimators.base import Estimator
from compound.estimators.row_predictions import predict_frame
from compound.io.paths import check_writable
from compound.io.temporary import temporary
from compound.tables.reading import chunks
from compound.tables.tabular import column_names
from compound.tables.writing import Writer

KINDS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
PIECE = 8192  # rows asked about at once


class PredictSummary(NamedTuple):
    """What was done."""

    rows: int
    n_ood: int
    seconds: float


def predict(
    estimator: Estimator,
    source: Path,
    out: Path,
    coverage: float,
    only: bool,
    callback: Callable[[int], None],
) -> PredictSummary:
    """The table with the answers beside each row's own columns, or with the answers `only`."""
    check_output(out)
    if out.exists() and out.samefile(source):
        raise ValueError(f"{out} is the table itself: choose another --out")
    begin, rows, strange = time.monotonic(), 0, 0
    with _whole(out) as fresh, Writer(fresh, out, source, only) as writer:
        for piece in chunks(source, estimator, PIECE):
            if rows == 0 and not only:
                _refuse_clash(source, estimator, piece.frame)
            found = predict_frame(estimator, piece.frame, coverage)
            writer.write(piece.own, found)
            rows, strange = rows + len(found), strange + int(found["is_ood"].sum())
            callback(rows)
    return PredictSummary(rows, strange, time.monotonic() - begin)


def check_output(out: Path) -> None:
    """A kind of file that can be written, in a folder that is there."""
    if not out.name.lower().endswith(KINDS):
        raise ValueError(f"{out} is of no known kind: end it in {', '.join(KINDS)}")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"{out.parent} is no folder: make it, or choose another --out")
    check_writable(out)


def _refuse_clash(source: Path, estimator: Estimator, piece: pd.DataFrame) -> None:
    """Asked of one row, before the long work."""
    new = predict_frame(estimator, piece.head(1), 0.5)
    twice = [name for name in column_names(source) if name in new.columns]
    if twice:
        raise ValueError(
            f"{source} has a column {twice[0]!r} already: rename it, or leave the table's own columns out with --only"
        )


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A temporary name that becomes `out` when all went well, and vanishes when not."""
    with temporary(out) as fresh:
        yield fresh
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(fresh, out)
