"""`compound fit`: split a table, fit an estimator, evaluate it on the test rows, save it with a report."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from compound.estimators import CompoundClassifier, CompoundRegressor, files
from compound.estimators.base import Estimator
from compound.estimators.row_predictions import RowCallback, RowScores, no_progress, score_frame
from compound.io.model_directory import foreign_files
from compound.io.paths import check_folder
from compound.models import Method
from compound.random import derive_seed, named_generator
from compound.tables.confidence_intervals import Metric
from compound.tables.importance import ColumnEffects, column_effects
from compound.tables.model_inputs import (
    LabelledTable,
    TaskOption,
    encode_target,
    infer_task,
    read_training_table,
)
from compound.tables.prediction_metrics import LEVELS, prediction_metrics
from compound.train.holdout import held_out_count, last_of_class, stratified_sample

Array = NDArray[Any]


@dataclass(frozen=True)
class FitRequest:
    """Options of `compound fit`."""

    target: str
    task: TaskOption = "auto"
    method: str = ""  # "": the estimators' default
    options: tuple[tuple[str, Any], ...] = ()  # of the method
    parameters: tuple[tuple[str, Any], ...] = ()  # of the estimator, besides those below, such as lr
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()  # columns that are used although they seem to name the rows
    test_fraction: float = 0.1
    max_epochs: int | None = None
    batch_size: int | None = None
    false_positive_rate: float = 0.01  # of is_ood
    seed: int = 0
    verbose: bool = True
    checkpoint: Path | None = None  # from which an interrupted fit goes on
    stream: bool = False  # read the table in a stream, even if it fits in memory
    work: Path | None = None  # for a copy of the rows of a text file that is read in a stream
    distributed: bool = False  # the processes of torch.distributed fit together


@dataclass(frozen=True)
class FitResult:
    """A fitted estimator and its evaluation on the test rows."""

    estimator: Estimator
    test: LabelledTable
    test_rows: Array  # (test rows,) indices of rows in the file, from 0
    y_test: Array  # (test rows,) floats, or class indices
    scores: RowScores
    metrics: list[Metric]
    n_train: int
    seconds: float  # of the fit
    effects: ColumnEffects

    @property
    def is_regression(self) -> bool:
        return self.estimator.model_.task.kind == "regression"


def fit_table(path: Path, request: FitRequest, callback: RowCallback = no_progress) -> FitResult:
    """Fit an estimator to a table file, and evaluate it on held-out rows; inputs are checked before training.

    `callback` receives the number of test rows evaluated so far.
    """
    check_fraction(request.test_fraction)
    method = request_method(request)
    table = read_training_table(path, request.target, request.drop, request.keep)
    task = infer_task(path, table.y, request.task)
    is_test = choose_test_rows(table, task == "classification", request)
    estimator = make_estimator(task, method, request)
    start = time.monotonic()
    estimator.fit(table.x[~is_test].reset_index(drop=True), table.y[~is_test].to_numpy())
    seconds = time.monotonic() - start
    estimator.target_name_ = request.target  # type: ignore[attr-defined]
    estimator.number_forms_ = dict(table.forms)  # type: ignore[attr-defined]
    test = table._replace(
        x=table.x[is_test].reset_index(drop=True), y=table.y[is_test].reset_index(drop=True)
    )
    y_test = encode_target(test, estimator)
    scores = score_frame(estimator, test.x, y_test, LEVELS, callback)
    metrics = prediction_metrics(scores, task == "regression", named_generator(request.seed, "bootstrap"))
    n_train = int((~is_test).sum())
    effects = column_effects(estimator, test.x, y_test, request.seed, callback)
    rows = np.flatnonzero(is_test)
    return FitResult(estimator, test, rows, y_test, scores, metrics, n_train, seconds, effects)


def request_method(request: FitRequest) -> Method:
    """The method asked for, with its options; that of the estimators by default."""
    return Method(request.method or str(CompoundRegressor().method), **dict(request.options))


def check_fraction(fraction: float) -> None:
    """Raise ValueError for an impossible fraction of test rows."""
    if not 0 < fraction < 1:
        raise ValueError(
            f"--held-out is {fraction}: give a fraction of the rows between 0 and 1, such as 0.1"
        )


def check_model_path(out: Path) -> None:
    """Raise ValueError, before any work, if no model can be saved at `out`."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: a model is saved as a directory, choose another --out")
    others = foreign_files(os.listdir(out)) if out.is_dir() else []
    if others:
        raise ValueError(
            f"{out} holds {others[0]!r}, which is not part of a model: "
            "choose another --out or empty the directory"
        )
    if out.exists() and not os.access(out, os.W_OK):
        raise ValueError(f"{out} is read-only: choose another --out, or allow writing")
    check_folder(out.absolute().parent)


def save(result: FitResult, out: Path, page: str) -> None:
    """Save the model and its report (HTML text) atomically, in the directory `out`."""
    files.save(result.estimator, out, page.encode())


def make_estimator(task: str, method: Method, request: FitRequest) -> Estimator:
    estimator_class = CompoundRegressor if task == "regression" else CompoundClassifier
    return estimator_class(
        method,
        max_epochs=request.max_epochs,
        batch_size=request.batch_size,
        false_positive_rate=request.false_positive_rate,
        random_state=request.seed,
        verbose=request.verbose,
        checkpoint=request.checkpoint,
        distributed=request.distributed,
    ).set_params(**dict(request.parameters))


def choose_test_rows(table: LabelledTable, stratify: bool, request: FitRequest) -> Array:  # (rows,) bool
    """Mask of random test rows, stratified by class if `stratify`; each class keeps a training row."""
    rows = len(table.y)
    if rows < 4:
        raise ValueError(f"{table.path} has {rows} row(s): at least 4 are needed, for training and test")
    labels = torch.from_numpy(pd.factorize(table.y)[0] if stratify else np.zeros(rows, dtype=np.int64))
    count = max(1, held_out_count(rows, request.test_fraction))
    sampled = stratified_sample(labels, count, derive_seed(request.seed, "test rows"))
    is_test = sampled & ~last_of_class(labels, sampled)
    if not is_test.any():  # few rows, or many classes of one row
        largest = (labels == labels.bincount().argmax()).nonzero().squeeze(1)
        index = torch.randint(len(largest), (), generator=named_generator(request.seed, "test rows"))
        is_test[largest[int(index)]] = True
    return is_test.numpy()
