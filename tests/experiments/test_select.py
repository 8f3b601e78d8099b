"""λ chosen on held-out rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from compound import experiments
from compound.datasets import images
from compound.experiments import ood
from compound.experiments.runs import Result, Run
from compound.experiments.select import LAMBDAS, best_of, choose, chosen, lambda_of, with_lambda
from compound.metrics import accuracy
from compound.random import named_generator


def result(lam: float, right: float, nll: float, data: str = "mnist") -> Result:
    return Result(
        Run("select-mnist", "ml-cdn", data, 0, {"lam": lam}),
        {"lam": lam, "accuracy": right, "nll": nll},
        {},
        {},
    )


def test_best_accuracy_counts_then_nll():
    found = [
        result(1e-4, 0.9, 0.1),
        result(1e-5, 0.95, 0.3),
        result(1e-6, 0.95, 0.2),
        result(1e-7, 0.94, 0.0),
    ]
    assert best_of([*found, result(1e-8, 0.5, 1.0, "mnist, as published")]) == {
        "mnist": 1e-6,
        "mnist, as published": 1e-8,
    }


def test_five_as_published_for_each_form():
    assert LAMBDAS == (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
    runs = experiments.plan("select-mnist", "paper", 1)
    assert [lambda_of(run) for run in runs] == [*LAMBDAS, *LAMBDAS]
    assert [run.data for run in runs] == ["mnist, one member"] * 5 + ["mnist, as published"] * 5
    assert "select-mnist" not in experiments.NAMES


def test_fits_that_were_chosen_from_serve_the_grid():
    grid = experiments.plan("ood-mnist", "paper", 1, ["ml-cdn", "map"])
    assert [run.data for run in grid] == ["mnist", "mnist, one member", "mnist, as published", "mnist"]
    usual = chosen(grid, {run.data: lambda_of(run) for run in grid[1:3]})
    assert [run.key for run in usual] == [run.key for run in grid]  # what is finished stays found
    fits = {run.fit_key for run in experiments.plan("select-mnist", "paper", 1)}
    runs = chosen(grid, best := {"mnist, one member": 1e-7, "mnist, as published": 1e-8})
    assert [lambda_of(run) for run in runs[:3]] == [1e-7, 1e-7, 1e-8] and runs[3] == grid[3]
    assert [run.fit_key in fits for run in runs] == [False, True, True, False]  # five members are another fit
    attacked = chosen(experiments.plan("fgsm-mnist", "paper", 1, ["ml-cdn"]), best)
    assert [lambda_of(run) for run in attacked] == [1e-7, 1e-8] and {run.fit_key for run in attacked} < {
        run.fit_key for run in runs
    }
    assert with_lambda(grid[0], 1e-6).options == {**grid[0].options, "lam": 1e-6}


def test_grid_without_a_choice_is_refused(tmp_path: Path):
    for name, method in (("toy", "ml-cdn"), ("ood-mnist", "map")):
        with pytest.raises(ValueError, match="leave --select out"):
            choose(experiments.plan(name, "quick", 1, [method]), "quick", tmp_path)


def test_choice_from_end_to_end(few, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("compound.experiments.select.LAMBDAS", (1e-5, 100.0))
    monkeypatch.setattr(ood, "STEPS", {"quick": 80, "paper": 81})
    planned = experiments.plan("ood-mnist", "quick", 1, ["ml-cdn"])
    choice = choose(planned, "quick", tmp_path / "runs", None, 1)
    assert choice.runs == [with_lambda(run, 1e-5) for run in planned]  # λ = 100 drowns the likelihood
    held = images.load("mnist", "train")
    first = choice.results[0]
    model, _ = ood.Ood.trained(
        experiments.load("ood-mnist"), replace(first.run, experiment="ood-mnist"), _place(tmp_path / "runs")
    )
    answer = model.predict(held.x[-60:], named_generator(0, "validation"))
    assert first.metrics["accuracy"] == accuracy(answer, held.y[-60:])
    results = experiments.perform_all(choice.runs[1:2], tmp_path / "runs", None, 1)
    experiments.publish([*results, *choice.results], tmp_path / "page")
    text = (tmp_path / "page" / "index.html").read_text()
    assert "mnist, one member: λ = 1e-05" in text and "chosen on held-out rows" in text


def _place(root: Path):
    from compound.experiments.runs import RunContext

    (root / "looked").mkdir()
    return RunContext(root / "looked")
