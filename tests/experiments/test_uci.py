"""The UCI experiment: splits and units, calibrated intervals, outliers, claims, baselines."""

import math

import numpy as np
import pytest
import torch

from compound import metrics
from compound.datasets.uci import SPLITS, Split
from compound.experiments import uci
from compound.experiments.identity import REGION, Run
from compound.experiments.runs import Result, perform
from compound.experiments.uci import baselines, comparison
from compound.experiments.uci.page import mean_text
from compound.random import named_generator
from compound.report.page import Page
from compound.train.holdout import holdout_weights
from compound.types import Task, make_dataset

EXPERIMENT = uci.EXPERIMENTS["uci"]


def table(scale: float = 1.0, negated: bool = False) -> Split:
    g = named_generator(0, "table")
    x = torch.randn(150, 3, generator=g)
    y = (x[:, :1] - 0.5 * x[:, 1:2] + 0.3 * torch.randn(150, 1, generator=g)) / 1.2
    y_test = -y[120:] if negated else y[120:]
    return Split(x[:120], y[:120], x[120:], y_test, scale)


@pytest.fixture
def perform_on(monkeypatch, tmp_path):
    """The metrics of a short run on a synthetic table."""

    def perform_it(split: Split, method: str, variant: str = "") -> dict:
        monkeypatch.setattr(uci.datasets, "load", lambda *_: split)
        settings = {"steps": 60, "n_evals": 5} if method not in baselines.BASELINES else {}
        root = tmp_path / f"{split.scale} {float(split.y_test.sum()):.3f}"
        run = Run("uci", method, "boston", 3, {}, settings, variant=variant)
        return perform(run, EXPERIMENT.work, root).metrics

    return perform_it


@pytest.mark.parametrize("method", ["map", "gp"])
def test_numbers_are_in_the_unit_of_the_target(perform_on, method):
    one, seven = perform_on(table(), method), perform_on(table(7.0), method)
    assert seven["nll"] == pytest.approx(one["nll"] + math.log(7), rel=1e-4)
    for name, power in (("rmse", 1), ("crps", 1), ("aleatoric", 2), ("coverage", 0)):
        assert seven[name] == pytest.approx(7**power * one[name], rel=1e-4)
    assert one["rmse"] < 0.6  # something was learnt: the noise alone is 0.25


def test_only_the_scores_depend_on_test_targets(perform_on):
    right, wrong = perform_on(table(), "ml-cdn"), perform_on(table(negated=True), "ml-cdn")
    for name in ("reach", "aleatoric", "epistemic", "false_alarms", "moved_flagged"):
        assert right[name] == wrong[name]
    assert right["coverage_calibrated"] > wrong["coverage_calibrated"]
    assert right["nll"] < wrong["nll"] and right["moved_flagged"] > 20 > right["false_alarms"]  # of 30


def test_a_region_is_evaluated_and_never_trained_on(perform_on, monkeypatch):
    inputs = []
    monkeypatch.setattr(uci, "make_dataset", lambda x, *rest: inputs.append(x) or make_dataset(x, *rest))
    numbers = perform_on(table(), "gp", REGION)
    assert numbers["beyond"] >= 12 and numbers["rows"] + numbers["beyond"] == 30 + 12
    assert len(inputs[0]) == 108 and numbers["auroc_predictive"] > 0.8


def test_grid_has_the_standard_splits():
    runs = EXPERIMENT.grid("paper", 20, ["ml-cdn", "gp"])
    assert len(runs) == 2 * 2 * (8 * 20 + 5)
    assert {run.seed for run in runs if run.data == "protein"} == set(range(5))
    assert all(entry.file in SPLITS for entry in uci.TABLES.values())
    assert len(EXPERIMENT.grid("quick", 20, ["map"])) == 9 + 2  # regions of boston and yacht
    assert {(run.data, run.variant) for run in EXPERIMENT.grid("quick", 20, ["gp"])} == {
        *((data, "") for data in list(uci.TABLES)[:4]),
        ("boston", REGION),
        ("yacht", REGION),
    }
    kin = next(run for run in runs if run.data == "kin8nm" and run.method == "ml-cdn")
    assert (kin.settings["steps"], kin.settings["batch_size"]) == (2949, 100)


