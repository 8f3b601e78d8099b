"""A grid of runs, several at once. A run that fails, or whose worker is killed, takes no other down.

Workers are processes that stay: loading torch takes seconds. A worker that dies is replaced and its run goes on from its
checkpoint, TRIES times. Runs that another command is working on are left for last.
"""

import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from compound.experiments.memory import keep_memory
from compound.experiments.runs import (
    Busy,
    Damaged,
    Result,
    Run,
    Work,
    finished,
    held,
    locked,
    perform,
    read,
    reason,
    write_failure,
)
from compound.train.progress import FitProgress

TRIES = 2  # more attempts at a run whose worker was killed
PAUSE = 0.5  # seconds between two looks at runs that others hold
WorkOf = Callable[
    [str], Work
]  # the work of an experiment, by its name; found by import in a worker, so a function of a module


class Failure(NamedTuple):
    run: Run
    reason: str


class Grid(NamedTuple):
    results: list[Result]  # of the runs that ended, in the order they were asked for
    failures: list[Failure]


class Step(NamedTuple):
    number: int  # of the run in the grid
    step: int
    steps: int


class Ended(NamedTuple):
    number: int


class Held(NamedTuple):
    number: int
    path: Path  # the lock of the other process


class Failed(NamedTuple):
    number: int
    reason: str


Message = Step | Ended | Held | Failed


