"""`compound tune`: search for the settings with which a table is predicted best, with Optuna.

The test rows of `compound fit` are set aside first. A part of the others is held out of each trial, whose
value is the mean NLL of these rows. A trial whose own held-out NLL, that of early stopping, is worse than the
median of earlier ones at the same point of training is pruned. Trials are kept in a journal file, from which
the same command goes on; a trial that was interrupted is repeated.
"""

import json
import logging
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from compound.estimators.row_predictions import no_progress, score_frame
from compound.random import derive_seed
from compound.tables.fitting import (
    FitRequest,
    check_fraction,
    check_kind_of_task,
    check_targets,
    choose_test_rows,
    make_estimator,
    propose,
    request_method,
    task_option,
)
from compound.tables.model_inputs import LabelledTable, encode_target, infer_task, read_training_table
from compound.tables.roles import Roles
from compound.tables.search_space import PARAMETERS, Space, combinations, distributions, settings
from compound.train.progress import FitProgress

VALIDATION_FRACTION = 0.2  # of the rows that are not for the test
RUNGS = 20  # points of a fit at which it may be pruned
FIRST_RUNG = 4  # below, nothing is pruned
STARTUP_TRIALS = 8  # random ones, none of which is pruned
REQUEST = "request"  # attribute of a study


@dataclass(frozen=True)
class TuneRequest:
    """Options of `compound tune`."""

    fit: FitRequest
    space: Space
    trials: int
    prune: bool = True


class TuningRows(NamedTuple):
    """The rows of all trials: for training, and to compare settings by."""

    task: str
    kind: str  # of the target
    train: LabelledTable
    validation: LabelledTable


class TrialResult(NamedTuple):
    """What has become of a trial."""

    state: str  # complete, pruned, failed
    value: float = math.nan  # mean NLL of the validation rows
    reason: str = ""  # of a failure


class Tuned(NamedTuple):
    """What `tune` returns."""

    request: FitRequest  # with the best settings
    settings: dict[str, Any]  # the best
    value: float  # their NLL
    trials: list[tuple[int, str, float, dict[str, Any]]]  # number, state, NLL and settings, best first


class TrialRunner(Protocol):
    """Performs trials, some at once."""

    room: int  # trials at once

    def start(self, trial_id: int, values: dict[str, Any]) -> None:
        """Start a trial with these settings."""

    def wait(self) -> Iterable[tuple[int, TrialResult]]:
        """Trials that have ended, at least one."""


class LocalRunner:
    """Performs one trial after another in this process."""

    room = 1

    def __init__(self, rows: TuningRows, request: TuneRequest, study: Path):
        self.arguments = (rows, request, study)
        self.ended: list[tuple[int, TrialResult]] = []

    def start(self, trial_id: int, values: dict[str, Any]) -> None:
        self.ended.append((trial_id, run_trial(*self.arguments, trial_id, values)))

    def wait(self) -> Iterable[tuple[int, TrialResult]]:
        ended, self.ended = self.ended, []
        return ended


MakeRunner = Callable[[TuningRows, TuneRequest, Path], TrialRunner]


def tune(
    path: Path,
    request: TuneRequest,
    study_file: Path,
    make_runner: MakeRunner = LocalRunner,
    callback: Callable[[str], None] = lambda line: None,
) -> Tuned:
    """Perform the trials that the study in `study_file` lacks; the best settings of all.

    `callback` receives a line for each trial. ValueError if the study is of another request, if another
    process works on it, or if all trials have failed.
    """
    optuna = require_optuna()
    rows = read_rows(path, request.fit)
    with _locked(study_file):
        study = _open_study(optuna, study_file, request, path)
        _repeat_interrupted(optuna, study)
        grid = combinations(request.space)
        for values in grid or []:
            study.enqueue_trial(values, skip_if_exists=True)
        total = len(grid) if grid else request.trials
        _perform(optuna, study, make_runner(rows, request, study_file), request, total, callback)
        return _tuned(study, request)


def read_rows(path: Path, request: FitRequest) -> TuningRows:
    """Read a table, set its test rows aside, and divide the others."""
    check_fraction(request.test_fraction)
    if request.roles != Roles():
        raise ValueError("tuning is for one target: leave out roles of columns")
    table = read_training_table(path, request.target, request.drop, request.keep)
    task = infer_task(path, table.y, task_option(request))
    kind = propose(table, request).kind if task == "regression" else request.target_kind
    check_kind_of_task(kind, task)
    if task == "regression":
        check_targets(table, kind, request)
        request_method(request).check_family(None if kind == "gaussian" else kind)
    stratify = task == "classification"
    rest = table.take(~choose_test_rows(table, stratify, request))
    inner = replace(request, test_fraction=VALIDATION_FRACTION, seed=derive_seed(request.seed, "tuning"))
    is_validation = choose_test_rows(rest, stratify, inner)
    return TuningRows(task, kind, rest.take(~is_validation), rest.take(is_validation))


