"""Fits by several processes: the losses of one, files by the first, and the same bits after a SIGKILL."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributed import destroy_process_group, init_process_group

import compound
from compound.ops.gaussian_noise import row_normal, standard_normal
from compound.random import PartGenerator, named_generator
from compound.tables.fitting import FitRequest, fit_table
from compound.train.processes import Processes
from compound.types import Batch, part_rows

TESTS = Path(__file__).parent


def run(*command: str, **extra: str) -> str:
    path = os.pathsep.join([str(TESTS), *sys.path])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **extra,
    }
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_and_after_a_kill_and_restart_the_same_bits(tmp_path: Path):
    run(str(TESTS / "fits_in_processes.py"), str(tmp_path))


@pytest.mark.slow
def test_torchrun_fits_the_model_that_one_process_fits(tmp_path: Path):
    x = np.random.default_rng(0).normal(size=(300, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=np.sin(x[:, 0]) + 0.1 * x[:, 1])
    frame.to_csv(tmp_path / "t.csv", index=False)
    arguments = ["-m", "compound", "fit", str(tmp_path / "t.csv"), "--target", "y", "--epochs", "8"]
    together = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", *arguments]
    text = run(*together, "--out", str(tmp_path / "two.model"), "--checkpoint", str(tmp_path / "c"))
    assert text.count("report.html") == 1  # one process prints, and writes
    one = fit_table(tmp_path / "t.csv", FitRequest("y", max_epochs=8, verbose=False)).estimator
    two = compound.load(tmp_path / "two.model")
    np.testing.assert_allclose(two.history_["nll"], one.history_["nll"], atol=1e-4)
    np.testing.assert_allclose(
        two.predict(frame[["a", "b", "c"]]), one.predict(frame[["a", "b", "c"]]), atol=1e-3
    )
    config = json.loads((tmp_path / "two.model" / "config.json").read_text())
    assert "checkpoint" not in json.dumps(config) and (tmp_path / "c").exists()


@pytest.mark.parametrize("draws", [1, 3])
def test_parts_have_their_rows_of_the_whole_batch_s_noise(draws: int):
    like = torch.empty(0)
    whole = standard_normal(named_generator(1), (2, draws * 7, 5), like).view(2, draws, 7, 5)
    for index in range(3):
        generator, rows = PartGenerator(), part_rows(7, index, 3)
        generator.manual_seed(named_generator(1).initial_seed())
        generator.take(rows, 7)
        part = row_normal(generator, (2, draws * (rows.stop - rows.start), 5), like)
        assert torch.equal(part.view(2, draws, -1, 5), whole[:, :, rows])


def test_parts_of_a_batch_hold_each_row_once():
    data = Batch(torch.arange(7.0)[:, None], torch.zeros(7), 7.0, torch.arange(7), torch.ones(2, 7))
    parts = [data.part(index, 3) for index in range(3)]
    assert torch.equal(torch.cat([part.x for part in parts]), data.x)
    assert all(torch.equal(part.share.rows, torch.full((2,), 7 / 3)) for part in parts if part.share)


def test_processes_that_have_not_met_are_refused():
    with pytest.raises(ValueError, match="start them by torchrun"):
        Processes.of(distributed=True)
    with pytest.raises(ValueError, match="start them by torchrun"):
        compound.CompoundRegressor("map", distributed=True).fit(np.zeros((9, 1)), np.arange(9.0))


def test_a_group_of_one_fits_as_without(tmp_path: Path):
    x = np.linspace(-1, 1, 60)[:, None]
    alone = compound.CompoundRegressor("map", max_epochs=3, random_state=0).fit(x, x[:, 0])
    init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        group = compound.CompoundRegressor("map", max_epochs=3, random_state=0, distributed=True).fit(
            x, x[:, 0]
        )
    finally:
        destroy_process_group()
    assert (alone.predict(x) == group.predict(x)).all()


def test_small_batches_are_refused_before_work():
    with pytest.raises(ValueError, match="a batch of 2 rows for 3 processes: give larger batches"):
        Processes(0, 3).check(compound.build("map", 1, compound.Task("regression", 1)), 2)