def work_through(
    runs: Sequence[Run], work_of: WorkOf, root: Path, data_dir: Path | None = None, jobs: int | None = None
) -> Grid:
    """All runs, `jobs` at once (one per core where not said; 1 works in this very process), with progress on the terminal."""
    root.mkdir(parents=True, exist_ok=True)
    jobs = max(1, min(jobs or cores(), len(runs)))
    with _Board(runs, root) as board:
        if jobs == 1:
            with _threads(threads(1)):
                _here(board, work_of, data_dir)
        else:
            _in_workers(board, work_of, data_dir, jobs)
    results = []
    for number, run in enumerate(runs):
        try:
            if number not in board.failed:
                results.append(read(run, root))
        except Damaged as error:
            board.failed[number] = str(error)
    return Grid(results, [Failure(runs[number], words) for number, words in sorted(board.failed.items())])


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads(jobs: int) -> int:
    """Threads of each job: all of them together take no more than the cores, nor more than OMP_NUM_THREADS each."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    share = max(1, cores() // jobs)
    return min(share, int(asked)) if asked.isdecimal() and int(asked) else share


class _Board:
    """What is still to be done, and the bars on the terminal."""

    def __init__(self, runs: Sequence[Run], root: Path):
        self.runs, self.root = runs, root
        self.failed: dict[int, str] = {}
        self._waiting = deque(number for number, run in enumerate(runs) if not finished(run, root))
        self._parked: dict[int, Path] = {}  # held by others
        self._left = set(self._waiting)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=Console(stderr=True))
        self._every = self._bars.add_task("all runs", total=len(runs), completed=len(runs) - len(self._left))
        self._tasks = [
            self._bars.add_task(escape(str(run)), total=None, start=False, visible=False) for run in runs
        ]

    def __enter__(self) -> "_Board":
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    @property
    def left(self) -> bool:
        return bool(self._left)

    def next(self) -> int | None:
        """A run to begin now, None while others hold all that is left."""
        for number in [number for number, path in self._parked.items() if not held(path)]:
            del self._parked[number]
            self._waiting.append(number)
        return self._waiting.popleft() if self._waiting else None

    def again(self, number: int) -> None:
        self._waiting.appendleft(number)

    def told(self, news: Message) -> None:
        task = self._tasks[news.number]
        if isinstance(news, Step):
            self._bars.start_task(task)
            self._bars.update(task, completed=news.step, total=news.steps, visible=True)
            return
        self._bars.update(task, visible=False)
        if isinstance(news, Held):
            self._parked[news.number] = news.path
            return
        run = self.runs[news.number]
        if isinstance(news, Failed):
            self.failed[news.number] = news.reason
            self.say(f"{run}: failed: {news.reason}")
        else:
            self.say(f"{run}: {read(run, self.root).record['seconds']:.0f} s")
        self._left.remove(news.number)
        self._bars.advance(self._every)

    def say(self, words: str) -> None:
        self._bars.console.print(words, highlight=False, markup=False, soft_wrap=True)


def _here(board: _Board, work_of: WorkOf, data_dir: Path | None) -> None:
    while board.left:
        number = board.next()
        if number is None:
            time.sleep(PAUSE)
        else:
            board.told(_attempt(number, board.runs[number], work_of, board.root, data_dir, board.told))


def _attempt(
    number: int, run: Run, work_of: WorkOf, root: Path, data_dir: Path | None, tell: Callable[[Message], None]
) -> Message:
    last = 0.0

    def watch(seen: FitProgress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 0.1 or seen.step == seen.steps:
            last = now
            tell(Step(number, seen.step, seen.steps))

    try:
        perform(run, work_of(run.experiment), root, data_dir, watch, wait=False)
    except Busy as error:
        return Held(number, error.path)
    except Exception as error:
        return Failed(number, reason(error))
    return Ended(number)


class _Worker(NamedTuple):
    process: BaseProcess
    connection: Connection


def _in_workers(board: _Board, work_of: WorkOf, data_dir: Path | None, jobs: int) -> None:
    busy: dict[Connection, tuple[_Worker, int]] = {}
    idle: list[_Worker] = []
    deaths: Counter[int] = Counter()
    try:
        while board.left:
            while len(busy) < jobs and (number := board.next()) is not None:
                worker = idle.pop() if idle else _hire(work_of, board.root, data_dir, threads(jobs))
                busy[worker.connection] = worker, number
                with suppress(OSError):  # it died before: its end of the line says so below
                    worker.connection.send((number, board.runs[number]))
            for connection in wait(list(busy), PAUSE):
                assert isinstance(connection, Connection)
                worker, number = busy[connection]
                try:
                    news = connection.recv()
                except (EOFError, OSError):
                    del busy[connection]
                    deaths[number] += 1
                    _bury(worker, number, deaths[number], board)
                    continue
                if not isinstance(news, Step):
                    del busy[connection]
                    idle.append(worker)
                board.told(news)
    finally:  # what is unfinished goes on from its checkpoint
        everyone = [*idle, *(worker for worker, _ in busy.values())]
        for worker in everyone:
            worker.process.kill()
        for worker in everyone:
            worker.process.join()
            worker.connection.close()


def _hire(work_of: WorkOf, root: Path, data_dir: Path | None, count: int) -> _Worker:
    context = get_context("spawn")  # a forked torch may hang in its thread pool
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work_of, root, data_dir, count), daemon=True)
    with _environment(
        {"OMP_NUM_THREADS": str(count), "MKL_NUM_THREADS": str(count)}
    ):  # read when torch is loaded
        process.start()
    theirs.close()
    return _Worker(process, ours)


def _bury(worker: _Worker, number: int, deaths: int, board: _Board) -> None:
    worker.process.join()
    worker.connection.close()
    code = worker.process.exitcode or 0
    words = f"worker was killed by signal {-code}" if code < 0 else f"worker ended with code {code}"
    if deaths <= TRIES:
        board.say(f"{board.runs[number]}: {words}, is tried again")
        board.again(number)
        return
    directory = board.root / board.runs[number].key
    try:
        with locked(directory / "lock", wait=False):
            write_failure(directory, words)
    except (Busy, OSError):
        pass  # another command has taken it up, or there is no directory to write to
    board.told(Failed(number, words))


def _serve(connection: Connection, work_of: WorkOf, root: Path, data_dir: Path | None, count: int) -> None:
    """A worker's life: take a run, work, say how it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver decides

    def tell(news: Message) -> None:
        try:
            connection.send(news)
        except OSError:
            raise SystemExit(1) from None  # the driver is dead: nobody waits for the rest

    with _threads(count):
        while True:
            try:
                number, run = connection.recv()
            except (EOFError, OSError):
                return
            tell(_attempt(number, run, work_of, root, data_dir, tell))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    former = torch.get_num_threads()
    torch.set_num_threads(count)
    keep_memory()
    try:
        yield
    finally:
        torch.set_num_threads(former)


@contextmanager
def _environment(words: dict[str, str]) -> Iterator[None]:
    """These variables for what is started meanwhile."""
    former = {name: os.environ.get(name) for name in words}
    os.environ.update(words)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
