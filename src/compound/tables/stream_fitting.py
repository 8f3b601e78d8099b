"""`compound fit` for tables larger than memory: one pass for the encoder, then mini-batches from the files.

The first pass adds up the columns (`streamed_columns`), and keeps three small samples of rows: of training
rows, for what a method fits before and after training; of rows that all members hold out, to calibrate; and
of test rows. Which row is for what follows from its number (`row_split`).
"""

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet
import torch
from numpy.typing import NDArray
from pandas.api import types
from torch import Tensor

from compound.estimators import memory
from compound.estimators.base import Estimator
from compound.estimators.columns import is_boolean, is_categorical
from compound.estimators.row_predictions import RowCallback, no_progress, score_frame
from compound.estimators.streamed import (
    StreamedTable,
    TargetStatistics,
    check_streamable,
    encode_y,
    fit_seed,
    fit_streamed,
)
from compound.estimators.streamed_columns import ColumnStatistics, column_statistics
from compound.io.paths import check_writable
from compound.random import derive_seed, named_generator
from compound.tables.csv_text import read_lines
from compound.tables.file_errors import file_format, reading_errors
from compound.tables.fitting import (
    FitRequest,
    FitResult,
    check_fraction,
    fit_table,
    make_estimator,
    request_method,
)
from compound.tables.frames import ColumnType, infer_frame
from compound.tables.id_columns import id_columns
from compound.tables.importance import column_effects
from compound.tables.model_inputs import LabelledTable, check_columns, infer_task
from compound.tables.parquet_rows import Block, ParquetRows, read_in_order
from compound.tables.prediction_metrics import LEVELS, prediction_metrics
from compound.tables.roles import Roles
from compound.tables.row_split import RowSplit, uniform
from compound.tables.row_stream import RowStream, check_target, read_frame
from compound.tables.table_files import CELL_BYTES, column_names
from compound.tables.text_to_parquet import convert, text_bytes
from compound.train.config import TrainConfig
from compound.train.processes import Processes
from compound.types import Batch, Task

Array = NDArray[Any]
SAMPLE = 40_000  # rows in memory that stand for the table
CALIBRATION = 6_000  # rows in memory that all members hold out
TEST = 20_000  # test rows that are evaluated
MIN_ROWS = 1000
MEMORY_FRACTION = 0.5  # of the free memory: a table that would take more is read in a stream
PROBE_LINES = 1000
Progress = Callable[[int, int | None], None]  # rows done, and all rows where they are known


def no_total(rows: int, total: int | None) -> None:
    """Shows nothing."""


class Columns(NamedTuple):
    """The columns to read, and how."""

    dtypes: dict[str, ColumnType]  # of features and target
    features: list[str]
    target: str
    ids: tuple[str, ...]  # left out, because they seem to name the rows
    y: "pd.Series[Any]"  # targets of the probe
    forms: Mapping[str, Any]


class Sample:
    """Rows that are kept of a pass, with their numbers."""

    def __init__(self) -> None:
        self.frames: list[pd.DataFrame] = []
        self.rows: list[Array] = []

    def add(self, frame: pd.DataFrame, rows: Array, chosen: Array) -> None:
        """Keep the rows that the mask `chosen` marks."""
        if chosen.any():
            self.frames.append(frame[chosen])
            self.rows.append(rows[chosen])

    def table(self) -> pd.DataFrame:
        return pd.concat(self.frames, ignore_index=True)

    @property
    def numbers(self) -> Array:
        return np.concatenate(self.rows)


class Pass(NamedTuple):
    """What the first pass over a table gives."""

    statistics: list[ColumnStatistics]
    target: TargetStatistics
    sample: Sample
    test: Sample
    size: Tensor  # (members,) or () training rows


def fit_path(
    path: Path, request: FitRequest, callback: RowCallback = no_progress, progress: Progress = no_total
) -> FitResult:
    """`fit_table`, or for a folder or a table that is large for the memory `fit_stream`.

    `callback` receives the number of test rows evaluated so far; `progress` that of rows of the first pass,
    and of all rows.
    """
    if not is_streamed(path, request.stream):
        return fit_table(path, request, callback)
    if request.roles != Roles() or request.target_kind not in ("auto", "gaussian") or request.class_weight:
        raise ValueError(
            f"{path} is read in a stream, which knows one target and no --target-kind, --event, --group, "
            "--time, --weight or --class-weight: give a sample of the rows"
        )
    check_fraction(request.test_fraction)
    if path.is_dir() or file_format(path) == ".parquet":
        table = ParquetRows.open(path)
        return fit_stream(table, request, callback, progress=progress)
    columns = check_columns(path, column_names(path), request.target, request.drop, request.keep)
    work = request.work or Path(f"{path}.rows.parquet")
    check_writable(work)
    processes = Processes.of(request.distributed)
    written = processes.from_first(
        lambda: convert(path, columns, _kind, work, lambda rows: progress(rows, None))
    )
    known = select_columns(path, *written, request)
    return fit_stream(replace(ParquetRows.open(work), path=path), request, callback, known, progress)


