"""What a running run says of itself: how far it is, how fast, and the seconds that it took, former attempts included.

progress.json: step · steps · rate (steps per second) · seconds · training · pid · host · time
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compound.io.atomic import write_atomic
from compound.train.progress import FitProgress

NAME = "progress.json"
ALL_METHODS = 2.0  # seconds between two words


class Clock:
    """Seconds of a run, and those among them that went into training."""

    def __init__(self, seconds: float = 0.0, training: float = 0.0):
        self._begin = time.monotonic() - seconds
        self._training = training
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    @property
    def training(self) -> float:
        return self._training + (time.monotonic() - self._since if self._since is not None else 0.0)

    @contextmanager
    def train(self) -> Iterator[None]:
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._training, self._since = self.training, None


def clock(directory: Path) -> Clock:
    """Goes on from what a former attempt left."""
    former = read(directory) or {}
    return Clock(former.get("seconds", 0.0), former.get("training", 0.0))


def writer(
    directory: Path, own: Clock, callback: Callable[[FitProgress], None] | None
) -> Callable[[FitProgress], None]:
    """A `watch` that passes everything on and writes now and then."""
    last = time.monotonic()
    _write(directory, own, read(directory) or {})

    def told(seen: FitProgress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= ALL_METHODS:
            last = now
            _write(directory, own, {"step": seen.step, "steps": seen.steps, "rate": seen.steps_per_second})
        if callback is not None:
            callback(seen)

    return told


def read(directory: Path) -> dict[str, Any] | None:
    """The last word of a run, None where it said nothing that can be read."""
    try:
        found = json.loads((directory / NAME).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(directory: Path, own: Clock, at: dict[str, Any]) -> None:
    about = {
        "seconds": round(own.seconds, 2),
        "training": round(own.training, 2),
        "pid": os.getpid(),
        "host": socket.gethostname(),
    }
    words = {
        "step": at.get("step"),
        "steps": at.get("steps"),
        "rate": at.get("rate"),
        **about,
        "time": time.time(),
    }
    write_atomic(directory / NAME, (json.dumps(words) + "\n").encode())
