"""Fits whose processes are workers of Ray Train: the losses of one process, though workers die."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from clusters import TestCluster
from table_commands import assert_rejected, run, run_ok

import compound
from compound.tables.fitting import FitRequest, fit_table

EPOCHS = 100


@pytest.fixture
def table(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(400, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=np.sin(x[:, 0]) + 0.1 * x[:, 1])
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def test_two_workers_fit_the_model_of_one_process_though_one_is_killed(
    cluster: TestCluster, ray: Any, table: Path, tmp_path: Path
):
    out = tmp_path / "ray.model"
    checkpoint = Path(f"{out}.checkpoint")
    moment = time.monotonic() + 3600

    def ready(_: int) -> bool:  # workers are there: some seconds later
        nonlocal moment
        moment = min(moment, time.monotonic() + float(np.random.default_rng().uniform(0, 4)))
        return time.monotonic() > moment

    command = ("fit", table, "--target", "y", "--out", out, "--epochs", EPOCHS, "--ray", cluster.address)
    with cluster.killing(b"ray::RayTrainWorker", 1, ready) as killed:
        done = run_ok(*command, "--workers", 2)
    assert killed
    assert "ray.model" in done.output and not checkpoint.exists() and not list(tmp_path.glob(".ray.model*"))
    one = fit_table(table, FitRequest("y", max_epochs=EPOCHS, verbose=False)).estimator
    two = compound.load(out)
    # later losses differ: float32 training magnifies the rounding of sums, see results/scale.md
    np.testing.assert_allclose(two.history_["nll"][0], one.history_["nll"][0], atol=1e-3)
    x = pd.read_csv(table).drop(columns="y")
    assert np.abs(two.predict(x) - one.predict(x)).mean() < 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("y", "--method", "noisy-adam"), "noisy-adam cannot be trained by 2 processes"),
        (("y", "--batch-size", 1), "a batch of 1 rows for 2 processes"),
        (("z",), "has no column 'z'"),
        (("y", "--held-out", 2), "--held-out is 2"),
    ],
)
def test_wrong_fits_are_refused_before_a_cluster_is_asked(
    table: Path, tmp_path: Path, arguments: tuple, message: str
):
    where = ("--out", tmp_path / "m", "--ray", "127.0.0.1:1", "--workers", 2)  # nothing listens there
    assert_rejected(run("fit", table, *where, "--target", *arguments), message)
