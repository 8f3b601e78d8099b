"""Run directories: one per configuration. A finished run is never repeated, a killed one goes on from its checkpoint.

runs/<key>/       config.json · history.csv · arrays.npz · lock · metrics.json (comes last: finished; with checksums of both)
                  progress.json while it is not finished, failure.json where the last attempt failed
runs/fits/<key>/  checkpoint.safetensors, of all runs that train alike
"""

import fcntl
import hashlib
import io
import json
import math
import time
import traceback
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from compound.experiments import progress
from compound.experiments.progress import Clock
from compound.experiments.provenance import provenance
from compound.io.atomic import write_atomic
from compound.models import Method, Model, build
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.train.progress import FitProgress
from compound.types import Batch, Task

Numbers = dict[str, np.ndarray[Any, Any]]
METRICS, FAILURE = "metrics.json", "failure.json"


class Busy(RuntimeError):
    """Another process works on this run, or on a fit that it needs."""

    def __init__(self, path: Path):
        super().__init__(f"{path} is held by another process")
        self.path = path


class Damaged(ValueError):
    """A finished run whose files are not what was written."""

    def __init__(self, directory: Path, why: object):
        super().__init__(
            f"{directory} is damaged ({why}): delete that folder, and the same command works the run out again"
        )


@dataclass(frozen=True)
class Run:
    """All that decides a result. Two equal descriptions share a directory, whatever order their options were written in."""

    experiment: str
    method: str
    data: str
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """As it stands in config.json."""
        return json.loads(_canonical(asdict(self)))

    @property
    def key(self) -> str:
        return hashlib.sha256(_canonical(asdict(self)).encode()).hexdigest()[:16]

    @property
    def fit_key(self) -> str:
        """Alike for runs that train the same model on the same data, whatever they ask it afterwards."""
        return hashlib.sha256(_canonical({**asdict(self), "experiment": ""}).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.experiment} · {self.data} · {self.method} · seed {self.seed}"


class RunContext(NamedTuple):
    """What a run's work may use but must not depend on."""

    directory: Path
    data_dir: Path | None = None
    callback: Callable[[FitProgress], None] | None = None
    clock: Clock | None = None
    wait: bool = True  # for a fit that another process works on, or raise Busy


class Outcome(NamedTuple):
    metrics: dict[str, Any]  # numbers, words, and lists or dictionaries of them
    arrays: Numbers


class Result(NamedTuple):
    run: Run
    metrics: dict[str, Any]
    arrays: Numbers
    record: dict[str, Any]  # which code gave it


Work = Callable[[Run, RunContext], Outcome]


def perform(
    run: Run,
    work: Work,
    root: Path,
    data_dir: Path | None = None,
    callback: Callable[[FitProgress], None] | None = None,
    wait: bool = True,
) -> Result:
    """The result of a run: read where it is finished, else worked for.

    While another process works on the same one, waits or raises Busy. What goes wrong is kept in failure.json and raised.
    """
    directory = root / run.key
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / "lock", wait):
        if not finished(run, root):
            sweep(directory)
            _claim(run, directory)
            clock = progress.clock(directory)
            try:
                place = RunContext(
                    directory, data_dir, progress.writer(directory, clock, callback), clock, wait
                )
                _finish(directory, work(run, place), clock)
            except Busy:
                raise
            except Exception as error:
                write_failure(directory, reason(error), "".join(traceback.format_exception(error)))
                raise
        for name in (FAILURE, progress.NAME):
            (directory / name).unlink(missing_ok=True)
    return read(run, root)


def _finish(directory: Path, outcome: Outcome, clock: Clock) -> None:
    packed = _packed(outcome.arrays)
    write_atomic(directory / "arrays.npz", packed)
    seconds, training = round(clock.seconds, 2), round(clock.training, 2)
    about = {
        **provenance(),
        "seconds": seconds,
        "training": training,
        "answering": round(seconds - training, 2),
    }
    content = json.loads(
        _json(
            {
                "metrics": _finite(outcome.metrics),
                "record": about,
                "arrays": hashlib.sha256(packed).hexdigest(),
            }
        )
    )
    write_atomic(directory / METRICS, _json({**content, "sha256": _digest(content)}))


