"""Run directories: one per configuration. A finished run is never repeated, a killed one goes on from its checkpoint.

runs/<key>/       config.json · history.csv · arrays.npz · lock · metrics.json (comes last: finished)
runs/fits/<key>/  checkpoint.safetensors, of all runs that train alike
"""

import fcntl
import hashlib
import io
import json
import math
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import compound
from compound.models import Method, Model, build
from compound.persist import write_atomic
from compound.train import Settings, Watch, fit
from compound.types import Batch, Task

Numbers = dict[str, np.ndarray[Any, Any]]


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


class Place(NamedTuple):
    """What a run's work may use but must not depend on."""

    directory: Path
    data_dir: Path | None = None
    watch: Callable[[Watch], None] | None = None


class Outcome(NamedTuple):
    metrics: dict[str, Any]  # numbers, words, and lists or dictionaries of them
    arrays: Numbers


class Result(NamedTuple):
    run: Run
    metrics: dict[str, Any]
    arrays: Numbers
    record: dict[str, Any]  # which code gave it


Work = Callable[[Run, Place], Outcome]


def perform(run: Run, work: Work, root: Path, data_dir: Path | None = None, watch: Callable[[Watch], None] | None = None) -> Result:
    """The result of a run: read where it is finished, else worked for. Waits while another process works on the same one."""
    directory = root / run.key
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / "lock"):
        if not (directory / "metrics.json").exists():
            _claim(run, directory)
            begin = time.monotonic()
            metrics, arrays = work(run, Place(directory, data_dir, watch))
            write_atomic(directory / "arrays.npz", _packed(arrays))
            about = {**_record(), "seconds": round(time.monotonic() - begin, 2)}
            write_atomic(directory / "metrics.json", _json({"metrics": _finite(metrics), "record": about}))
    return read(run, root)


def read(run: Run, root: Path) -> Result:
    """A finished run from its directory."""
    directory = root / run.key
    if not (directory / "metrics.json").exists():
        raise ValueError(f"run {run.key} in {root} is not finished: perform it first")
    kept = json.loads((directory / "metrics.json").read_text())
    with np.load(directory / "arrays.npz", allow_pickle=False) as arrays:
        return Result(run, kept["metrics"], dict(arrays), kept["record"])


def fitted(run: Run, place: Place, data: Batch, task: Task) -> Model:
    """The run's model, trained on data; goes on from the checkpoint where one is left.

    Runs of several experiments that train alike share one fit, in fits/ beside their directories.
    """
    model = build(Method(run.method, **run.options), data.x.shape[1], task, run.seed)
    home = place.directory.parent / "fits" / run.fit_key
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / "lock"):
        checkpoint = home / "checkpoint.safetensors"
        history = fit(model, data, Settings(**run.settings), seed=run.seed, checkpoint=checkpoint, watch=place.watch)
        history.save_csv(place.directory / "history.csv")
    return model


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process at a time is inside. The lock dies with its holder; the file stays, for removing it would race."""
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _claim(run: Run, directory: Path) -> None:
    path = directory / "config.json"
    if path.exists() and json.loads(path.read_text()) != run.config():
        raise ValueError(f"{path} describes another run: move that directory away")
    write_atomic(path, _json(run.config()))


def _canonical(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a run holds something that JSON cannot say ({error}): use numbers, words, lists") from error


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


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
            raise ValueError(f"array {name!r} holds Python objects: give numbers, for objects would be pickled")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _record() -> dict[str, Any]:
    return {
        "version": compound.__version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def _commit() -> str | None:
    """The commit of this very file, with "-dirty" where the tree has changes; None outside a repository that holds it."""
    here = Path(__file__)
    for words in (["ls-files", "--error-unmatch", here.name], ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]):
        try:
            answer = subprocess.run(["git", *words], cwd=here.parent, capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
    return answer.stdout.strip() or None
