"""Perform a run, or read its result if it is finished.

<root>/<key>/        one directory per run (run_files.py); a finished run is never repeated
<root>/fits/<key>/   checkpoint.safetensors, shared by all runs that train the same model on the same data
"""

import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from compound.experiments import progress
from compound.experiments.identity import Run, read_config
from compound.experiments.locks import Busy, locked
from compound.experiments.progress import Clock
from compound.experiments.run_files import (
    CONFIG,
    FAILURE,
    METRICS,
    Arrays,
    Damaged,
    error_line,
    read_arrays,
    read_metrics,
    remove_temporary_files,
    to_json,
    write_failure,
    write_result,
)
from compound.io.atomic import write_atomic
from compound.models import Method, Model, build
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.train.progress import FitProgress
from compound.types import Batch, Task


class RunContext(NamedTuple):
    """Arguments of the work of a run on which its result must not depend."""

    directory: Path  # of the run
    data_dir: Path | None = None
    callback: Callable[[FitProgress], None] | None = None
    clock: Clock | None = None
    wait: bool = True  # for a fit that another process works on; False: raise `Busy`


class Outcome(NamedTuple):
    """What the work of a run returns, to be saved as its result."""

    metrics: dict[str, Any]  # numbers, strings, and lists or dictionaries of them
    arrays: Arrays


class Result(NamedTuple):
    """A finished run, as read from its directory."""

    run: Run
    metrics: dict[str, Any]
    arrays: Arrays
    provenance: dict[str, Any]  # code, command and seconds


Work = Callable[[Run, RunContext], Outcome]


def perform(
    run: Run,
    work: Work,
    root: Path,
    data_dir: Path | None = None,
    callback: Callable[[FitProgress], None] | None = None,
    wait: bool = True,
) -> Result:
    """The result of a run: read from its directory in `root` if finished, else computed by `work` and saved.

    If another process works on the same run: wait, or raise `Busy` where `wait` is False. An error of `work`
    is written to failure.json and raised again.
    """
    directory = root / run.key
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / "lock", wait):
        if not is_finished(run, root):
            remove_temporary_files(directory)
            _write_config(run, directory)
            _compute(run, work, directory, data_dir, callback, wait)
        for name in (FAILURE, progress.NAME):
            (directory / name).unlink(missing_ok=True)
    return read(run, root)


def _compute(
    run: Run,
    work: Work,
    directory: Path,
    data_dir: Path | None,
    callback: Callable[[FitProgress], None] | None,
    wait: bool,
) -> None:
    """Call `work` and write its outcome; an error is written to failure.json and raised again."""
    clock = progress.resume_clock(directory)
    context = RunContext(directory, data_dir, progress.writer(directory, clock, callback), clock, wait)
    try:
        outcome = work(run, context)
        write_result(directory, outcome.metrics, outcome.arrays, clock.summary())
    except Busy:
        raise
    except Exception as error:
        write_failure(directory, error_line(error), "".join(traceback.format_exception(error)))
        raise


def is_finished(run: Run, root: Path) -> bool:
    return (root / run.key / METRICS).exists()


def read(run: Run, root: Path) -> Result:
    """The result of a finished run; ValueError if it is not finished, `Damaged` if its files are."""
    directory = root / run.key
    if not is_finished(run, root):
        raise ValueError(f"run {run.key} in {root} is not finished: perform it first")
    content = read_metrics(directory)
    return Result(run, content["metrics"], read_arrays(directory, content.get("arrays")), content["record"])


def split_damaged(runs: Sequence[Run], root: Path) -> tuple[list[Run], list[Damaged]]:
    """Of finished runs: those whose results can be read, and the errors of the others."""
    intact = []
    errors = []
    for run in runs:
        try:
            read(run, root)
            intact.append(run)
        except Damaged as error:
            errors.append(error)
    return intact, errors


def fit_run(run: Run, context: RunContext, data: Batch, task: Task) -> Model:
    """Build and train the model of a run; training resumes from its checkpoint if there is one.

    Runs of several experiments that train the same model on the same data share one checkpoint, in fits/.
    """
    model = build(Method(run.method, **run.options), data.x.shape[1], task, run.seed)
    directory = context.directory.parent / "fits" / run.fit_key
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / "lock", context.wait), context.clock.train() if context.clock else nullcontext():
        remove_temporary_files(directory)
        config, file = TrainConfig(**run.settings), directory / "checkpoint.safetensors"
        history = fit(model, data, config, run.seed, file, callback=context.callback)
        history.save_csv(context.directory / "history.csv")
    return model


def _write_config(run: Run, directory: Path) -> None:
    """Write config.json; ValueError if the directory has one of another run."""
    path = directory / CONFIG
    if path.exists() and read_config(path) is None:
        raise ValueError(f"{path} describes another run: move that directory away")
    write_atomic(path, to_json(run.config()))
