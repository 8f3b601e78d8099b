"""Progress of a fit: what a callback receives, and a progress bar."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

INTERVAL = 0.1  # seconds between calls of a callback
QUIET_SECONDS = 2  # before a progress bar appears


class FitProgress(NamedTuple):
    """The progress of a fit, as a callback receives it."""

    step: int  # steps done
    steps: int  # steps at most
    nll: float  # of the last batch
    held_out: float  # NLL of the last evaluation; NaN before the first
    steps_per_second: float


FitCallback = Callable[[FitProgress], None]


class ProgressReporter:
    """Calls a callback at most every INTERVAL seconds, and after the last step.

    `steps` is the number of the last step, `step` that of the steps already done.
    """

    def __init__(self, callback: FitCallback, steps: int, step: int):
        self.callback = callback
        self.steps = steps
        self.last_step = step
        self.last_time = time.monotonic()

    def is_due(self, now: float, step: int) -> bool:
        """Whether the callback is to be called at the time `now`, of `time.monotonic`."""
        return now - self.last_time >= INTERVAL or step == self.steps

    def report(self, now: float, step: int, nll: float, held_out: float) -> None:
        """Call the callback, with the speed since the last call."""
        speed = (step - self.last_step) / max(now - self.last_time, 1e-9)
        self.callback(FitProgress(step, self.steps, nll, held_out, speed))
        self.last_time = now
        self.last_step = step


@contextmanager
def progress_bar(title: str) -> Iterator[FitCallback]:
    """A callback for `fit` that shows a progress bar on stderr; fits of less than two seconds show none."""
    from rich import progress
    from rich.console import Console

    speed = progress.TextColumn("{task.fields[speed]:.0f} steps/s  NLL {task.fields[nll]:.3f}")
    title_column, count = progress.TextColumn(title, markup=False), progress.MofNCompleteColumn()
    columns = (title_column, progress.BarColumn(), count, speed, progress.TimeRemainingColumn())
    # refreshed by the callback: a thread for it would take time from the training
    bar = progress.Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    task = bar.add_task(title, speed=0.0, nll=math.nan)
    begin = time.monotonic()

    def callback(state: FitProgress) -> None:
        if time.monotonic() - begin < QUIET_SECONDS:
            return
        bar.start()
        nll = state.nll if math.isnan(state.held_out) else state.held_out
        speed = state.steps_per_second
        bar.update(task, completed=state.step, total=state.steps, speed=speed, nll=nll, refresh=True)

    try:
        yield callback
    finally:
        bar.stop()
