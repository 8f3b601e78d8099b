"""Predictions for table files of any length: in chunks, in constant memory, written atomically.

While one chunk is predicted, a thread reads the next one and another writes the one before.
"""

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
from compound.tables.model_inputs import read_feature_chunks
from compound.tables.overlap import read_ahead, write_behind
from compound.tables.table_files import column_names
from compound.tables.table_writer import TableWriter

FORMATS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
CHUNK_ROWS = 8192


class PredictSummary(NamedTuple):
    """Number of rows predicted, how many of them are flagged as OOD, and the time taken."""

    rows: int
    n_ood: int
    seconds: float


def predict_file(
    estimator: Estimator,
    source: Path,
    out: Path,
    coverage: float,
    predictions_only: bool,
    callback: Callable[[int], None],
) -> PredictSummary:
    """Write `source` to `out` with predictions appended, or the predictions only.

    `coverage` is that of the intervals or sets. `callback` receives the number of rows done.
    """
    check_output(out)
    if out.exists() and out.samefile(source):
        raise ValueError(f"{out} is the input table itself: choose another --out")
    start = time.monotonic()
    rows = 0
    n_ood = 0
    chunks = read_feature_chunks(source, estimator, CHUNK_ROWS, not predictions_only)
    with (
        _atomic_output(out) as path,
        TableWriter(path, out, source, predictions_only) as writer,
        write_behind(writer.write) as write,
        read_ahead(chunks) as chunks_ahead,
    ):
        for chunk in chunks_ahead:
            if rows == 0 and not predictions_only:
                _check_name_clash(source, estimator, chunk.frame)
            predictions = predict_frame(estimator, chunk.frame, coverage)
            write(chunk.table, predictions)
            rows += len(predictions)
            n_ood += int(predictions["is_ood"].sum())
            callback(rows)
    return PredictSummary(rows, n_ood, time.monotonic() - start)


def check_output(out: Path) -> None:
    """Raise ValueError, before any work, if `out` has an unknown format or cannot be written."""
    if not out.name.lower().endswith(FORMATS):
        raise ValueError(f"{out} has an unknown format: end it in {', '.join(FORMATS)}")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"{out.parent} is not a folder: create it, or choose another --out")
    check_writable(out)


def _check_name_clash(source: Path, estimator: Estimator, frame: pd.DataFrame) -> None:
    """Raise ValueError if a source column has the name of a prediction column (known from one row)."""
    new_names = predict_frame(estimator, frame.head(1), 0.5).columns
    clashes = [name for name in column_names(source) if name in new_names]
    if clashes:
        raise ValueError(
            f"{source} has a column {clashes[0]!r} already: "
            "rename it, or leave the table's columns out with --only"
        )


@contextmanager
def _atomic_output(out: Path) -> Iterator[Path]:
    """Context with a temporary file, which replaces `out` on success and is removed on failure."""
    with temporary(out) as path:
        yield path
        with path.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(path, out)
