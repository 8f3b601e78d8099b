"""Run directories: identity, once and only once, resuming, and what is written."""

import hashlib
import json
import math
import multiprocessing
import os
import signal
import time
from dataclasses import asdict, replace
from pathlib import Path

import grids
import numpy as np
import pytest
import torch

from compound import experiments
from compound.experiments.identity import PUBLISHED, Run
from compound.experiments.runs import Outcome, RunContext, fit_run, perform, read
from compound.models import METHODS
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.types import Task, make_dataset

RUN = Run("toy", "ml-cdn", "set 1", 0, {"widths": (8,), "lam": 1e-3}, {"steps": 5})
TASK = Task("regression", 1)


def work(run: Run, context: RunContext) -> Outcome:
    with (context.directory / "calls").open("a") as calls:
        calls.write("x")
    return Outcome({"value": 0.5, "bad": math.nan, "nested": {"list": [1, math.inf]}}, {"x": np.arange(3.0)})


def test_key_identifies_a_run():
    assert RUN.key == replace(RUN, options={"lam": 0.001, "widths": [8]}).key
    others = [
        replace(RUN, experiment="digits"),
        replace(RUN, method="vb-cdn"),
        replace(RUN, data="set 2"),
        replace(RUN, seed=1),
        replace(RUN, variant=PUBLISHED),
        replace(RUN, n_train=7),
        replace(RUN, extractor="network"),
        replace(RUN, options={"widths": (8, 8), "lam": 1e-3}),
        replace(RUN, settings={"steps": 6}),
    ]
    assert len({RUN.key, *(other.key for other in others)}) == 10
    # written out: committed results keep their keys
    identity = (
        '{"data":"set 1","experiment":"toy","method":"ml-cdn","options":{"lam":0.001,"widths":[8]},"seed":0,'
        '"settings":{"steps":5}}'
    )
    assert RUN.key == hashlib.sha256(identity.encode()).hexdigest()[:16]


def test_config_of_the_first_version_is_read():
    """There data set, part and variant were one string."""
    for run, label in (
        (replace(RUN, variant=PUBLISHED), "set 1, as published"),
        (replace(RUN, data="cifar10", n_train=2000, extractor="a.b:c"), "cifar10/2000/a.b:c"),
        (
            replace(RUN, data="cifar10", n_train=9, extractor="e", variant=PUBLISHED),
            "cifar10/9/e, as published",
        ),
    ):
        new_fields = ("variant", "n_train", "extractor")
        old = {name: value for name, value in run.config().items() if name not in new_fields}
        again = Run.from_config({**old, "data": label})
        assert run.data_label == label and again.key == run.key
        assert again.config() == run.config() == Run.from_config(run.config()).config()


def test_committed_results_keep_their_keys():
    """Also as runs of the present grid, whatever fields of `TrainConfig` are called today."""
    results = Path(__file__).parents[2] / "results"
    for path in results.glob("*-paper.json"):
        for entry in json.loads(path.read_text())["runs"]:
            run = Run.from_config(entry["config"])
            assert run.key == entry["key"] == Run.from_config(run.config()).key
            if run.method in METHODS:
                TrainConfig(**run.settings)
    # pictures have other keys since the first rows are held out, and tables since their defaults changed
    entries = json.loads((results / "uci-paper.json").read_text())["runs"]
    committed = {entry["key"] for entry in entries if entry["config"]["method"] in METHODS}
    assert len(committed) > 300
    assert committed <= {run.key for run in experiments.plan("uci", "paper", 20, ["all"])}


def test_options_must_be_json():
    with pytest.raises(ValueError, match="JSON"):
        _ = replace(RUN, options={"lam": math.nan}).key


def test_finished_run_is_read_and_not_repeated(tmp_path: Path):
    first = perform(RUN, work, tmp_path)
    again = perform(RUN, work, tmp_path)
    assert (tmp_path / RUN.key / "calls").read_text() == "x"
    assert first.metrics == again.metrics == {"value": 0.5, "bad": None, "nested": {"list": [1, None]}}
    assert again.arrays["x"].tolist() == [0, 1, 2]
    assert json.loads((tmp_path / RUN.key / "config.json").read_text()) == RUN.config()
    assert {"version", "commit", "torch", "command", "seconds"} <= set(again.provenance)