def is_streamed(path: Path, asked: bool) -> bool:
    """Whether a table is read in a stream: a folder, or one that would take much of the free memory."""
    if path.is_dir() or asked:
        return True
    free = memory.available()
    return free is not None and estimated_bytes(path) > MEMORY_FRACTION * free


def estimated_bytes(path: Path) -> float:
    """Memory that reading a table and fitting a model would take, about."""
    if file_format(path) == ".parquet":
        with reading_errors(path):
            metadata = pyarrow.parquet.read_metadata(path)
        return float(metadata.num_rows * metadata.num_columns * CELL_BYTES)
    size = sum(len(line) for line in itertools.islice(read_lines(path), PROBE_LINES))
    lines = sum(1 for _ in itertools.islice(read_lines(path), PROBE_LINES))
    return text_bytes(path) / max(size, 1) * lines * len(column_names(path)) * CELL_BYTES


def fit_stream(
    table: ParquetRows,
    request: FitRequest,
    callback: RowCallback = no_progress,
    known: Columns | None = None,
    progress: Progress = no_total,
) -> FitResult:
    """Fit an estimator to parquet files of any size; inputs are checked before training.

    `callback` receives the number of test rows evaluated so far, `progress` that of rows of the first pass.
    `known` are the columns, where the files were written from text whose types are known.
    """
    if table.count < MIN_ROWS:
        raise ValueError(
            f"{table.path} has {table.count:,} rows: to be read in a stream it needs {MIN_ROWS:,}, "
            "join its files into one table"
        )
    columns = known or find_columns(table, request)
    task = infer_task(table.path, columns.y, request.task)
    estimator = make_estimator(task, request_method(request), request)
    is_regression = task == "regression"
    members = check_streamable(
        estimator, Task("regression", 1) if is_regression else Task("classification", 2)
    )
    held_out = float(estimator.validation_fraction)
    seed = derive_seed(fit_seed(estimator), "rows")
    split = RowSplit.of(table.count, request.test_fraction, held_out, members, is_regression, seed)
    start = time.monotonic()
    processes = Processes.of(request.distributed)
    first = processes.from_first(
        lambda: first_pass(table, columns, split, is_regression, lambda rows: progress(rows, table.count))
    )
    sample = first.sample.table()

    def batches(fitted: Estimator, config: TrainConfig) -> Callable[[int], Batch]:
        def encode(frame: pd.DataFrame) -> tuple[Tensor, Tensor]:
            x = torch.from_numpy(fitted.encoder_.transform(frame[columns.features]))
            return x, encode_y(fitted, labels(columns, frame))

        width = fitted.encoder_.width
        size, steps = first.size.float(), config.steps
        options = (encode, width, size, config.batch_size, steps, fitted.seed_)
        return RowStream(table, columns.dtypes, split, *options)

    weight = split.weights(first.sample.numbers)
    x, y = sample[columns.features], labels(columns, sample)
    fit_streamed(estimator, StreamedTable(first.statistics, first.target, x, y, weight, first.size, batches))
    seconds = time.monotonic() - start
    return _evaluate(table, estimator, columns, first, request, seconds, callback)


def find_columns(table: ParquetRows, request: FitRequest) -> Columns:
    """The columns to read and their types, from rows all over the table."""
    names = check_columns(table.path, table.names, request.target, request.drop, request.keep)
    probe = infer_frame(table.files[0], table.probe(names))
    dtypes = {name: probe.forms.get(name) or _kind(probe.frame[name]) for name in names}
    return select_columns(table.path, probe.frame, dtypes, probe.forms, request)


def select_columns(
    path: Path,
    frame: pd.DataFrame,
    dtypes: dict[str, ColumnType],
    forms: Mapping[str, Any],
    request: FitRequest,
) -> Columns:
    """Leave out the columns that seem to name the rows, unless they are to be kept."""
    target = request.target
    if types.is_datetime64_any_dtype(frame[target]):
        raise ValueError(
            f"{path}, column {target!r} holds times, which cannot be predicted: choose another --target"
        )
    x = frame.drop(columns=target)
    ids = tuple(name for name in id_columns(x) if name not in request.keep)
    features = [str(name) for name in x if name not in ids]
    if not features:
        raise ValueError(
            f"{path}, column {ids[0]!r} seems to name the rows, and no other feature is left: "
            f"give --keep {ids[0]} to use it"
        )
    kept = {name: dtypes[name] for name in (*features, target)}
    return Columns(kept, features, target, ids, frame[target].dropna(), forms)