def finished(run: Run, root: Path) -> bool:
    return (root / run.key / METRICS).exists()


def reason(error: BaseException) -> str:
    """An error in one line."""
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0]}" if words else type(error).__name__


def write_failure(directory: Path, words: str, trace: str = "") -> None:
    """Why the last attempt at a run failed; the next one begins all the same."""
    about = {
        "reason": words,
        "traceback": trace.splitlines(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "record": provenance(),
    }
    write_atomic(directory / FAILURE, _json(about))


def sweep(directory: Path) -> None:
    """Remove what a killed process was writing; only the holder of the directory's lock may."""
    for path in directory.glob(".*.new"):
        path.unlink(missing_ok=True)


def read(run: Run, root: Path) -> Result:
    """A finished run from its directory; raises `Damaged` where its files are not what was written."""
    directory = root / run.key
    if not finished(run, root):
        raise ValueError(f"run {run.key} in {root} is not finished: perform it first")
    kept = read_metrics(directory)
    try:
        packed = (directory / "arrays.npz").read_bytes()
        if kept.get("arrays") not in (None, hashlib.sha256(packed).hexdigest()):
            raise Damaged(directory, "the checksum of arrays.npz differs")
        with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
            return Result(run, kept["metrics"], dict(arrays), kept["record"])
    except (
        OSError,
        ValueError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        TypeError,
        AttributeError,
        MemoryError,
    ) as error:
        raise (
            error if isinstance(error, Damaged) else Damaged(directory, f"arrays.npz: {reason(error)}")
        ) from error


def read_metrics(directory: Path) -> dict[str, Any]:
    """The content of metrics.json. Runs of earlier versions have no checksums: there the right form must do."""
    try:
        kept = json.loads((directory / METRICS).read_text())
        if not isinstance(kept, dict) or not all(
            isinstance(kept.get(name), dict) for name in ("metrics", "record")
        ):
            raise Damaged(directory, f"{METRICS} holds no result")
        if kept.pop("sha256", None) not in (None, _digest(kept)):
            raise Damaged(directory, f"the checksum of {METRICS} differs")
    except (OSError, ValueError, RecursionError) as error:
        raise (
            error if isinstance(error, Damaged) else Damaged(directory, f"{METRICS}: {reason(error)}")
        ) from error
    return kept


def readable(runs: Sequence[Run], root: Path) -> tuple[list[Run], list[Damaged]]:
    """Finished runs that can be read, and what is wrong with the others."""
    whole, broken = [], []
    for run in runs:
        try:
            read(run, root)
            whole.append(run)
        except Damaged as error:
            broken.append(error)
    return whole, broken


def fitted(run: Run, place: RunContext, data: Batch, task: Task) -> Model:
    """The run's model, trained on data; goes on from the checkpoint where one is left.

    Runs of several experiments that train alike share one fit, in fits/ beside their directories.
    """
    model = build(Method(run.method, **run.options), data.x.shape[1], task, run.seed)
    home = place.directory.parent / "fits" / run.fit_key
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / "lock", place.wait), place.clock.train() if place.clock else nullcontext():
        sweep(home)
        checkpoint = home / "checkpoint.safetensors"
        history = fit(
            model,
            data,
            TrainConfig(**run.settings),
            seed=run.seed,
            checkpoint=checkpoint,
            callback=place.callback,
        )
        history.save_csv(place.directory / "history.csv")
    return model


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Only one process at a time is inside. The lock dies with its holder; the file stays, for removing it would race."""
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise Busy(path) from error
        yield


def held(path: Path) -> bool:
    """Whether a process is inside `locked(path)` now."""
    try:
        with path.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _claim(run: Run, directory: Path) -> None:
    path = directory / "config.json"
    if path.exists() and json.loads(path.read_text()) != run.config():
        raise ValueError(f"{path} describes another run: move that directory away")
    write_atomic(path, _json(run.config()))


def _canonical(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"a run holds something that JSON cannot say ({error}): use numbers, words, lists"
        ) from error


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(content).encode()).hexdigest()


def _finite(value: Any) -> Any:
    """The same with null for NaN and infinity, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _packed(arrays: Numbers) -> bytes:
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(
                f"array {name!r} holds Python objects: give numbers, for objects would be pickled"
            )
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