def test_failed_run_is_not_finished(tmp_path: Path):
    def failing(run: Run, context: RunContext) -> Outcome:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        perform(RUN, failing, tmp_path)
    with pytest.raises(ValueError, match="not finished"):
        read(RUN, tmp_path)
    assert perform(RUN, work, tmp_path).metrics["value"] == 0.5


def test_objects_are_refused_instead_of_pickled(tmp_path: Path):
    with pytest.raises(ValueError, match="pickled"):
        perform(RUN, lambda run, context: Outcome({}, {"x": np.array([None])}), tmp_path)
    assert not (tmp_path / RUN.key / "metrics.json").exists()


def test_directory_of_another_run_is_refused(tmp_path: Path):
    (tmp_path / RUN.key).mkdir()
    (tmp_path / RUN.key / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="another run"):
        perform(RUN, work, tmp_path)


def slow_work(run: Run, context: RunContext) -> Outcome:
    time.sleep(0.5)
    return work(run, context)


def test_two_processes_compute_a_run_once(tmp_path: Path):
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=grids.alone, args=(perform, RUN, slow_work, tmp_path)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(20)
    assert [process.exitcode for process in both] == [0, 0]
    assert (tmp_path / RUN.key / "calls").read_text() == "x"


TRAINED = Run(
    "test",
    "ml-cdn",
    "line",
    0,
    {"widths": (4,), "hyper": (3,), "members": 1},
    asdict(TrainConfig(40, n_evals=0)),
)


def train(run: Run, context: RunContext) -> Outcome:
    x = torch.linspace(-1, 1, 12).unsqueeze(1)
    model = fit_run(run, context, make_dataset(x, 2 * x, TASK), TASK)
    return Outcome({}, {"mean": model.predict(x, named_generator(0), 2).mean.numpy()})  # type: ignore[attr-defined]


def killed_train(run: Run, context: RunContext) -> Outcome:
    def on_progress(state: object) -> None:
        if (context.directory.parent / "fits" / run.fit_key / "checkpoint.safetensors").exists():
            os.kill(os.getpid(), signal.SIGKILL)

    from compound.experiments import runs
    from compound.train.loop import fit

    def often(*args, **named):  # a checkpoint after every step, killed at the next callback
        return fit(*args, **{**named, "save_every": 0.0})

    runs.fit = often
    return train(run, context._replace(callback=on_progress))


def test_killed_run_resumes_from_its_checkpoint_to_the_same_bits(tmp_path: Path):
    run = replace(TRAINED, settings=asdict(TrainConfig(600, n_evals=0)))  # long enough for a callback midway
    process = multiprocessing.get_context("fork").Process(
        target=grids.alone, args=(perform, run, killed_train, tmp_path / "killed")
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    left = tmp_path / "killed" / run.key
    assert not (left / "metrics.json").exists()
    size = (tmp_path / "killed" / "fits" / run.fit_key / "checkpoint.safetensors").stat().st_size
    assert size > 0
    steps = []
    resumed = perform(run, train, tmp_path / "killed", callback=lambda state: steps.append(state.step))
    straight = perform(run, train, tmp_path / "straight")
    assert np.array_equal(resumed.arrays["mean"], straight.arrays["mean"])
    lines = [(tmp_path / name / run.key / "history.csv").read_text() for name in ("killed", "straight")]
    assert lines[0] == lines[1]
    assert lines[0].splitlines()[-1].startswith("600,")


def test_runs_of_the_same_model_share_one_fit(tmp_path: Path):
    steps: list[int] = []
    first = perform(TRAINED, train, tmp_path, callback=lambda state: steps.append(state.step))
    n_callbacks = len(steps)
    other = replace(TRAINED, experiment="another")
    assert other.key != TRAINED.key and other.fit_key == TRAINED.fit_key
    again = perform(other, train, tmp_path, callback=lambda state: steps.append(state.step))
    assert n_callbacks > 0 and len(steps) == n_callbacks  # the second trained nothing
    assert np.array_equal(first.arrays["mean"], again.arrays["mean"])
    for change in (
        {"seed": 1},
        {"data": "curve"},
        {"method": "vb-cdn"},
        {"options": {}},
        {"settings": asdict(TrainConfig(41))},
    ):
        assert replace(TRAINED, **change).fit_key != TRAINED.fit_key
