"""What `compound status` says of runs in every state."""

import io
import json
from dataclasses import replace
from pathlib import Path

import grids
import pytest
from rich.console import Console

from compound.experiments import progress
from compound.experiments.progress import Clock
from compound.experiments.runs import locked, perform, write_failure
from compound.experiments.status import found, survey, tables
from compound.train.progress import FitProgress


def seen(step: int, steps: int = 1000, rate: float = 50.0) -> FitProgress:
    return FitProgress(step, steps, 0.0, 0.0, rate)


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "ALL_METHODS", 0.0)


def test_states_of_runs(tmp_path: Path, words):
    done, running, failed, _, stopped = runs = grids.grid(5, 20)
    perform(done, grids.trains, tmp_path)
    for run in (running, failed, stopped):
        (tmp_path / run.key).mkdir()
    write_failure(tmp_path / failed.key, "ValueError: [no] luck")
    for run in (running, stopped):
        progress.writer(tmp_path / run.key, Clock(), None)(seen(250))
    with locked(tmp_path / running.key / "lock"):
        states = survey(runs, tmp_path)
        (table,) = tables(states)
    assert [state.kind for state in states] == ["done", "running", "failed", "waiting", "waiting"]
    assert (
        states[1].words == "step 250 of 1,000, 50 steps/s, 15 s of training left" and states[1].seconds == 15
    )
    assert (
        states[2].words == "ValueError: [no] luck"
        and states[3].words == ""
        and states[4].words == "stopped at step 250 of 1,000"
    )
    assert survey([running], tmp_path)[0].kind == "waiting"  # the lock decides, not the file
    console = Console(width=150, file=io.StringIO())
    console.print(table)
    text = console.file.getvalue()
    assert "trains: 1 done, 1 running, 1 failed, 2 waiting" in text and "ValueError: [no] luck" in text


def test_running_run_tells_how_far_it_is_and_ends_without_a_trace(tmp_path: Path, words):
    (run,) = grids.grid(1, 400)
    told = []

    def watch(at: FitProgress) -> None:
        told.append((at.step, json.loads((tmp_path / run.key / progress.NAME).read_text())))
        assert survey([run], tmp_path)[0].kind == "running"

    record = perform(run, grids.trains, tmp_path, callback=watch).record
    assert told and all(file["step"] == step and file["steps"] == 400 for step, file in told)
    assert not (tmp_path / run.key / progress.NAME).exists()
    assert 0 < record["training"] <= record["seconds"]
    assert record["answering"] == pytest.approx(record["seconds"] - record["training"], abs=0.011)


def test_seconds_of_former_attempts_count(tmp_path: Path, words):
    (run,) = grids.grid(1, 20)
    (tmp_path / run.key).mkdir()
    progress.writer(tmp_path / run.key, Clock(100.0, 60.0), None)(seen(10))
    record = perform(run, grids.trains, tmp_path).record
    assert 100 < record["seconds"] < 160 and 60 < record["training"] < 120


def test_words_are_few(tmp_path: Path):
    tell = progress.writer(tmp_path, Clock(), None)
    before = (tmp_path / progress.NAME).stat().st_mtime_ns
    for step in range(100):
        tell(seen(step))
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
    assert [(run.experiment, run.seed) for run in found(tmp_path)] == [
        ("another", 0),
        ("trains", 0),
        ("trains", 1),
    ]
    assert {run.key for run in found(tmp_path)} == {one.key, two.key, other.key}
    with pytest.raises(ValueError, match="holds no runs"):
        found(tmp_path / "nothing")
