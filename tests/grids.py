"""A small grid of real fits, some of which fail or are killed:

    python tests/grids.py FOLDER JOBS RUNS STEPS [RAY_ADDRESS [STORAGE]]

Workers are processes of their own, so what they do must be importable there.
"""

import errno
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from compound.experiments import runs
from compound.experiments.identity import Run
from compound.experiments.launch import GridResult, run_grid
from compound.experiments.runs import Outcome, RunContext, Work, fit_run
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import Task, make_dataset

TASK = Task("regression", 1)
OPTIONS = {"widths": (4,), "hyper": (3,), "members": 1}


def grid(count: int, steps: int, name: str = "trains") -> list[Run]:
    return [
        Run(name, "ml-cdn", "line", seed, OPTIONS, asdict(TrainConfig(steps, n_evals=0)))
        for seed in range(count)
    ]


def trains(run: Run, context: RunContext) -> Outcome:
    """Fits a line, with a checkpoint many times a second."""
    with (context.directory / "begun").open("a") as begun:
        begun.write("x")
    x = torch.linspace(-1, 1, 12).unsqueeze(1)
    with mock.patch.object(runs, "fit", partial(fit, save_every=0.3)):
        model = fit_run(run, context, make_dataset(x, 2 * x, TASK), TASK)
    mean = model.predict(x, named_generator(run.seed), 2).mean
    return Outcome({"sum": mean.sum().item()}, {"mean": mean.numpy()})


def fails(run: Run, context: RunContext) -> Outcome:
    """Where the seed is 1, as long as the folder has no file `fixed`."""
    if run.seed == 1 and not (context.directory.parent / "fixed").exists():
        raise ArithmeticError("seed 1 is unlucky\nand has a second line")
    return trains(run, context)


def dies(run: Run, context: RunContext) -> Outcome:
    """Seed 0 is killed at every attempt, seed 1 at its first."""
    attempts = context.directory / "attempts"
    attempts.write_text((attempts.read_text() if attempts.exists() else "") + "x")
    first = attempts.read_text() == "x"
    if run.seed == 0 or (run.seed == 1 and first):
        os.kill(os.getpid(), signal.SIGKILL)
    return trains(run, context)


def alone(function: Callable[..., object], *arguments: object) -> None:
    """Call in a forked process, with one thread: torch's thread pool is not forked along."""
    torch.set_num_threads(1)
    function(*arguments)


def fills(run: Run, context: RunContext) -> Outcome:
    """Where the seed is 1, finds the disk full, as long as the folder has no file `fixed`."""
    if run.seed == 1 and not (context.directory.parent / "fixed").exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(context.directory / "arrays.npz"))
    return trains(run, context)


def work_of(name: str) -> Work:
    return {"trains": trains, "fails": fails, "dies": dies, "fills": fills}[name]


def memory_of(run: Run) -> int:
    return 300 * 2**20


def grid_on_ray(
    ray: Any, folder: Path, jobs: int, count: int, steps: int, storage: str = "", name: str = "trains"
) -> GridResult:
    """Perform a grid on the cluster that this process is connected to."""
    from compound.ray.grid import RayExecutor
    from compound.ray.storage import Storage

    files = Storage(storage, copy_interval=0.3) if storage else None
    executor = RayExecutor(ray, memory_of, 1, files)
    return run_grid(grid(count, steps, name), work_of, folder, None, jobs, executor)


def main(folder: str, jobs: str, count: str, steps: str, address: str = "", storage: str = "") -> int:
    if not address:
        return len(run_grid(grid(int(count), int(steps)), work_of, Path(folder), None, int(jobs)).failures)
    from compound.ray.cluster import connected

    with connected(address) as ray:
        return len(grid_on_ray(ray, Path(folder), int(jobs), int(count), int(steps), storage).failures)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except ValueError as error:
        sys.exit(f"Error: {error}")
