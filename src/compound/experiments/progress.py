"""Progress of a run that is not finished: step, speed, and seconds spent, earlier attempts included.

progress.json: step, steps, rate (steps per second), seconds, training, pid, host, time
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compound.io.atomic import write_atomic
from compound.train.progress import FitProgress

NAME = "progress.json"
WRITE_INTERVAL = 2.0  # seconds between two writes


class Clock:
    """Measures the wall-clock seconds of a run, and how many of them are training.

    It starts at the seconds and training seconds of earlier attempts.
    """

    def __init__(self, seconds: float = 0.0, training: float = 0.0):
        self._start = time.monotonic() - seconds
        self._training = training
        self._training_since: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds so far, of earlier attempts and of this one."""
        return time.monotonic() - self._start

    @property
    def training(self) -> float:
        """Seconds of training so far, of earlier attempts and of this one."""
        running = 0.0 if self._training_since is None else time.monotonic() - self._training_since
        return self._training + running

    @contextmanager
    def train(self) -> Iterator[None]:
        """A context manager: the time inside it counts as training."""
        self._training_since = time.monotonic()
        try:
            yield
        finally:
            self._training = self.training
            self._training_since = None

    def summary(self) -> dict[str, float]:
        """Total seconds, seconds of training, and the rest: of evaluation, which files call "answering"."""
        seconds = round(self.seconds, 2)
        training = round(self.training, 2)
        return {"seconds": seconds, "training": training, "answering": round(seconds - training, 2)}


def resume_clock(directory: Path) -> Clock:
    """A clock that starts at the seconds in progress.json of the last attempt, or at 0."""
    previous = read(directory) or {}
    return Clock(previous.get("seconds", 0.0), previous.get("training", 0.0))


def writer(
    directory: Path, clock: Clock, callback: Callable[[FitProgress], None] | None
) -> Callable[[FitProgress], None]:
    """A training callback that writes progress.json every WRITE_INTERVAL seconds and calls `callback`."""
    last_write = time.monotonic()
    _write(directory, clock, read(directory) or {})

    def on_progress(state: FitProgress) -> None:
        nonlocal last_write
        now = time.monotonic()
        if now - last_write >= WRITE_INTERVAL:
            last_write = now
            position = {"step": state.step, "steps": state.steps, "rate": state.steps_per_second}
            _write(directory, clock, position)
        if callback is not None:
            callback(state)

    return on_progress


def read(directory: Path) -> dict[str, Any] | None:
    """The content of progress.json; None where it does not exist or is unreadable."""
    try:
        content = json.loads((directory / NAME).read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _write(directory: Path, clock: Clock, position: Mapping[str, Any]) -> None:
    """Write progress.json; `position` has step, steps and rate, or lacks them before the first step."""
    content = {
        **{name: position.get(name) for name in ("step", "steps", "rate")},
        "seconds": round(clock.seconds, 2),
        "training": round(clock.training, 2),
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "time": time.time(),
    }
    write_atomic(directory / NAME, (json.dumps(content) + "\n").encode())
