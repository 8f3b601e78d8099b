"""The queue of a grid of runs, messages about what happened to a run, and a function that tries one run."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from compound.experiments.identity import Run
from compound.experiments.locks import Busy, is_locked
from compound.experiments.run_files import error_line
from compound.experiments.runs import Work, is_finished, perform, read
from compound.train.progress import FitProgress

POLL_INTERVAL = 0.5  # seconds between two checks of runs that other processes hold
REPORT_INTERVAL = 0.1  # seconds between two messages about a step
# from the name of an experiment to its work; a module-level function, so that workers can import it
WorkOf = Callable[[str], Work]


class Step(NamedTuple):
    """A message: the run is at this training step."""

    number: int  # of the run in the grid
    step: int
    steps: int


class Finished(NamedTuple):
    number: int


class Held(NamedTuple):
    """A message: another process works on the run or on its fit."""

    number: int
    path: Path  # the locked file


class Failed(NamedTuple):
    number: int
    reason: str


Message = Step | Finished | Held | Failed


class Scheduler:
    """The queue of unfinished runs, and their progress bars on the terminal."""

    def __init__(self, runs: Sequence[Run], root: Path):
        self.runs = runs
        self.root = root
        self.failed: dict[int, str] = {}  # number -> reason
        self._queue = deque(number for number, run in enumerate(runs) if not is_finished(run, root))
        self._held: dict[int, Path] = {}  # number -> file that another process has locked
        self._unfinished = set(self._queue)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=Console(stderr=True))
        n_finished = len(runs) - len(self._unfinished)
        self._all_runs = self._bars.add_task("all runs", total=len(runs), completed=n_finished)
        add = partial(self._bars.add_task, total=None, start=False, visible=False)
        self._tasks = [add(escape(str(run))) for run in runs]

    def __enter__(self) -> "Scheduler":
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    @property
    def unfinished(self) -> bool:
        """Whether some run has neither finished nor failed."""
        return bool(self._unfinished)

    def next(self) -> int | None:
        """Take the number of the next run from the queue; None if none can be started now.

        Runs whose lock another process has released are put back into the queue before.
        """
        for number in [number for number, path in self._held.items() if not is_locked(path)]:
            del self._held[number]
            self._queue.append(number)
        return self._queue.popleft() if self._queue else None

    def retry(self, number: int) -> None:
        """Put a run back, at the head of the queue."""
        self._queue.appendleft(number)

    def handle(self, message: Message) -> None:
        """Update the queue and the progress bars after a message about a run."""
        task = self._tasks[message.number]
        if isinstance(message, Step):
            self._bars.start_task(task)
            self._bars.update(task, completed=message.step, total=message.steps, visible=True)
            return
        self._bars.update(task, visible=False)
        if isinstance(message, Held):
            self._held[message.number] = message.path
            return
        run = self.runs[message.number]
        if isinstance(message, Failed):
            self.failed[message.number] = message.reason
            self.log(f"{run}: failed: {message.reason}")
        else:
            self.log(f"{run}: {read(run, self.root).provenance['seconds']:.0f} s")
        self._unfinished.remove(message.number)
        self._bars.advance(self._all_runs)

    def log(self, line: str) -> None:
        """Print a line above the progress bars."""
        self._bars.console.print(line, highlight=False, markup=False, soft_wrap=True)


def attempt(
    number: int, run: Run, work_of: WorkOf, root: Path, data_dir: Path | None, send: Callable[[Message], None]
) -> Message:
    """Perform one run, number `number` of the grid; `send` is called with a Step as training proceeds.

    Returns Finished, Failed, or Held if another process works on the same run or fit.
    """
    last_report = 0.0

    def on_progress(state: FitProgress) -> None:
        nonlocal last_report
        now = time.monotonic()
        if now - last_report > REPORT_INTERVAL or state.step == state.steps:
            last_report = now
            send(Step(number, state.step, state.steps))

    try:
        perform(run, work_of(run.experiment), root, data_dir, on_progress, wait=False)
    except Busy as error:
        return Held(number, error.path)
    except Exception as error:
        return Failed(number, error_line(error))
    return Finished(number)
