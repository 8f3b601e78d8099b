"""Worker processes of a grid. They stay alive between runs, since importing torch takes seconds.

A worker that dies is replaced, and its run resumes from its checkpoint, at most MAX_RETRIES times.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import torch

from compound.experiments.locks import Busy, locked
from compound.experiments.memory import keep_memory
from compound.experiments.run_files import write_failure
from compound.experiments.scheduler import POLL_INTERVAL, Failed, Message, Scheduler, Step, WorkOf, attempt

MAX_RETRIES = 2  # of a run whose worker was killed


class Worker(NamedTuple):
    process: BaseProcess
    connection: Connection


def run_in_workers(scheduler: Scheduler, work_of: WorkOf, data_dir: Path | None, jobs: int) -> None:
    """Perform the unfinished runs of a grid in `jobs` worker processes."""
    busy: dict[Connection, tuple[Worker, int]] = {}  # worker, and the number of the run it performs
    idle: list[Worker] = []
    deaths: Counter[int] = Counter()  # of workers, by number of the run
    try:
        while scheduler.unfinished:
            while len(busy) < jobs and (number := scheduler.next()) is not None:
                worker = (
                    idle.pop() if idle else _spawn(work_of, scheduler.root, data_dir, threads_per_job(jobs))
                )
                busy[worker.connection] = worker, number
                with suppress(OSError):  # a worker that died before: its connection reports that below
                    worker.connection.send((number, scheduler.runs[number]))
            for connection in wait(list(busy), POLL_INTERVAL):
                assert isinstance(connection, Connection)
                _receive(connection, busy, idle, deaths, scheduler)
    finally:  # unfinished runs resume from their checkpoints
        workers = [*idle, *(worker for worker, _ in busy.values())]
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.connection.close()


def _receive(
    connection: Connection,
    busy: dict[Connection, tuple[Worker, int]],
    idle: list[Worker],
    deaths: Counter[int],
    scheduler: Scheduler,
) -> None:
    """Receive a message from a busy worker, or notice its death; `busy`, `idle`, `deaths` are updated."""
    worker, number = busy[connection]
    try:
        message: Message = connection.recv()
    except (EOFError, OSError):
        del busy[connection]
        deaths[number] += 1
        _handle_exit(worker, number, deaths[number], scheduler)
        return
    if not isinstance(message, Step):
        del busy[connection]
        idle.append(worker)
    scheduler.handle(message)


def _spawn(work_of: WorkOf, root: Path, data_dir: Path | None, n_threads: int) -> Worker:
    """Start a worker process whose torch uses `n_threads` threads."""
    context = get_context("spawn")  # a forked torch may hang in its thread pool
    ours, theirs = context.Pipe()
    arguments = (theirs, work_of, root, data_dir, n_threads)
    process = context.Process(target=_worker_main, args=arguments, daemon=True)
    # read when torch is imported
    with _environment({"OMP_NUM_THREADS": str(n_threads), "MKL_NUM_THREADS": str(n_threads)}):
        process.start()
    theirs.close()
    return Worker(process, ours)


def _handle_exit(worker: Worker, number: int, deaths: int, scheduler: Scheduler) -> None:
    """Queue the run of a dead worker again, or record its failure after more than MAX_RETRIES deaths."""
    worker.process.join()
    worker.connection.close()
    code = worker.process.exitcode or 0
    reason = f"worker was killed by signal {-code}" if code < 0 else f"worker ended with code {code}"
    if deaths <= MAX_RETRIES:
        scheduler.log(f"{scheduler.runs[number]}: {reason}, is tried again")
        scheduler.retry(number)
        return
    directory = scheduler.root / scheduler.runs[number].key
    try:
        with locked(directory / "lock", wait=False):
            write_failure(directory, reason)
    except (Busy, OSError):
        pass  # another command works on it, or there is no directory to write to
    scheduler.handle(Failed(number, reason))


def _worker_main(
    connection: Connection, work_of: WorkOf, root: Path, data_dir: Path | None, n_threads: int
) -> None:
    """The main function of a worker: perform the runs that arrive, send messages about them.

    It returns when the parent process closes the connection.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the process group; the parent decides

    def send(message: Message) -> None:
        try:
            connection.send(message)
        except OSError:
            raise SystemExit(1) from None  # the parent is dead

    with torch_threads(n_threads):
        while True:
            try:
                number, run = connection.recv()
            except (EOFError, OSError):
                return
            send(attempt(number, run, work_of, root, data_dir, send))


def n_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_job(jobs: int) -> int:
    """Number of threads of each job: an equal part of the cores, at most OMP_NUM_THREADS."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    equal_part = max(1, n_cores() // jobs)
    return min(equal_part, int(limit)) if limit.isdecimal() and int(limit) else equal_part


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """A context manager: torch uses `count` threads inside. It calls `keep_memory`, which stays in effect."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    keep_memory()
    try:
        yield
    finally:
        torch.set_num_threads(previous)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """A context manager that sets environment variables, for processes that are started inside it."""
    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
