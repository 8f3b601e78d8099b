"""Fits whose processes are workers of Ray Train: the losses of one process, though workers die."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from clusters import TestCluster

import compound
from compound.tables.fitting import FitRequest, fit_table


@pytest.fixture
def table(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(600, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=np.sin(x[:, 0]) + 0.1 * x[:, 1])
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def start(cluster: TestCluster, table: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    fit = [
        "fit",
        str(table),
        "--target",
        "y",
        "--out",
        str(out),
        "--ray",
        cluster.address,
        "--workers",
        "2",
        *more,
    ]
    command = [sys.executable, "-m", "compound", *fit]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=cluster.environment, **pipes)


def test_two_workers_fit_the_model_of_one_process_though_one_is_killed(
    cluster: TestCluster, table: Path, tmp_path: Path
):
    out = tmp_path / "ray.model"
    driver = start(cluster, table, out, "--epochs", "200")
    until = time.monotonic() + 300
    checkpoint = Path(f"{out}.checkpoint")
    while time.monotonic() < until and not (workers := cluster.processes(b"ray::RayTrainWorker")):
        time.sleep(0.1)
    time.sleep(float(np.random.default_rng().uniform(0, 4)))
    os.kill(min(workers), signal.SIGKILL)
    text, errors = driver.communicate(timeout=400)
    assert driver.returncode == 0, text + errors
    assert "ray.model" in text and not checkpoint.exists() and not list(tmp_path.glob(".ray.model*"))
    one = fit_table(table, FitRequest("y", max_epochs=200, verbose=False)).estimator
    two = compound.load(out)
    # later losses differ: float32 training magnifies the rounding of sums, see results/scale.md
    np.testing.assert_allclose(two.history_["nll"][0], one.history_["nll"][0], atol=1e-3)
    x = pd.read_csv(table).drop(columns="y")
    assert np.abs(two.predict(x) - one.predict(x)).mean() < 0.1


def test_a_method_that_needs_whole_batches_is_refused(cluster: TestCluster, table: Path, tmp_path: Path):
    driver = start(cluster, table, tmp_path / "m", "--method", "noisy-adam")
    text, errors = driver.communicate(timeout=400)
    assert driver.returncode == 2 and "noisy-adam cannot be trained by 2 processes" in errors, text + errors