def test_another_setting_of_a_baseline_is_another_run(monkeypatch):
    before = {run.method: run.key for run in EXPERIMENT.grid("quick", 1, list(baselines.BASELINES))}
    for name, value in (
        ("STAGES", 7),
        ("PATIENCE", 7),
        ("ENSEMBLE", 7),
        ("POSTERIOR_SAMPLING", True),
        ("GP_ROWS", 7),
    ):
        monkeypatch.setattr(baselines, name, value)
    assert not set(before.values()) & {
        run.key for run in EXPERIMENT.grid("quick", 1, list(baselines.BASELINES))
    }


def test_rows_of_the_sets(data_dir):
    for file, n_train in uci.TABLES.values():
        assert len(uci.datasets.load(file, 0, data_dir).x) == n_train


def test_left_out_rows_lie_at_one_end_of_the_longest_axis():
    g = named_generator(0, "axis")
    along = torch.linspace(-3, 3, 1000)
    x = torch.stack([0.1 * torch.randn(1000, generator=g), along, 0.1 * torch.randn(1000, generator=g)], 1)
    inside, test_inside = uci.inside_region(x, torch.tensor([[0.0, 2.9, 0.0], [0.0, -2.9, 0.0]]))
    assert inside.sum() == 900 and x[inside, 1].max() < 2.5 < x[~inside, 1].min() + 0.2
    assert test_inside.tolist() == [False, True]


def test_unit_vectors_have_norm_one():
    assert uci.unit_vectors(torch.zeros(4000, 6), 0).norm(dim=1) == pytest.approx(torch.ones(4000), abs=1e-5)


PUBLISHED = {
    comparison.ENSEMBLES: {"nll": {"values": {"boston": [2.0, 0.1], "wine": [1.0, 0.1]}, "status": "seen"}},
    comparison.DROPOUT: {"nll": {"values": {"boston": [1.0, 0.1], "wine": [2.0, 0.1]}, "status": "seen"}},
    "nnuncert DNNC-R": {"nll": {"values": {"boston": [1.9, 0.1], "wine": [0.1, 0.1]}, "status": "seen"}},
    "not seen": {"nll": {"values": {"boston": [0.0, 0.1]}, "status": "memory"}},
}
for _label in (comparison.ENSEMBLES, comparison.DROPOUT):
    PUBLISHED[_label]["rmse"] = {"values": {"boston": [3.28, 0.1], "wine": [0.64, 0.1]}, "status": "seen"}


def test_claims_count_tables_and_pool_splits():
    def split(nll: float, rmse: float, alarms: int, rows: int) -> dict:
        return {
            "nll": nll,
            "rmse": rmse,
            "false_alarms": alarms,
            "moved_flagged": rows,
            "rows": rows,
            "coverage_calibrated": 0.9,
        }

    splits = {
        ("boston", "ml-cdn"): [split(1.0, 3.284, 1, 100), split(2.0, 3.284, 0, 100)],
        ("wine", "ml-cdn"): [split(0.9, 0.6, 9, 300), split(0.9, 0.6, 0, 100)],
    }
    regions = {
        ("wine", "ml-cdn"): [{"auroc_epistemic": 0.8}],
        ("wine", "laplace"): [{"auroc_epistemic": 0.9}],
        ("wine", "map"): [{"auroc_epistemic": 0.99}],  # not Bayesian
    }
    claims = comparison.claims(splits, regions, ["boston", "wine"], PUBLISHED)
    numbers = [claim.value for claim in claims]
    assert numbers[:5] == [2, 1, 1, 2, 1]  # wine alone is below dropout, and below the best row that counts
    assert numbers[8:11] == [pytest.approx(0.005), pytest.approx(9 / 400), 1.0]
    assert numbers[11] == pytest.approx(-0.1) and numbers[12] is None
    assert (
        comparison.best_published_nll(PUBLISHED, "boston") == 1.0
        and comparison.best_published_nll(PUBLISHED, "wine") == 1.0
    )


