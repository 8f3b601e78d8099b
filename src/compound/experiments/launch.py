"""Perform a grid of runs, several at once. If one fails or its process is killed, the others go on.

Runs that another command is working on come last. With one job the runs are performed one after another in
this process, with more in worker processes; or wherever another executor performs them, such as a cluster.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from compound.experiments.identity import Run
from compound.experiments.run_files import Damaged
from compound.experiments.runs import Result, read
from compound.experiments.scheduler import POLL_INTERVAL, Scheduler, WorkOf, attempt
from compound.experiments.workers import n_cores, run_in_workers, threads_per_job, torch_threads

# performs the unfinished runs of a scheduler: (scheduler, work of experiments, folder of data sets, jobs)
Executor = Callable[[Scheduler, WorkOf, Path | None, int], None]


class Failure(NamedTuple):
    run: Run
    reason: str


class GridResult(NamedTuple):
    """What `run_grid` returns."""

    results: list[Result]  # of the runs that finished, in the order of the grid
    failures: list[Failure]


def run_grid(
    runs: Sequence[Run],
    work_of: WorkOf,
    root: Path,
    data_dir: Path | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> GridResult:
    """Perform the unfinished runs, `jobs` at once (default: one per core); results and failures of all runs.

    `work_of` gives the work of an experiment by its name. Progress is shown on the terminal. An `executor`
    performs the runs elsewhere; it takes as many jobs as it has room for, unless `jobs` is given.
    """
    root.mkdir(parents=True, exist_ok=True)
    limit = len(runs) if executor else n_cores()
    jobs = max(1, min(jobs or limit, len(runs)))
    with Scheduler(runs, root) as scheduler:
        if executor is not None:
            executor(scheduler, work_of, data_dir, jobs)
        elif jobs == 1:
            with torch_threads(threads_per_job(1)):
                _run_in_process(scheduler, work_of, data_dir)
        else:
            run_in_workers(scheduler, work_of, data_dir, jobs)
    results = []
    for number, run in enumerate(runs):
        try:
            if number not in scheduler.failed:
                results.append(read(run, root))
        except Damaged as error:
            scheduler.failed[number] = str(error)
    failures = [Failure(runs[number], reason) for number, reason in sorted(scheduler.failed.items())]
    return GridResult(results, failures)


def _run_in_process(scheduler: Scheduler, work_of: WorkOf, data_dir: Path | None) -> None:
    """Perform the unfinished runs one after another in this process."""
    while scheduler.unfinished:
        number = scheduler.next()
        if number is None:
            time.sleep(POLL_INTERVAL)
        else:
            run = scheduler.runs[number]
            scheduler.handle(attempt(number, run, work_of, scheduler.root, data_dir, scheduler.handle))
