"""λ selected on held-out rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from compound import experiments
from compound.datasets import images
from compound.experiments import ood
from compound.experiments.identity import ONE_MEMBER, PUBLISHED, Run
from compound.experiments.ood.select import (
    LAMBDAS,
    best_lambdas,
    lambda_of,
    select_lambda,
    with_best_lambdas,
    with_lambda,
)
from compound.experiments.pages import publish
from compound.experiments.runs import Result, RunContext
from compound.metrics import accuracy
from compound.random import named_generator


def result(lam: float, accuracy: float, nll: float, variant: str = ONE_MEMBER) -> Result:
    run = Run("select-mnist", "ml-cdn", "mnist", 0, {"lam": lam}, variant=variant)
    return Result(run, {"lam": lam, "accuracy": accuracy, "nll": nll}, {}, {})


def test_best_accuracy_counts_then_nll():
    results = [
        result(1e-4, 0.9, 0.1),
        result(1e-5, 0.95, 0.3),
        result(1e-6, 0.95, 0.2),
        result(1e-7, 0.94, 0.0),
    ]
    best = best_lambdas([*results, result(1e-8, 0.5, 1.0, PUBLISHED)])
    assert best == {ONE_MEMBER: 1e-6, PUBLISHED: 1e-8}


def test_five_as_published_for_each_form():
    assert LAMBDAS == (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
    runs = experiments.plan("select-mnist", "paper", 1)
    assert [lambda_of(run) for run in runs] == [*LAMBDAS, *LAMBDAS]
    assert [run.variant for run in runs] == [ONE_MEMBER] * 5 + [PUBLISHED] * 5
    assert "select-mnist" not in experiments.NAMES


def test_fits_of_the_candidates_serve_the_grid():
    grid = experiments.plan("ood-mnist", "paper", 1, ["ml-cdn", "map"])
    assert [run.variant for run in grid] == ["", ONE_MEMBER, PUBLISHED, ""]
    unchanged = with_best_lambdas(grid, {run.variant: lambda_of(run) for run in grid[1:3]})
    assert [run.key for run in unchanged] == [run.key for run in grid]  # finished runs are found
    fits = {run.fit_key for run in experiments.plan("select-mnist", "paper", 1)}
    runs = with_best_lambdas(grid, best := {ONE_MEMBER: 1e-7, PUBLISHED: 1e-8})
    assert [lambda_of(run) for run in runs[:3]] == [1e-7, 1e-7, 1e-8] and runs[3] == grid[3]
    assert [run.fit_key in fits for run in runs] == [False, True, True, False]  # five members are another fit
    attacked = with_best_lambdas(experiments.plan("fgsm-mnist", "paper", 1, ["ml-cdn"]), best)
    assert [lambda_of(run) for run in attacked] == [1e-7, 1e-8] and {run.fit_key for run in attacked} < {
        run.fit_key for run in runs
    }
    assert with_lambda(grid[0], 1e-6).options == {**grid[0].options, "lam": 1e-6}


def test_grid_without_a_lambda_to_select_is_refused(tmp_path: Path):
    for name, method in (("toy", "ml-cdn"), ("ood-mnist", "map")):
        with pytest.raises(ValueError, match="leave --select out"):
            select_lambda(experiments.plan(name, "quick", 1, [method]), "quick", tmp_path)


def test_selection_from_end_to_end(few, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("compound.experiments.ood.select.LAMBDAS", (1e-5, 100.0))
    monkeypatch.setattr(ood, "STEPS", {"quick": 80, "paper": 81})
    planned = experiments.plan("ood-mnist", "quick", 1, ["ml-cdn"])
    selection = select_lambda(planned, "quick", tmp_path / "runs", None, 1)
    assert selection.runs == [with_lambda(run, 1e-5) for run in planned]  # λ = 100 drowns the likelihood
    train = images.load("mnist", "train")
    first = selection.results[0]
    (tmp_path / "runs" / "context").mkdir()
    context = RunContext(tmp_path / "runs" / "context")
    model, _ = ood.MNIST.fit(replace(first.run, experiment="ood-mnist"), context)
    predictive = model.predict(train.x[-60:], named_generator(0, "validation"))
    assert first.metrics["accuracy"] == accuracy(predictive, train.y[-60:])
    results = experiments.perform_all(selection.runs[1:2], tmp_path / "runs", None, 1)
    publish([*results, *selection.results], tmp_path / "page")
    text = (tmp_path / "page" / "index.html").read_text()
    assert "mnist/55000, one member: λ = 1e-05" in text and "selected on held-out rows" in text