def test_methods_are_compared_split_by_split():
    def runs(values: list[float]) -> list[dict]:
        return [{"nll": value, "rmse": -value, "split": split} for split, value in enumerate(values)]

    # b is worse by about 0.1 on every split, though splits differ by much more; c only on average
    splits = {
        ("boston", "a"): runs([1, 2, 3]),
        ("boston", "b"): runs([1.1, 2.11, 3.1]),
        ("boston", "c"): runs([0.5, 2.5, 3.2]),
    }
    sentence = "boston (3 splits, 3 methods): a has the lowest NLL (2.000), level with c; b the lowest RMSE."
    assert comparison.best_methods(splits, ["boston"], ["a", "b", "c"]) == [sentence]
    splits["boston", "a"] = runs([1, 2, 3, 100])[::-1]  # a split that the others lack, in another order
    assert comparison.best_methods(splits, ["boston"], ["a", "b", "c"]) == [sentence]
    splits["boston", "c"] = runs([0.5, 2.5, 3.2])[:1]
    sentence = "boston (1 split, 3 methods): c has the lowest NLL (0.500); b the lowest RMSE."
    assert comparison.best_methods(splits, ["boston"], ["a", "b", "c", "d"]) == [sentence]
    assert mean_text([1.0, 3.0], 4) == "2.0 ± 1.0 (2)" and mean_text([], 4) is None
    assert mean_text([1.0, 3.0], 2) == "2.0 ± 1.0"
    assert mean_text([0.00050, 0.00054], 2) == "0.000520 ± 0.000020"


def test_page_has_every_number(perform_on, tmp_path):
    results = [
        Result(
            Run("uci", "ml-cdn", "boston", 0, variant=variant),
            perform_on(table(), "ml-cdn", variant),
            {},
            {"command": "", "version": "", "commit": "", "torch": ""},
        )
        for variant in ("", REGION)
    ]
    page = Page("UCI")
    claims = EXPERIMENT.fill_page(results, page)
    text = page.html()
    assert all(claim.claim.replace("'", "&#x27;") in text for claim in claims)
    for number in (
        results[0].metrics["nll"],
        results[0].metrics["crps"],
        results[1].metrics["auroc_epistemic"],
    ):
        assert f"{number:.4g}" in text
    assert "2.41 ± 0.25" in text  # Deep Ensembles, published


@pytest.mark.parametrize("name", list(baselines.BASELINES))
def test_baselines_learn_the_distribution(name, monkeypatch):
    monkeypatch.setattr(baselines, "STAGES", 200)
    if name not in baselines.installed():
        pytest.skip(f"{name} is not installed: pip install compound-torch[peers]")
    g = named_generator(0, "law")
    x = 2 * torch.rand(500, 2, generator=g) - 1
    noise = torch.where(x[:, 1:] > 0, 0.5, 0.5 if name == "gp" else 0.1)  # a Gaussian process knows one noise
    y = 1.5 * x[:, :1] + noise * torch.randn(500, 1, generator=g)
    data = make_dataset(x[:400], y[:400], Task("regression", 1), holdout_weights(400, 1, 0.1, 0))
    predictive = baselines.BASELINES[name](data, 0)(x[400:])
    truth = (0.5 * math.log(2 * math.pi * math.e) + noise[400:].log()).mean().item()
    blind = 0.5 * math.log(2 * math.pi * math.e * y.var().item())  # one normal law for all rows
    assert metrics.nll(predictive, y[400:]) < (truth + blind) / 2
    assert torch.allclose(predictive.total, predictive.variance, rtol=1e-3)
    if name != "gp":
        high = x[400:, 1] > 0
        assert predictive.aleatoric[high].mean() > 3 * predictive.aleatoric[~high].mean()
    else:
        far_away = baselines.BASELINES[name](data, 0)(torch.full((1, 2), 20.0))
        assert far_away.epistemic > 5 * predictive.epistemic.max() and far_away.aleatoric == pytest.approx(
            predictive.aleatoric[0].item()
        )
        assert np.sqrt(predictive.aleatoric[0].item()) == pytest.approx(0.5, rel=0.2)
