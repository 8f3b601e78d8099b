"""Perform the runs of a grid on a Ray cluster: each run is a task with its own cores and memory.

Nodes read and write run directories in a folder that all of them share, or through a `Storage`. A run whose
worker or node dies is tried again elsewhere and resumes from its checkpoint. Locks of files end with their
process, so a run that an orphan still works on comes last. When the driver dies, Ray ends its workers, and
the same command finds the finished runs and checkpoints.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from compound.experiments import progress
from compound.experiments.identity import Run
from compound.experiments.locks import Busy, locked
from compound.experiments.run_files import write_failure
from compound.experiments.runs import is_finished
from compound.experiments.scheduler import (
    POLL_INTERVAL,
    Failed,
    Finished,
    Message,
    Scheduler,
    Step,
    WorkOf,
    attempt,
)
from compound.experiments.workers import MAX_RETRIES, torch_threads
from compound.io.paths import check_folder
from compound.ray.cluster import check_fits, check_nodes, first_line
from compound.ray.storage import Storage

PROGRESS_INTERVAL = 1.0  # seconds between two looks at the progress of running runs
MAX_SUBMITTED = 1000  # tasks that Ray holds at once
MAX_LOST_NODES = 20  # deaths of nodes that one run survives: it may be what kills them
MemoryOf = Callable[[Run], int]  # the bytes that a run needs


class RunRequest(NamedTuple):
    """What a task needs to know, besides its run."""

    work_of: WorkOf
    root: Path
    data_dir: Path | None
    threads: int
    storage: Storage | None
    command: tuple[str, ...]  # of the driver, for the provenance of results


def perform_run(number: int, run: Run, request: RunRequest) -> Message:
    """A task: perform one run, in the shared folder, or in a scratch folder whose files go to the storage."""
    sys.argv = list(request.command)  # as processes of multiprocessing have it
    with torch_threads(request.threads):
        if request.storage is None:
            return attempt(number, run, request.work_of, request.root, request.data_dir, _ignore)
        with request.storage.scratch(run) as root:
            return attempt(number, run, request.work_of, root, request.data_dir, _ignore)


def _ignore(message: Message) -> None:
    """Messages about steps are not sent: the driver reads progress.json."""


class RayExecutor(NamedTuple):
    """Performs the runs of a grid as tasks of a cluster: an executor for `compound.experiments.run_grid`."""

    ray: Any  # the module, connected by `compound.ray.cluster.connected`
    memory_of: MemoryOf
    cores: int = 1  # of each run, which has as many threads
    storage: Storage | None = None  # None: the nodes share the folder of the runs

    def __call__(self, scheduler: Scheduler, work_of: WorkOf, data_dir: Path | None, jobs: int) -> None:
        """Perform the unfinished runs, at most `jobs` at once; ValueError, before any, if a node cannot."""
        root, data_dir = scheduler.root.absolute(), data_dir and data_dir.absolute()
        unfinished = [run for run in scheduler.runs if not is_finished(run, root)]
        if not unfinished:
            return
        check_folder(root)
        check_fits(self.ray, self.cores, max(map(self.memory_of, unfinished)))
        self._check_nodes(root, data_dir)
        request = RunRequest(work_of, root, data_dir, self.cores, self.storage, tuple(sys.argv))
        _Grid(self, scheduler, self.ray.put(request), min(jobs, MAX_SUBMITTED)).perform()

    def _check_nodes(self, root: Path, data_dir: Path | None) -> None:
        """Raise ValueError if a node does not see the folders, or has other versions."""
        paths = () if data_dir is None else (str(data_dir),)
        if self.storage is not None:
            check_nodes(self.ray, paths)
            return
        marker = root / f".shared-{time.time_ns():x}"  # a folder with the name of `root` may exist by chance
        marker.touch()
        try:
            check_nodes(self.ray, (str(marker), *paths))
        except ValueError as error:
            raise ValueError(str(error).replace(str(marker), str(root))) from error
        finally:
            marker.unlink(missing_ok=True)


class _Grid:
    """A grid that is being performed: its scheduler, and the tasks that were submitted."""

    def __init__(self, executor: RayExecutor, scheduler: Scheduler, request: Any, jobs: int):
        self.ray = executor.ray
        self.executor = executor
        self.storage = executor.storage
        self.scheduler = scheduler
        self.request = request  # reference
        self.jobs = jobs
        self.task = self.ray.remote(max_retries=0)(perform_run)
        self.busy: dict[Any, int] = {}  # reference of a task -> number of its run
        self.deaths: Counter[tuple[int, str]] = Counter()  # by number of the run, and what died

    def perform(self) -> None:
        """Perform all runs; tasks are cancelled where an error or Ctrl-C ends this."""
        shown = 0.0
        try:
            while self.scheduler.unfinished:
                self._submit()
                if not self.busy:  # other processes hold the rest
                    time.sleep(POLL_INTERVAL)
                    continue
                ready, _ = self.ray.wait(list(self.busy), num_returns=1, timeout=POLL_INTERVAL)
                for reference in ready:
                    self._receive(reference, self.busy.pop(reference))
                if time.monotonic() - shown > PROGRESS_INTERVAL:
                    shown = time.monotonic()
                    self._show_progress()
        finally:  # unfinished runs resume from their checkpoints
            for reference in self.busy:
                with suppress(self.ray.exceptions.RayError):
                    self.ray.cancel(reference, force=True)

    def _submit(self) -> None:
        """Submit runs as tasks while there is room. Runs of one fit follow each other."""
        fits = {self.scheduler.runs[number].fit_key for number in self.busy.values()}
        waiting = []
        while len(self.busy) < self.jobs and (number := self.scheduler.next()) is not None:
            run = self.scheduler.runs[number]
            if run.fit_key in fits:
                waiting.append(number)
            elif self.storage is not None and self.storage.is_finished(run):
                self._finish(Finished(number))
            else:
                fits.add(run.fit_key)
                options = {"num_cpus": self.executor.cores, "memory": self.executor.memory_of(run)}
                reference = self.task.options(name=str(run), **options).remote(number, run, self.request)
                self.busy[reference] = number
        for number in reversed(waiting):
            self.scheduler.retry(number)

    def _receive(self, reference: Any, number: int) -> None:
        """Handle the message of a task that has ended, or the death of its worker or node."""
        errors = self.ray.exceptions
        try:
            self._finish(self.ray.get(reference))
        except errors.RayTaskError as error:  # outside of the work of the run: the storage, a full disk
            self.scheduler.handle(Failed(number, first_line(error.cause or error)))
        except (errors.LocalRayletDiedError, errors.RaySystemError) as error:
            raise ValueError(
                "the Ray cluster is gone: start it again, the same command resumes the grid"
            ) from error
        except errors.NodeDiedError:
            self._retry(number, "node", MAX_LOST_NODES)
        except errors.RayError:
            self._retry(number, "worker", MAX_RETRIES)

    def _finish(self, message: Message) -> None:
        """Handle the last message about a run; its result is fetched from the storage."""
        if self.storage is not None and isinstance(message, Finished):
            self.storage.fetch(self.scheduler.runs[message.number], self.scheduler.root)
        self.scheduler.handle(message)

    def _retry(self, number: int, what: str, limit: int) -> None:
        """Queue the run again after a death; record its failure after more than `limit` of them."""
        run = self.scheduler.runs[number]
        reason = f"{what} died"
        self.deaths[number, what] += 1
        if self.deaths[number, what] <= limit:
            self.scheduler.log(f"{run}: {reason}, is tried again")
            self.scheduler.retry(number)
            return
        directory = self.scheduler.root / run.key
        with suppress(Busy, OSError):  # another command works on it, or the folder cannot be written
            directory.mkdir(exist_ok=True)
            with locked(directory / "lock", wait=False):
                write_failure(directory, reason)
        self.scheduler.handle(Failed(number, reason))

    def _show_progress(self) -> None:
        """Update the bars of running runs from their progress files."""
        for number in self.busy.values():
            run = self.scheduler.runs[number]
            root = self.scheduler.root
            state = (self.storage.progress(run) if self.storage else progress.read(root / run.key)) or {}
            if state.get("step") and state.get("steps"):
                self.scheduler.handle(Step(number, state["step"], state["steps"]))
