"""Runs: identity, execution and results.

<root>/<key>/        one directory per run (run_files.py); a finished run is never repeated
<root>/fits/<key>/   checkpoint.safetensors, shared by all runs that train the same model on the same data
"""

import hashlib
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from compound.experiments import progress
from compound.experiments.locks import Busy, locked
from compound.experiments.progress import Clock
from compound.experiments.run_files import (
    CONFIG,
    FAILURE,
    METRICS,
    Arrays,
    Damaged,
    canonical_json,
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

# variants of a run; "" is the default form of a method on the usual data
PUBLISHED = "as published"  # options and training of the paper
ONE_MEMBER = "one member"  # the default form without its ensemble
REGION = "region"  # a region of the inputs is kept out of training


@dataclass(frozen=True)
class Run:
    """Everything that determines a result. Equal runs share a directory; the order of options is free."""

    experiment: str
    method: str
    data: str  # name of the data set
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method
    settings: Mapping[str, Any] = field(default_factory=dict)  # of training: fields of `TrainConfig`
    variant: str = ""  # PUBLISHED, ONE_MEMBER, REGION
    n_train: int | None = None  # training rows, where an experiment uses a part of its data set
    extractor: str = ""  # network whose features the method sees

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Run":
        """The run that config.json describes."""
        return cls(**(config if "variant" in config else _upgrade(config)))

    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return json.loads(canonical_json(asdict(self)))

    @property
    def data_label(self) -> str:
        """Data set and variant for readers, such as "cifar10/2000/efficientnet-lite0, as published"."""
        source = "/".join(str(part) for part in (self.data, self.n_train, self.extractor) if part)
        return f"{source}, {self.variant}" if self.variant else source

    @property
    def key(self) -> str:
        """Name of the run's directory."""
        return self._hash(self.experiment)

    @property
    def fit_key(self) -> str:
        """Equal for runs that train the same model on the same data, whatever they evaluate afterwards."""
        return self._hash("")

    def _hash(self, experiment: str) -> str:
        # `data_label` was one field in the first version: hashing it keeps the names of directories
        identity = {
            "experiment": experiment,
            "method": self.method,
            "data": self.data_label,
            "seed": self.seed,
            "options": dict(self.options),
            "settings": dict(self.settings),
        }
        return hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.experiment} · {self.data_label} · {self.method} · seed {self.seed}"


class RunContext(NamedTuple):
    """What the work of a run may use, but its result must not depend on."""

    directory: Path
    data_dir: Path | None = None
    callback: Callable[[FitProgress], None] | None = None
    clock: Clock | None = None
    wait: bool = True  # for a fit that another process works on; else raise `Busy`


class Outcome(NamedTuple):
    """What the work of a run returns."""

    metrics: dict[str, Any]  # numbers, strings, and lists or dictionaries of them
    arrays: Arrays


class Result(NamedTuple):
    """A finished run."""

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
    """The result of a run: read where it is finished, else computed by `work`.

    While another process works on the same run, waits or raises `Busy`. Errors are kept in failure.json and
    raised.
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
    """A finished run from its directory; raises `Damaged` where its files differ from what was written."""
    directory = root / run.key
    if not is_finished(run, root):
        raise ValueError(f"run {run.key} in {root} is not finished: perform it first")
    content = read_metrics(directory)
    return Result(run, content["metrics"], read_arrays(directory, content.get("arrays")), content["record"])


def read_config(path: Path) -> Run | None:
    """The run that a config.json describes, None where it is not the run of its directory."""
    try:
        run = Run.from_config(json.loads(path.read_text()))
        return run if run.key == path.parent.name else None
    except (OSError, ValueError, TypeError):
        return None


def split_damaged(runs: Sequence[Run], root: Path) -> tuple[list[Run], list[Damaged]]:
    """Finished runs that can be read, and the errors of those that cannot."""
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
    """The model of a run, trained on data; training resumes from its checkpoint where there is one.

    Runs of several experiments that train the same model share one fit, in fits/ beside their directories.
    """
    model = build(Method(run.method, **run.options), data.x.shape[1], task, run.seed)
    directory = context.directory.parent / "fits" / run.fit_key
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / "lock", context.wait), context.clock.train() if context.clock else nullcontext():
        remove_temporary_files(directory)
        history = fit(
            model,
            data,
            TrainConfig(**run.settings),
            seed=run.seed,
            checkpoint=directory / "checkpoint.safetensors",
            callback=context.callback,
        )
        history.save_csv(context.directory / "history.csv")
    return model


def _write_config(run: Run, directory: Path) -> None:
    path = directory / CONFIG
    if path.exists() and read_config(path) is None:
        raise ValueError(f"{path} describes another run: move that directory away")
    write_atomic(path, to_json(run.config()))


def _upgrade(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json of the first version, whose entry `data` was the whole `data_label`."""
    source, _, variant = str(config.get("data", "")).partition(", ")
    data, *part = source.split("/")
    if len(part) == 2:
        return {**config, "data": data, "n_train": int(part[0]), "extractor": part[1], "variant": variant}
    return {**config, "data": source, "variant": variant}
