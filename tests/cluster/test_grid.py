"""A grid on a Ray cluster of two nodes: same results as locally, whatever dies; errors before any work."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grids
import pytest
from clusters import MARK, TestCluster
from ray_kills import VICTIMS, compare, kill_and_compare, start
from table_commands import assert_rejected, run

from compound.experiments.identity import Run
from compound.ray.watcher import marked

RUNS, STEPS = 4, 400
SECONDS = 120.0  # far more than anything takes, also beside other programs


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list:
    """Results of an undisturbed local grid."""
    folder = tmp_path_factory.mktemp("calm")
    return grids.run_grid(grids.grid(RUNS, STEPS), grids.work_of, folder, None, 1).results


@pytest.mark.parametrize("storage", [False, True], ids=["shared folder", "storage"])
def test_kills_change_nothing(cluster: TestCluster, tmp_path: Path, calm: list, storage: bool):
    seed = int(os.environ.get("COMPOUND_FAULTS", time.time_ns() % 10**6))
    print(f"COMPOUND_FAULTS={seed} repeats the choices")
    chance = random.Random(seed)
    kills = ["worker"] if storage else chance.sample(VICTIMS, len(VICTIMS))
    kill_and_compare(cluster, tmp_path, kills, calm, STEPS, chance, storage)


def test_interrupt_leaves_a_grid_that_resumes_and_no_task(
    cluster: TestCluster, ray: Any, tmp_path: Path, calm: list
):
    driver = start(cluster, tmp_path, RUNS, STEPS)
    assert wait_until(cluster.workers)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(SECONDS) == 130
    assert wait_until(lambda: not cluster.workers())
    assert not grids.grid_on_ray(ray, tmp_path, 2, RUNS, STEPS).failures
    compare(tmp_path, calm, {})


def wait_until(what: Callable[[], object]) -> bool:
    """Whether it came true."""
    until = time.monotonic() + SECONDS
    while not what() and time.monotonic() < until:
        time.sleep(0.1)
    return bool(what())


def test_no_process_of_a_local_cluster_survives_a_killed_command(cluster: TestCluster):
    code = "from compound.ray.cluster import connected\nwith connected(cores=1):\n    print('up'), input()"
    environment = cluster.environment | {MARK: "local"}
    command = subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert any(line == b"up\n" for line in command.stdout)
    mark = f"{MARK}=local".encode()
    assert len(marked(mark)) > 3  # the command, the store, the raylet, ...
    command.kill()
    command.communicate()
    assert wait_until(lambda: not marked(mark))


def test_one_failure_is_reported_and_the_others_finish(ray: Any, tmp_path: Path):
    ((_, reason),) = grids.grid_on_ray(ray, tmp_path, 2, 3, 20, name="fills").failures
    assert "No space left on device" in reason
    assert len(list(tmp_path.glob("*/metrics.json"))) == 2
    (tmp_path / "fixed").touch()
    assert not grids.grid_on_ray(ray, tmp_path, 2, 3, 20, name="fills").failures


def test_run_that_kills_its_workers_fails_alone(ray: Any, tmp_path: Path):
    ((run, reason),) = grids.grid_on_ray(ray, tmp_path, 2, 3, 20, name="dies").failures
    assert (run.seed, reason) == (0, "worker died")
    assert len(list(tmp_path.glob("*/metrics.json"))) == 2


def test_run_that_no_node_can_hold_is_refused(ray: Any, tmp_path: Path):
    from compound.ray.grid import RayExecutor

    executor = RayExecutor(ray, lambda run: 10**12)
    with pytest.raises(ValueError, match=r"1000.0 GB, the largest node of the Ray cluster has 1 and 4.3 GB"):
        grids.run_grid(grids.grid(1, 5), grids.work_of, tmp_path, None, 1, executor)
    assert not list(tmp_path.glob("*/config.json"))


@pytest.mark.parametrize("kind", ["closed", "other"])
def test_unreachable_address_is_refused_before_any_work(
    cluster: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # this process may be connected
    monkeypatch.setattr("compound.ray.cluster.CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if kind == "closed":
            server.close()
        start = time.monotonic()
        folders = ("--runs", tmp_path / "runs", "--out", tmp_path / "report")
        done = run("run", "toy", *folders, "--ray", f"127.0.0.1:{port}")
        assert time.monotonic() - start < SECONDS  # Ray itself waits for minutes
    assert_rejected(done, f"Error: no Ray cluster answers at 127.0.0.1:{port}")
    assert not list(tmp_path.iterdir())


def test_memory_of_runs_follows_their_size():
    from compound import experiments

    (small,) = (run for run in experiments.plan("toy", "quick", 1, ["map"]) if "1" in run.data)
    large = experiments.plan("ood-mnist", "paper", 1, ["map"])[0]
    assert 0.5e9 < experiments.memory_of(small) < 0.6e9 < 2e9 < experiments.memory_of(large) < 10e9
    assert isinstance(small, Run)