def _kind(column: "pd.Series[Any]") -> str:
    """number, boolean, time or text."""
    if is_boolean(column):
        return "boolean"
    if types.is_datetime64_any_dtype(column):
        return "time"
    return "text" if is_categorical(column) else "number"


def labels(columns: Columns, frame: pd.DataFrame) -> Array:  # (rows,)
    """The target of some rows: whole numbers where those of the probe are."""
    y = frame[columns.target]
    kind = columns.y.dtype
    return y.to_numpy(kind) if types.is_integer_dtype(kind) or types.is_bool_dtype(kind) else y.to_numpy()


def first_pass(
    table: ParquetRows, columns: Columns, split: RowSplit, is_regression: bool, progress: RowCallback
) -> Pass:
    """Read all rows once."""
    kinds = {name: dtype if isinstance(dtype, str) else "number" for name, dtype in columns.dtypes.items()}
    statistics = [column_statistics(name, kinds[name], split.seed) for name in columns.features]
    target = TargetStatistics(is_regression)
    sample, test = Sample(), Sample()
    rates = sample_rates(table.count, split)
    size = torch.zeros((split.members,) if split.own else (), dtype=torch.float64)
    for block, rows in read_in_order(table, [*columns.dtypes]):
        numbers = np.arange(block.first, block.first + block.rows, dtype=np.int64)
        frame = read_frame(block, columns.dtypes, rows)
        check_target(block, frame, columns.target)
        is_test = split.is_test(numbers)
        _keep(sample, test, frame, numbers, is_test, split, rates)
        kept, used = frame[~is_test], numbers[~is_test]
        _add(statistics, kept, block)
        target.update(labels(columns, kept))
        size += split.weights(used).sum(-1).double()
        progress(block.first + block.rows)
    return Pass(statistics, target, sample, test, size)


def _add(statistics: list[ColumnStatistics], frame: pd.DataFrame, block: Block) -> None:
    """Add a chunk to the statistics of all columns."""
    for each in statistics:
        each.update(frame[each.name])


def sample_rates(rows: int, split: RowSplit) -> tuple[float, float, float]:
    """Parts of the rows that are kept: of training rows, of those that all hold out, and of test rows."""
    training = rows * (1 - split.test)
    common = max(split.common * training, 1e-9)
    test = max(split.test * rows, 1e-9)
    return SAMPLE / training, max(SAMPLE / training, CALIBRATION / common), TEST / test


def _keep(
    sample: Sample,
    test: Sample,
    frame: pd.DataFrame,
    numbers: Array,
    is_test: Array,
    split: RowSplit,
    rates: tuple[float, float, float],
) -> None:
    """Keep rows of a chunk in the samples."""
    position = uniform(numbers, split.seed, "sample")
    rate = np.where(split.is_common(numbers), rates[1], rates[0])
    sample.add(frame, numbers, ~is_test & (position < rate))
    test.add(frame, numbers, is_test & (position < rates[2]))


def _evaluate(
    table: ParquetRows,
    estimator: Any,
    columns: Columns,
    first: Pass,
    request: FitRequest,
    seconds: float,
    callback: RowCallback,
) -> FitResult:
    """Scores of the sampled test rows."""
    estimator.target_name_ = columns.target
    estimator.number_forms_ = dict(columns.forms)
    frame = first.test.table()
    y = labels(columns, frame)
    is_regression = estimator.model_.task.kind == "regression"
    if not is_regression:
        known = np.isin(y, estimator.classes_)
        frame, y = frame[known].reset_index(drop=True), y[known]
    rows = first.test.numbers if is_regression else first.test.numbers[known]
    y_test = y.astype(np.float64) if is_regression else encode_y(estimator, y).numpy()
    test = LabelledTable(
        table.path, frame[columns.features], frame[columns.target], columns.forms, columns.ids
    )
    scores = score_frame(estimator, test.x, y_test, LEVELS, callback)
    metrics = prediction_metrics(scores, is_regression, named_generator(request.seed, "bootstrap"))
    effects = column_effects(estimator, test.x, y_test, request.seed, callback)
    n_train = first.statistics[0].rows
    return FitResult(estimator, test, rows, y_test, scores, metrics, n_train, seconds, effects)