def run_trial(
    rows: TuningRows, request: TuneRequest, study_file: Path, trial_id: int, values: dict[str, Any]
) -> TrialResult:
    """Fit with the settings of a trial, and evaluate it; an error of the fit is its result."""
    optuna = require_optuna()
    callbacks = []
    if request.prune:
        study = optuna.load_study(
            study_name=None, storage=_storage(optuna, study_file), pruner=_pruner(optuna)
        )
        callbacks = [Pruning(optuna.Trial(study, trial_id), optuna.TrialPruned)]
    try:
        fit = with_settings(request.fit, values)
        estimator: Any = make_estimator(rows.task, request_method(fit), fit).set_params(callbacks=callbacks)
        if rows.task == "regression":
            estimator.set_params(target_kind=rows.kind)
        estimator.fit(rows.train.x, rows.train.y.to_numpy())
        y = encode_target(rows.validation, estimator)
        scores = score_frame(estimator, rows.validation.x, y, np.array([0.9]), no_progress)
    except optuna.TrialPruned:
        return TrialResult("pruned")
    except (ValueError, ArithmeticError, RuntimeError) as error:
        lines = str(error).strip().splitlines()
        return TrialResult("failed", reason=lines[0] if lines else type(error).__name__)
    nll = float(scores.nll.mean())
    return TrialResult("complete", nll) if math.isfinite(nll) else TrialResult("failed", reason="NLL is NaN")


class Pruning:
    """A callback of a fit that reports its held-out NLL to a trial, and ends a trial that is to be pruned."""

    def __init__(self, trial: Any, pruned: type[Exception]):
        self.trial = trial
        self.pruned = pruned
        self.rung = FIRST_RUNG - 1

    def __call__(self, state: FitProgress) -> None:
        rung = RUNGS * state.step // state.steps
        if rung > self.rung and math.isfinite(state.held_out):
            self.rung = rung
            self.trial.report(state.held_out, rung)
            if self.trial.should_prune():
                raise self.pruned


def with_settings(request: FitRequest, values: dict[str, Any]) -> FitRequest:
    """The request with the settings of a trial, in place of its own."""
    options = {name: value for name, value in values.items() if name not in PARAMETERS}
    parameters = {name: value for name, value in values.items() if name in PARAMETERS}
    return replace(
        request,
        options=tuple({**dict(request.options), **options}.items()),
        parameters=tuple({**dict(request.parameters), **parameters}.items()),
    )


def require_optuna() -> Any:
    """The module `optuna`, quiet; ValueError where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise ValueError("Optuna is not installed: pip install 'compound-torch[tune]'") from error
    optuna.logging.set_verbosity(logging.ERROR)
    return optuna


def _perform(
    optuna: Any, study: Any, runner: TrialRunner, request: TuneRequest, total: int, callback: Any
) -> None:
    """Perform trials until `total` have ended."""
    states = optuna.trial.TrialState
    ended = sum(trial.state in (states.COMPLETE, states.PRUNED) for trial in study.trials)
    failed = 0
    running: dict[int, Any] = {}
    while ended + failed < total or running:
        while len(running) < runner.room and ended + failed + len(running) < total:
            # so that a study that was interrupted draws what an undisturbed one would
            study.sampler = _sampler(optuna, derive_seed(request.fit.seed, "trial", ended + len(running)))
            trial = study.ask(distributions(request.space))
            running[trial._trial_id] = trial
            runner.start(trial._trial_id, settings(request.space, trial.params))
        for trial_id, result in runner.wait():
            trial = running.pop(trial_id)
            state = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[
                result.state
            ]
            study.tell(trial, result.value if result.state == "complete" else None, state)
            ended, failed = ended + (result.state != "failed"), failed + (result.state == "failed")
            values = ", ".join(f"{name}={_short(value)}" for name, value in trial.params.items())
            detail = f"NLL {result.value:.4f}" if result.state == "complete" else result.reason or "pruned"
            callback(f"trial {ended + failed} of {total}: {values}: {detail}")


def _tuned(study: Any, request: TuneRequest) -> Tuned:
    """The best settings of a study; ValueError if no trial is complete."""
    rows = [
        (trial.number, trial.state.name.lower(), trial.value, settings(request.space, trial.params))
        for trial in study.trials
        if trial.params and trial.state.is_finished()
    ]
    complete = sorted((row for row in rows if row[1] == "complete"), key=lambda row: row[2])
    if not complete:
        raise ValueError("all trials have failed: search in another space, the lines above say why")
    _, _, value, best = complete[0]
    others = [(number, state, math.nan, values) for number, state, _, values in rows if state != "complete"]
    return Tuned(with_settings(request.fit, best), best, value, [*complete, *others])


def _open_study(optuna: Any, path: Path, request: TuneRequest, table: Path) -> Any:
    """The study in a file, or a new one; ValueError if it is of another request."""
    fit = request.fit
    identity = json.dumps(
        [table.name, table.stat().st_size, fit.target, fit.method, fit.options, fit.drop, fit.keep, fit.task]
        + [fit.test_fraction, fit.max_epochs, fit.seed, request.space]
    )
    try:
        study = optuna.create_study(
            storage=_storage(optuna, path), study_name="tune", load_if_exists=True, pruner=_pruner(optuna)
        )
        if study.user_attrs.setdefault(REQUEST, identity) != identity:
            raise ValueError(
                f"{path} holds trials for another table, target or space: choose another --study"
            )
    except (KeyError, json.JSONDecodeError, AttributeError) as error:
        raise ValueError(f"{path} is no study of Optuna: choose another --study") from error
    study.set_user_attr(REQUEST, identity)
    return study


def _repeat_interrupted(optuna: Any, study: Any) -> None:
    """Queue the trials that were running when their process died, and mark them as failed."""
    for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(trial.params)


def _locked(study_file: Path) -> Any:
    from compound.io.locks import one_process

    return one_process(study_file)


def _storage(optuna: Any, path: Path) -> Any:
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    return optuna.storages.JournalStorage(backend)


def _sampler(optuna: Any, seed: int) -> Any:
    return optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=STARTUP_TRIALS)


def _pruner(optuna: Any) -> Any:
    return optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS)


def _short(value: Any) -> str:
    with suppress(TypeError, ValueError):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    return str(value)
