"""A grid on a Ray cluster of two nodes: same results as locally, whatever dies; errors before any work."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grids
import pytest
from clusters import TestCluster
from ray_kills import VICTIMS, compare, kill_and_compare, start

from compound.experiments.identity import Run

RUNS, STEPS = 4, 400


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list:
    """Results of an undisturbed local grid."""
    folder = tmp_path_factory.mktemp("calm")
    return grids.run_grid(grids.grid(RUNS, STEPS), grids.work_of, folder, None, 1).results


def finish(cluster: TestCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a grid to its end."""
    command = [sys.executable, grids.__file__, *arguments]
    return subprocess.run(command, env=cluster.environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("storage", [False, True], ids=["shared folder", "storage"])
def test_kills_change_nothing(cluster: TestCluster, tmp_path: Path, calm: list, storage: bool):
    seed = int(os.environ.get("COMPOUND_FAULTS", time.time_ns() % 10**6))
    print(f"COMPOUND_FAULTS={seed} repeats the choices")
    chance = random.Random(seed)
    kills = ["worker"] if storage else chance.sample(VICTIMS, len(VICTIMS))
    kill_and_compare(cluster, tmp_path, kills, calm, STEPS, chance, storage)


def test_interrupt_leaves_a_grid_that_resumes_and_no_task(cluster: TestCluster, tmp_path: Path, calm: list):
    driver = start(cluster, tmp_path, RUNS, STEPS)
    until = time.monotonic() + 60
    while not cluster.workers() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.5)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(30) == 130
    until = time.monotonic() + 15
    while (left := cluster.workers()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left
    assert finish(cluster, str(tmp_path), "2", str(RUNS), str(STEPS), cluster.address).returncode == 0
    compare(tmp_path, calm, {})


def test_one_failure_is_reported_and_the_others_finish(cluster: TestCluster, tmp_path: Path):
    arguments = (str(tmp_path), "2", "3", "20", cluster.address, "", "fills")
    done = finish(cluster, *arguments)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert len(list(tmp_path.glob("*/metrics.json"))) == 2
    (tmp_path / "fixed").touch()
    assert finish(cluster, *arguments).returncode == 0


def test_run_that_kills_its_workers_fails_alone(cluster: TestCluster, tmp_path: Path):
    done = finish(cluster, str(tmp_path), "2", "3", "20", cluster.address, "", "dies")
    assert done.returncode == 1
    assert "worker died" in done.stderr
    assert len(list(tmp_path.glob("*/metrics.json"))) == 2


def test_run_that_no_node_can_hold_is_refused(cluster: TestCluster, tmp_path: Path):
    code = (
        "import sys, grids\nfrom pathlib import Path\n"
        "from compound.ray.cluster import connected\nfrom compound.ray.grid import RayExecutor\n"
        f"with connected({cluster.address!r}) as ray:\n"
        "    executor = RayExecutor(ray, lambda run: 10**12)\n"
        f"    grids.run_grid(grids.grid(1, 5), grids.work_of, Path({str(tmp_path)!r}), None, 1, executor)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=cluster.environment, capture_output=True, text=True, timeout=120
    )
    assert "1000.0 GB, the largest node of the Ray cluster has 1 and 4.3 GB" in done.stderr
    assert not list(tmp_path.glob("*/config.json"))


@pytest.mark.parametrize("kind", ["closed", "other"])
def test_unreachable_address_is_refused_before_any_work(cluster: TestCluster, tmp_path: Path, kind: str):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if kind == "closed":
            server.close()
        start = time.monotonic()
        done = finish(cluster, str(tmp_path), "2", "3", "20", f"127.0.0.1:{port}")
        assert time.monotonic() - start < 60
    assert f"Error: no Ray cluster answers at 127.0.0.1:{port}" in done.stderr
    assert not list(tmp_path.iterdir())


def test_memory_of_runs_follows_their_size():
    from compound import experiments

    (small,) = (run for run in experiments.plan("toy", "quick", 1, ["map"]) if "1" in run.data)
    large = experiments.plan("ood-mnist", "paper", 1, ["map"])[0]
    assert 0.5e9 < experiments.memory_of(small) < 0.6e9 < 2e9 < experiments.memory_of(large) < 10e9
    assert isinstance(small, Run)
