"""Kill workers, nodes and drivers of a grid on Ray at random moments; compare with an undisturbed grid."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import grids
import numpy as np
from clusters import TestCluster
from experiments.test_faults import modification_times, unreadable_files, written

from compound.experiments.runs import Result, read

VICTIMS = ("worker", "node", "driver")


def start(cluster: TestCluster, root: Path, runs: int, steps: int, storage: str = "") -> subprocess.Popen:
    arguments = [str(root), "2", str(runs), str(steps), cluster.address, *([storage] if storage else [])]
    return subprocess.Popen(
        [sys.executable, grids.__file__, *arguments],
        env=cluster.environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill(cluster: TestCluster, driver: subprocess.Popen, victim: str, chance: random.Random) -> bool:
    """Kill one; False where there is nothing to kill."""
    if victim == "node":
        cluster.kill_node()
        time.sleep(chance.uniform(0.0, 2.0))
        cluster.add_node()
        return True
    pids = cluster.workers() if victim == "worker" else [driver.pid]
    if not pids or driver.poll() is not None:
        return False
    try:
        os.kill(chance.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def wait_random(driver: subprocess.Popen, root: Path, chance: random.Random) -> None:
    """Wait for a random moment: while the driver is connecting, or after some files have changed."""
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        before, until = modification_times(root), time.monotonic() + 60
        while driver.poll() is None and time.monotonic() < until and modification_times(root) == before:
            time.sleep(0.02)
    time.sleep(chance.uniform(0.0, 1.0))


def kill_and_compare(
    cluster: TestCluster,
    folder: Path,
    kills: list[str],
    calm: list[Result],
    steps: int,
    chance: random.Random,
    storage: bool = False,
) -> int:
    """Perform grids until all `kills` have happened, each of them once; how many grids that took.

    `calm` are the results of an undisturbed local grid of as many runs.
    """
    left = list(kills)
    grid = 0
    while left:
        root, first = folder / f"grid {grid}", {}
        shared = (folder / f"storage {grid}").as_uri() if storage else ""
        grid += 1
        while True:  # until this grid ends
            driver = start(cluster, root, len(calm), steps, shared)
            while driver.poll() is None:
                if left:
                    wait_random(driver, root, chance)
                    if driver.poll() is None and kill(cluster, driver, left[-1], chance):
                        print("killed", left.pop(), flush=True)
                else:
                    driver.wait(900)
                assert not unreadable_files(root)
                for path, mark in written(root).items():
                    assert first.setdefault(path, mark) == mark, f"{path} was written twice"
            if driver.returncode == 0:
                break
        compare(root, calm, first)
    return grid


def compare(root: Path, calm: list[Result], first: dict[Path, tuple[int, int]]) -> None:
    """Every run has one result, with the bits of the calm grid, and nothing half written is left."""
    assert len(written(root)) == len(calm)
    assert first.items() <= written(root).items()
    for before in calm:
        after = read(before.run, root)
        assert after.metrics == before.metrics
        assert all(np.array_equal(after.arrays[name], array) for name, array in before.arrays.items())
        home = root / before.run.key
        assert not [path for path in home.glob(".*") if path.name.endswith(".new")]
        assert not (home / "failure.json").exists()
