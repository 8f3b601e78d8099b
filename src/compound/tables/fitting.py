"""`compound fit`: split a table, fit an estimator, evaluate it on the test rows, save it with a report."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from compound.estimators import CompoundClassifier, CompoundRegressor, files
from compound.estimators.base import Estimator
from compound.estimators.row_predictions import RowCallback, RowScores, no_progress, score_frame
from compound.estimators.target_kinds import KINDS, NEEDS, Proposal, propose_kind, unsuitable
from compound.io.model_directory import foreign_files
from compound.io.paths import check_folder
from compound.models import Method
from compound.random import derive_seed, named_generator
from compound.tables.confidence_intervals import Metric
from compound.tables.file_errors import file_location
from compound.tables.importance import ColumnEffects, column_effects
from compound.tables.model_inputs import (
    LabelledTable,
    TaskOption,
    encode_target,
    infer_task,
    read_training_table,
)
from compound.tables.prediction_metrics import LEVELS, prediction_metrics
from compound.tables.roles import Roles
from compound.train.holdout import held_out_count, last_of_class, stratified_sample

Array = NDArray[Any]


@dataclass(frozen=True)
class FitRequest:
    """Options of `compound fit`."""

    target: str
    task: TaskOption = "auto"
    target_kind: str = "auto"  # "auto", one of KINDS, or "ordinal"
    roles: Roles = field(default_factory=Roles)
    class_weight: str | None = None
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
    y_test: Array  # (test rows,) floats, or class indices; of the first target
    scores: RowScores
    metrics: list[Metric]
    n_train: int
    seconds: float  # of the fit
    effects: ColumnEffects
    reason: str = ""  # for the kind of the target, where it was proposed
    more_metrics: dict[str, list[Metric]] = field(default_factory=dict)  # of further targets

    @property
    def is_regression(self) -> bool:
        return self.estimator.model_.task.kind == "regression"


def fit_table(path: Path, request: FitRequest, callback: RowCallback = no_progress) -> FitResult:
    """Fit an estimator to a table file, and evaluate it on held-out rows; inputs are checked before training.

    `callback` receives the number of test rows evaluated so far.
    """
    check_fraction(request.test_fraction)
    method = request_method(request)
    roles = request.roles
    table = read_training_table(path, request.target, request.drop, request.keep, roles)
    task = infer_task(path, table.y, task_option(request))
    kind = propose(table, request) if task == "regression" else Proposal(request.target_kind, "")
    check_kind_of_task(kind.kind, task)
    if task == "regression":
        check_targets(table, kind.kind, request)
    is_test = choose_test_rows(table, task == "classification", request)
    estimator = make_estimator(task, method, request)
    if task == "regression":
        estimator.set_params(target_kind=kind.kind)
        method.check_family(None if kind.kind == "gaussian" else kind.kind)
    train, test = table.take(~is_test), table.take(is_test)
    start = time.monotonic()
    estimator.fit(train.x, _targets(train, roles), **roles.fit_arguments(train.columns))
    seconds = time.monotonic() - start
    fitted: Any = estimator
    fitted.target_name_ = request.target
    fitted.target_names_ = [request.target, *roles.more_targets] if roles.more_targets else []
    fitted.roles_ = roles.named
    fitted.number_forms_ = {name: form for name, form in table.forms.items() if name != roles.weight}
    y_test = encode_target(test, estimator)
    scores = score_frame(estimator, test.x, y_test, LEVELS, callback)
    generator = named_generator(request.seed, "bootstrap")
    metrics = prediction_metrics(scores, task == "regression", generator)
    more = {}
    for k, name in enumerate(roles.more_targets, start=1):
        truth = test.columns[name].to_numpy(np.float64)
        more[name] = prediction_metrics(
            score_frame(estimator, test.x, truth, LEVELS, target=k), True, generator
        )
    shown = y_test[:, 0] if y_test.ndim > 1 else y_test
    effects = column_effects(estimator, test.x, shown, request.seed, callback)
    parts = (estimator, test, test.file_rows, shown, scores, metrics, len(train.y), seconds, effects)
    return FitResult(*parts, reason=kind.reason, more_metrics=more)


def task_option(request: FitRequest) -> TaskOption:
    """The task asked for, or what the kind of the target says about it."""
    if request.task != "auto":
        return request.task
    if request.target_kind == "ordinal" or request.class_weight:
        return "classification"
    is_number = request.target_kind in KINDS or request.roles.event or request.roles.more_targets
    return "regression" if is_number else "auto"


def check_kind_of_task(kind: str, task: str) -> None:
    """Raise ValueError if a kind of target does not suit the task."""
    if (kind == "ordinal") == (task == "regression") and kind != "auto":
        raise ValueError(f"--target-kind is {kind}: it does not suit {task}, see --task")


def check_targets(table: LabelledTable, kind: str, request: FitRequest) -> None:
    """Raise ValueError at the first number that a kind of target cannot have, and for weights of classes."""
    if request.class_weight:
        raise ValueError(f"--class-weight is for classes: {request.target!r} is predicted as a number")
    names = [request.target, *request.roles.more_targets]
    if request.roles.event:  # may be 0
        return
    wrong = unsuitable(kind, _targets(table, request.roles).reshape(len(table.y), -1).astype(np.float64))
    if wrong.any():
        row, column = (int(index[0]) for index in wrong.nonzero())
        value = table.y[row] if column == 0 else table.columns[names[column]][row]
        where = file_location(table.path, int(table.file_rows[row]))
        raise ValueError(
            f"{table.path}, {where}, column {names[column]!r} holds {value:g}: "
            f"--target-kind {kind} needs {NEEDS[kind]}"
        )


def propose(table: LabelledTable, request: FitRequest) -> Proposal:
    """The kind asked for, or the one proposed from the column, with the reason."""
    if request.target_kind != "auto":
        return Proposal(request.target_kind, "")
    method = request_method(request)
    if not (method.takes_families or request.roles.event):
        return Proposal("gaussian", f"the kind that {method.name} predicts")
    columns = [table.y, *(table.columns[name] for name in request.roles.more_targets)]
    proposals = {
        propose_kind(column.to_numpy(np.float64), request.roles.event is not None) for column in columns
    }
    kinds = {proposal.kind for proposal in proposals}
    if len(kinds) > 1:
        return Proposal("gaussian", "the targets differ")
    return min(proposals)


def _targets(table: LabelledTable, roles: Roles) -> Array:  # (rows,) or (rows, targets)
    """The targets of the rows."""
    if not roles.more_targets:
        return table.y.to_numpy()
    return np.column_stack([table.y, *(table.columns[name] for name in roles.more_targets)]).astype(
        np.float64
    )


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
    kind: dict[str, Any] = {}
    if task != "regression":
        kind = {"ordinal": request.target_kind == "ordinal", "class_weight": request.class_weight}
    estimator_class = CompoundRegressor if task == "regression" else CompoundClassifier
    return estimator_class(
        method,
        **kind,
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
    if request.roles.time:  # the newest rows judge
        count = max(1, held_out_count(rows, request.test_fraction))
        newest = np.zeros(rows, dtype=bool)
        newest[np.argsort(table.columns[request.roles.time].to_numpy(), kind="stable")[rows - count :]] = True
        return newest
    labels = torch.from_numpy(pd.factorize(table.y)[0] if stratify else np.zeros(rows, dtype=np.int64))
    count = max(1, held_out_count(rows, request.test_fraction))
    sampled = stratified_sample(labels, count, derive_seed(request.seed, "test rows"))
    is_test = sampled & ~last_of_class(labels, sampled)
    if not is_test.any():  # few rows, or many classes of one row
        largest = (labels == labels.bincount().argmax()).nonzero().squeeze(1)
        index = torch.randint(len(largest), (), generator=named_generator(request.seed, "test rows"))
        is_test[largest[int(index)]] = True
    return is_test.numpy()
