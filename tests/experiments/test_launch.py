"""A grid of runs, several at once: failures, killed workers, two commands in one folder, Ctrl-C."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import grids
import numpy as np
import pytest
import torch

from compound.experiments import workers
from compound.experiments.launch import run_grid
from compound.experiments.locks import Busy, locked
from compound.experiments.run_files import FAILURE
from compound.experiments.runs import perform
from compound.experiments.workers import threads_per_job

SCRIPT = Path(grids.__file__)


def test_failures_and_killed_workers_do_not_affect_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    _, failing = grids.grid(2, 20, "fails")
    killed, killed_once = grids.grid(2, 20, "dies")
    ordinary = grids.grid(3, 50)
    runs = [killed, failing, *ordinary, killed_once]
    done = run_grid(runs, grids.work_of, tmp_path / "two", None, 2)
    reasons = [(killed, "worker was killed by signal 9"), (failing, "ArithmeticError: seed 1 is unlucky")]
    assert done.failures == reasons
    for run, reason in reasons:
        failure = json.loads((tmp_path / "two" / run.key / FAILURE).read_text())
        assert failure["reason"] == reason and {"time", "record"} <= set(failure)
    assert any("in fails" in line for line in failure["traceback"])
    assert [len((tmp_path / "two" / run.key / "attempts").read_text()) for run in (killed, killed_once)] == [
        3,
        2,
    ]
    assert [result.run for result in done.results] == [*ordinary, killed_once]
    alone = run_grid(ordinary, grids.work_of, tmp_path / "one", None, 1).results
    for one, other in zip(alone, done.results, strict=False):  # the number of jobs changes nothing
        assert one.metrics == other.metrics and np.array_equal(one.arrays["mean"], other.arrays["mean"])


def test_failed_run_is_tried_again_later(tmp_path: Path):
    runs = grids.grid(3, 20, "fails")
    done = run_grid(runs, grids.work_of, tmp_path, None, 1)
    assert [result.run.seed for result in done.results] == [0, 2] and [
        failure.run.seed for failure in done.failures
    ] == [1]
    assert (tmp_path / runs[1].key / FAILURE).exists()
    (tmp_path / "fixed").touch()
    again = run_grid(runs, grids.work_of, tmp_path, None, 1)
    assert [result.run.seed for result in again.results] == [0, 1, 2] and not again.failures
    assert not (tmp_path / runs[1].key / FAILURE).exists()
    assert (tmp_path / runs[0].key / "begun").read_text() == "x"  # the others were not repeated


def test_jobs_share_the_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "n_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_per_job(jobs) for jobs in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert [threads_per_job(jobs) for jobs in (1, 8)] == [2, 1]


def test_threads_are_as_before_afterwards(tmp_path: Path):
    before = torch.get_num_threads()
    run_grid(grids.grid(1, 5), grids.work_of, tmp_path, None, 1)
    assert torch.get_num_threads() == before


def test_run_that_another_command_works_on_comes_last(tmp_path: Path):
    runs = grids.grid(3, 20)
    (tmp_path / runs[0].key).mkdir(parents=True)
    order = []

    def work_of(name: str):
        return lambda run, context: (order.append(run.seed), grids.trains(run, context))[1]

    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with locked(tmp_path / runs[0].key / "lock"):
            inside.set()
            leave.wait(20)

    holder = threading.Thread(target=other)
    holder.start()
    inside.wait(20)
    with pytest.raises(Busy):
        perform(runs[0], grids.trains, tmp_path, wait=False)
    threading.Timer(1.0, leave.set).start()
    done = run_grid(runs, work_of, tmp_path, None, 1)
    holder.join()
    assert order == [1, 2, 0] and len(done.results) == 3


def test_two_commands_share_a_grid_and_do_nothing_twice(tmp_path: Path):
    runs = grids.grid(4, 100)
    context = multiprocessing.get_context("spawn")  # a forked torch may hang in its thread pool
    both = [context.Process(target=run_grid, args=(runs, grids.work_of, tmp_path, None, 1)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    assert [(tmp_path / run.key / "begun").read_text() for run in runs] == ["x"] * 4


def test_run_whose_fit_another_command_works_on_is_busy(tmp_path: Path):
    runs = grids.grid(2, 20)
    home = tmp_path / "fits" / runs[0].fit_key
    home.mkdir(parents=True)
    with locked(home / "lock"):
        with pytest.raises(Busy):
            perform(runs[0], grids.trains, tmp_path, wait=False)
        assert perform(runs[1], grids.trains, tmp_path, wait=False).run == runs[1]
    assert not (tmp_path / runs[0].key / FAILURE).exists()  # waiting is no failure
    assert perform(runs[0], grids.trains, tmp_path, wait=False).run == runs[0]


def test_ctrl_c_ends_driver_and_workers_at_once(tmp_path: Path):
    arguments = [sys.executable, str(SCRIPT), str(tmp_path / "runs"), "2", "2", "1000000"]
    # a shell that started these tests in the background made them deaf to SIGINT, and children inherit that
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    driver = subprocess.Popen(
        arguments, start_new_session=True, stderr=subprocess.PIPE, text=True, preexec_fn=heard
    )
    try:
        progress = [tmp_path / "runs" / run.key / "progress.json" for run in grids.grid(2, 1_000_000)]
        until = time.monotonic() + 120
        while not all(path.exists() for path in progress) and time.monotonic() < until:
            time.sleep(0.1)
        workers = [json.loads(path.read_text())["pid"] for path in progress]
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
        _, stderr = driver.communicate(timeout=30)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode not in (0, None)
    assert stderr.count("KeyboardInterrupt") <= 1  # the parent process; the command turns it into a message
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
