"""What `compound status` says of runs in every state."""

import io
import json
from dataclasses import replace
from pathlib import Path

import grids
import pytest
from rich.console import Console

from compound.experiments import progress
from compound.experiments.locks import locked
from compound.experiments.progress import Clock
from compound.experiments.run_files import write_failure
from compound.experiments.runs import perform
from compound.experiments.status import find_runs, run_states, state_tables
from compound.train.progress import FitProgress


def progress_at(step: int, steps: int = 1000, rate: float = 50.0) -> FitProgress:
    return FitProgress(step, steps, 0.0, 0.0, rate)


@pytest.fixture
def frequent(monkeypatch: pytest.MonkeyPatch):
    """Progress is written at every callback."""
    monkeypatch.setattr(progress, "WRITE_INTERVAL", 0.0)


def test_states_of_runs(tmp_path: Path, frequent):
    done, running, failed, _, stopped = runs = grids.grid(5, 20)
    perform(done, grids.trains, tmp_path)
    for run in (running, failed, stopped):
        (tmp_path / run.key).mkdir()
    write_failure(tmp_path / failed.key, "ValueError: [no] luck")
    for run in (running, stopped):
        progress.writer(tmp_path / run.key, Clock(), None)(progress_at(250))
    with locked(tmp_path / running.key / "lock"):
        states = run_states(runs, tmp_path)
        (table,) = state_tables(states)
    assert [state.kind for state in states] == ["done", "running", "failed", "waiting", "waiting"]
    assert [state.detail for state in states[1:]] == [
        "step 250 of 1,000, 50 steps/s, 15 s of training left",
        "ValueError: [no] luck",
        "",
        "stopped at step 250 of 1,000",
    ]
    assert states[1].remaining == 15
    assert run_states([running], tmp_path)[0].kind == "waiting"  # the lock decides, not the file
    console = Console(width=150, file=io.StringIO())
    console.print(table)
    text = console.file.getvalue()
    assert "trains: 1 done, 1 running, 1 failed, 2 waiting" in text and "ValueError: [no] luck" in text


def test_running_run_writes_its_progress_and_removes_it_at_the_end(tmp_path: Path, frequent):
    (run,) = grids.grid(1, 400)
    files = []

    def on_progress(state: FitProgress) -> None:
        files.append((state.step, json.loads((tmp_path / run.key / progress.NAME).read_text())))
        assert run_states([run], tmp_path)[0].kind == "running"

    provenance = perform(run, grids.trains, tmp_path, callback=on_progress).provenance
    assert files and all(file["step"] == step and file["steps"] == 400 for step, file in files)
    assert not (tmp_path / run.key / progress.NAME).exists()
    assert 0 < provenance["training"] <= provenance["seconds"]
    assert provenance["answering"] == pytest.approx(provenance["seconds"] - provenance["training"], abs=0.011)


def test_seconds_of_earlier_attempts_count(tmp_path: Path, frequent):
    (run,) = grids.grid(1, 20)
    (tmp_path / run.key).mkdir()
    progress.writer(tmp_path / run.key, Clock(100.0, 60.0), None)(progress_at(10))
    provenance = perform(run, grids.trains, tmp_path).provenance
    assert 100 < provenance["seconds"] < 160 and 60 < provenance["training"] < 120


def test_progress_is_written_at_intervals(tmp_path: Path):
    on_progress = progress.writer(tmp_path, Clock(), None)
    before = (tmp_path / progress.NAME).stat().st_mtime_ns
    for step in range(100):
        on_progress(progress_at(step))
    assert (tmp_path / progress.NAME).stat().st_mtime_ns == before  # less than two seconds have passed


def test_every_run_of_a_folder_is_found_and_nothing_else(tmp_path: Path):
    one, two = grids.grid(2, 20)
    other = replace(one, experiment="another")
    for run in (two, one, other):
        perform(run, grids.trains, tmp_path)
    for name, text in (
        ("damaged", "{"),
        ("foreign", "{}"),
        ("moved", (tmp_path / one.key / "config.json").read_text()),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    assert [(run.experiment, run.seed) for run in find_runs(tmp_path)] == [
        ("another", 0),
        ("trains", 0),
        ("trains", 1),
    ]
    assert {run.key for run in find_runs(tmp_path)} == {one.key, two.key, other.key}
    with pytest.raises(ValueError, match="holds no runs"):
        find_runs(tmp_path / "nothing")
