"""From a table file to a model that is kept: split, fit, judge on rows that were held out, save with a report."""

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
from compound.tables.reading import Kind, Labelled, encode_target, task_of, training_table
from compound.tables.scores import LEVELS, Number, numbers
from compound.train.holdout import held_out_count, last_of_class, stratified_sample

Array = NDArray[Any]


@dataclass(frozen=True)
class FitRequest:
    """What to fit, as the command was told."""

    target: str
    task: Kind = "auto"
    method: str = ""  # the estimators' own default
    options: tuple[tuple[str, Any], ...] = ()
    drop: tuple[str, ...] = ()
    held_out: float = 0.1
    epochs: int | None = None
    false_alarms: float = 0.01
    seed: int = 0
    verbose: bool = True


@dataclass(frozen=True)
class Fitted:
    """A fitted estimator and how it did on rows it never saw."""

    estimator: Estimator
    test: Labelled
    places: Array  # (test rows,) rows of the file, from 0
    truth: Array  # (test rows,)
    judged: RowScores
    numbers: list[Number]
    trained: int  # rows
    seconds: float  # of the fit

    @property
    def targets(self) -> bool:
        return self.estimator.model_.task.kind == "regression"


def fit_table(path: Path, wish: FitRequest, callback: RowCallback = no_progress) -> Fitted:
    """Everything is checked before the fit begins; `watch` is told how many held-out rows are judged."""
    if not 0 < wish.held_out < 1:
        raise ValueError(
            f"--held-out is {wish.held_out}: give a part of the rows between 0 and 1, such as 0.1"
        )
    method = Method(wish.method or str(CompoundRegressor().method), **dict(wish.options))
    table = training_table(path, wish.target, wish.drop)
    task = task_of(path, table.y, wish.task)
    test = _test_rows(table, task == "classification", wish)
    estimator = _estimator(task, method, wish)
    begin = time.monotonic()
    train = ~test
    estimator.fit(table.x[train].reset_index(drop=True), table.y[train].to_numpy())
    seconds = time.monotonic() - begin
    estimator.target_name_ = wish.target  # type: ignore[attr-defined]
    held = Labelled(path, table.x[test].reset_index(drop=True), table.y[test].reset_index(drop=True))
    y = encode_target(held, estimator)
    judged = score_frame(estimator, held.x, y, LEVELS, callback)
    found = numbers(judged, task == "regression", named_generator(wish.seed, "bootstrap"))
    return Fitted(estimator, held, np.flatnonzero(test), y, judged, found, int(train.sum()), seconds)


def check_model_path(out: Path) -> None:
    """Refuse, before any work, a place where no model can be put."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: a model is saved as a directory, choose another --out")
    others = foreign_files(os.listdir(out)) if out.is_dir() else []
    if others:
        raise ValueError(
            f"{out} holds {others[0]!r}, which is not part of a model: choose another --out or empty the directory"
        )
    if out.exists() and not os.access(out, os.W_OK):
        raise ValueError(f"{out} is read-only: choose another --out, or allow writing")
    check_folder(out.absolute().parent)


def save(fitted: Fitted, out: Path, page: str) -> None:
    """The model directory, report included, in one move: a kill leaves both or neither."""
    files.save(fitted.estimator, out, page.encode())


def _estimator(task: str, method: str | Method, wish: FitRequest) -> Estimator:
    kind = CompoundRegressor if task == "regression" else CompoundClassifier
    common: dict[str, Any] = {
        "false_positive_rate": wish.false_alarms,
        "random_state": wish.seed,
        "verbose": wish.verbose,
    }
    return kind(method, max_epochs=wish.epochs, **common)


def _test_rows(table: Labelled, classes: bool, wish: FitRequest) -> Array:  # (rows,) True = held out
    """A random part; of classes the same part of each, rounded up or down at random, but never the last row of one."""
    rows = len(table.y)
    if rows < 4:
        raise ValueError(
            f"{table.path} has {rows} row(s): at least 4 are needed, to learn from some and judge on others"
        )
    labels = torch.from_numpy(pd.factorize(table.y)[0] if classes else np.zeros(rows, dtype=np.int64))
    drawn = stratified_sample(
        labels, max(1, held_out_count(rows, wish.held_out)), derive_seed(wish.seed, "test rows")
    )
    chosen = drawn & ~last_of_class(labels, drawn)
    if not chosen.any():  # few rows, or many classes of one row
        largest = (labels == labels.bincount().argmax()).nonzero().squeeze(1)
        chosen[
            largest[int(torch.randint(len(largest), (), generator=named_generator(wish.seed, "test rows")))]
        ] = True
    return chosen.numpy()
