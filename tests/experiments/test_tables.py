"""The tables experiment: files and splits, scores of every baseline, page, resume, missing library."""

import gzip
import math

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from scipy.stats import norm

from compound import experiments, metrics
from compound.cli.app import main
from compound.datasets import tables as datasets
from compound.datasets.tables import ADULT_COLUMNS, TABLES, Split
from compound.experiments import tables
from compound.experiments.identity import Run
from compound.experiments.pages import publish
from compound.experiments.runs import Outcome, Result, perform
from compound.experiments.tables import baselines, page
from compound.experiments.tables.baselines import BASELINES, Moments
from compound.report.page import Page

EXPERIMENT = tables.EXPERIMENTS["tables"]


def frame(rows: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Columns of numbers and text with missing values, and a target that depends on both."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    kind = rng.choice(["a", "b", "c"], rows)
    table = pd.DataFrame({"u": x[:, 0], "v": x[:, 1], "kind": kind, "rare": rng.choice(list("xyz"), rows)})
    table.loc[::17, "u"] = np.nan
    table.loc[::19, "rare"] = None
    y = 3 * x[:, 1] + np.select([kind == "a", kind == "b"], [0.0, 4.0], -4.0) + 0.5 * rng.normal(size=rows)
    return table, 100 + 10 * y


@pytest.fixture
def folder(tmp_path):
    """A data folder with a small table of every name."""
    for name in ("tables", "tables2"):
        (tmp_path / name).mkdir()
    for seed, (name, table) in enumerate(TABLES.items()):
        x, y = frame(150, seed)
        target = y if table.classes == 1 else pd.qcut(y, table.classes, labels=list("pqrs")[: table.classes])
        if name == "adult":
            continue
        if name == "diamonds":
            x.insert(1, "price", target)
            x.to_csv(tmp_path / "tables/diamonds.csv.gz", index=False)
        else:
            x.assign(target=target).to_csv(tmp_path / f"tables2/{name}.csv.gz", index=False)
    line = "39, State-gov, 7, Bachelors, 13, Divorced, ?, Wife, White, Male, 2, 0, {}, Cuba, {}\n"
    parts = {
        "data": "".join(line.format(i, "<=50K" if i % 3 else ">50K") for i in range(40)),
        "test": "|1x3 Cross validator\n"
        + "".join(line.format(i, "<=50K." if i % 3 else ">50K.") for i in range(40, 60)),
    }
    for part, text in parts.items():
        (tmp_path / f"tables/adult.{part}.gz").write_bytes(gzip.compress((text + "\n").encode()))
    return tmp_path


def test_every_table_is_read_and_split(folder):
    for name, table in TABLES.items():
        split = datasets.load(name, 1, folder)
        rows = 60 if name == "adult" else 150
        assert (len(split.x), len(split.x_test)) == (0.8 * rows, 0.2 * rows)
        assert len(split.y) == len(split.x) and len(split.y_test) == len(split.x_test)
        if table.kind == "classification":
            assert set(split.y) == set(range(table.classes))
        else:
            assert split.y.dtype == np.float64 and "price" not in split.x


def test_adult_pools_both_files_without_spaces_and_dots(folder):
    split = datasets.load("adult", 0, folder)
    x = pd.concat([split.x, split.x_test])
    assert list(x.columns) == list(ADULT_COLUMNS[:-1]) and x["occupation"].isna().all()
    assert sorted(x["hours-per-week"]) == list(range(60)) and set(x["workclass"]) == {"State-gov"}
    assert [np.sum(y == 1) for y in (split.y, split.y_test)] == [16, 4]  # >50K, stratified


def test_splits_are_those_of_the_seed_and_samples_are_small(folder):
    first, again, other = (datasets.load("hotel", split, folder) for split in (0, 0, 1))
    pd.testing.assert_frame_equal(first.x, again.x)
    assert not np.array_equal(first.y, other.y)
    sample = datasets.load("hotel", 0, folder, max_rows=50)
    assert (len(sample.x), len(sample.x_test)) == (40, 10) and set(sample.y) <= {*first.y, *first.y_test}
    for arguments in (("motel", 0), ("hotel", -1)):
        with pytest.raises(ValueError, match=r"choose one of computers|give 0, 1"):
            datasets.load(*arguments, folder)


def test_rows_and_classes_of_the_real_tables(data_dir):
    for name in ("computers", "adult", "hpc"):
        split = datasets.load(name, 0, data_dir)
        assert len(split.y) + len(split.y_test) == TABLES[name].rows
        assert TABLES[name].classes in (1, len(np.unique(split.y)))


def test_interval_score_is_the_pinball_loss_of_its_bounds():
    rng = np.random.default_rng(0)
    lower, width, y = rng.normal(size=(3, 500))
    upper = lower + np.abs(width)

    def pinball(bound: np.ndarray, level: float) -> float:
        return np.where(y >= bound, level * (y - bound), (1 - level) * (bound - y)).mean()

    score = metrics.interval_score(*(torch.from_numpy(v) for v in (lower, upper, y)), 0.8)
    assert score == pytest.approx(2 / 0.2 * (pinball(lower, 0.1) + pinball(upper, 0.9)), rel=1e-12)
    with pytest.raises(ValueError, match="level is 1"):
        metrics.interval_score(*(torch.zeros(1),) * 3, level=1)


def test_scores_of_a_normal_prediction_by_hand():
    rng = np.random.default_rng(1)
    mean, std, y = rng.normal(size=400), rng.uniform(0.5, 2, 400), rng.normal(size=400)
    bounds = tuple(torch.from_numpy(mean + z * std) for z in (-1.5, 1.5))
    prediction = tables.Prediction(tables.normal_predictive(mean, std), bounds, 1.0, 2.0)
    numbers = tables.evaluate(prediction, Split(pd.DataFrame(mean), y, pd.DataFrame(mean), y)).metrics
    z = (y - mean) / std
    crps = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi))
    assert numbers["crps"] == pytest.approx(crps.mean(), rel=1e-9)
    assert numbers["nll"] == pytest.approx(-norm.logpdf(y, mean, std).mean(), rel=1e-9)
    assert numbers["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)), rel=1e-9)
    assert numbers["coverage"] == np.mean(np.abs(z) <= 1.5) and numbers["width"] == pytest.approx(
        3 * std.mean()
    )


def test_calibrated_intervals_hold_their_part_of_the_rows():
    rng = np.random.default_rng(2)
    mean, variance = np.zeros(99), rng.uniform(1, 4, 99)
    y = rng.normal(size=99)
    for moments in (Moments(mean, variance), Moments(mean)):
        residual_variance, quantile = tables.calibrate(moments, y)
        std = np.sqrt(residual_variance if moments.variance is None else variance)
        assert residual_variance == pytest.approx(np.mean(y**2))
        assert np.sum(np.abs(y) <= quantile * std + 1e-12) == 90  # ceil(0.9 * 100)


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("data", ["computers", "hpc"])
def test_every_baseline_learns_from_text_and_numbers(monkeypatch, tmp_path, method, data):
    pytest.importorskip(BASELINES[method].library)
    regression = tables.is_regression(data)
    if not regression and BASELINES[method].classifier is None:
        return
    monkeypatch.setattr(baselines, "STAGES", 60)
    monkeypatch.setattr(baselines, "LEARNING_RATE", 0.2)
    monkeypatch.setattr(baselines, "NGBOOST_LEARNING_RATE", 0.2)
    x, y = frame(500)
    y = y if regression else np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75]))
    split = datasets.split_rows(x, y, not regression, 0)
    split.x_test.loc[0, "kind"] = "never seen"
    monkeypatch.setattr(datasets, "load", lambda *_: split)
    numbers = perform(Run("tables", method, data, 0), EXPERIMENT.work, tmp_path).metrics
    if regression:
        assert numbers["rmse"] < 0.5 * np.std(split.y_test) and 0.75 < numbers["coverage"] <= 1
        assert numbers["crps"] < numbers["rmse"] and numbers["nll"] < math.log(np.std(split.y_test)) + 1.42
    else:
        assert numbers["accuracy"] > 0.5 and numbers["log_loss"] < math.log(4)
    assert (numbers["rows"], numbers["test_rows"], numbers["columns"]) == (400, 100, 4)


def test_units_of_the_target_do_not_matter_to_a_baseline(monkeypatch, tmp_path):
    x, y = frame(200)
    found = []
    for scale in (1.0, 1000.0):
        split = datasets.split_rows(x, scale * y, False, 0)
        monkeypatch.setattr(datasets, "load", lambda *_, split=split: split)
        found.append(perform(Run("tables", "linear", "loans", 0), EXPERIMENT.work, tmp_path / str(scale)))
    one, thousand = (result.metrics for result in found)
    for key in ("crps", "rmse", "width", "interval_score"):
        assert thousand[key] == pytest.approx(1000 * one[key], rel=1e-6)
    assert thousand["nll"] == pytest.approx(one["nll"] + math.log(1000), rel=1e-6)


def test_grid_has_every_table_and_split():
    runs = EXPERIMENT.grid("paper", 3, ["ml-cdn", "catboost-rmse", "linear"])
    assert len(runs) == 3 * (14 + 8 + 14) and len({run.key for run in runs}) == len(runs)
    storms = next(run for run in runs if run.data == "storms" and run.method == "ml-cdn")
    assert storms.settings["steps"] == 6251 and "max_rows" not in storms.settings
    quick = experiments.plan("tables", "quick")
    assert [(run.data, run.method) for run in quick] == [
        (data, method) for data in ("computers", "hpc") for method in ("ml-cdn", "linear")
    ]
    assert not {run.key for run in quick} & {run.key for run in runs}


def test_another_setting_of_a_baseline_is_another_run(monkeypatch):
    def keys() -> set[str]:
        return {run.key for run in EXPERIMENT.grid("quick", 1, list(BASELINES))}

    before = keys()
    monkeypatch.setattr(baselines, "PATIENCE", 7)
    monkeypatch.setattr(baselines, "MAX_INDICATORS", 7)
    assert not before & keys()


def test_a_baseline_that_is_not_installed_is_refused_before_any_work(monkeypatch):
    missing = tables.TablesExperiment(
        name="tables",
        title="",
        methods=("ml-cdn", "linear"),
        all_methods=EXPERIMENT.all_methods,
        not_installed=("lightgbm",),
    )
    monkeypatch.setitem(tables.EXPERIMENTS, "tables", missing)
    with pytest.raises(ValueError, match="lightgbm is not installed: pip install"):
        experiments.plan("tables", "quick", methods=["ml-cdn", "lightgbm"])
    assert "lightgbm" not in {run.method for run in experiments.plan("tables", "paper", methods=["all"])}
    done = CliRunner().invoke(main, ["run", "tables", "--methods", "lightgbm"])
    assert done.exit_code == 2 and "lightgbm is not installed" in done.output
    target = Page("")
    missing.fill_page([result("hpc", "linear", 0, log_loss=1.0)], target)
    assert "lightgbm: its library is not installed" in target.html()
    monkeypatch.setattr(baselines, "find_spec", lambda name: None if name == "catboost" else name)
    assert baselines.installed() == ("lightgbm", "hist-gradient-boosting", "ngboost", "linear")


def test_from_command_to_page_and_nothing_twice(folder, tmp_path, monkeypatch):
    arguments = ["run", "tables", "--jobs", "1", "--data-dir", str(folder)]
    arguments += ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "report")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    html = (tmp_path / "report/tables/index.html").read_text()
    texts = ("computers (1, 120, 4)", "hpc (1, 120, 4)", "ml-cdn / best baseline", "<b>", "TabM and RealMLP")
    for text in texts:
        assert text in html
    reason = "it was not asked for" if "catboost" in baselines.installed() else "its library is not installed"
    assert f"catboost: {reason}" in html
    csv = pd.read_csv(tmp_path / "report/tables/tables.csv")
    assert len(csv) == 4 and csv["fit_seconds"].min() > 0

    def refuse(*_) -> Outcome:
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(tables, "evaluate", refuse)
    assert CliRunner().invoke(main, arguments).exit_code == 0


def result(data: str, method: str, split: int, **numbers: float) -> Result:
    sizes = {"rows": 80, "test_rows": 20, "columns": 3, "fit_seconds": 1.0, "predict_seconds": 1.0}
    record = {"command": "", "version": "", "commit": "", "torch": "", "seconds": 1.0}
    return Result(Run("tables", method, data, split), {**sizes, **numbers}, {}, record)


def test_claims_compare_means_over_common_splits(tmp_path):
    def regression(data: str, method: str, split: int, value: float, coverage: float = 0.9) -> Result:
        scores = dict.fromkeys(("crps", "rmse", "nll", "width", "interval_score"), value)
        return result(data, method, split, coverage=coverage, **scores)

    results = [
        *(regression("loans", "ml-cdn", split, value, 0.89) for split, value in enumerate((1.0, 2.0, 9.0))),
        *(regression("loans", "catboost", split, 2.0) for split in (0, 1)),
        *(regression("loans", "catboost-rmse", split, 1.2) for split in (0, 1)),
        regression("hotel", "ml-cdn", 0, 2.2, 0.93),
        regression("hotel", "catboost", 0, 2.0),
        *(result("hpc", "ml-cdn", split, log_loss=value) for split, value in enumerate((1.1, 1.2))),
        *(result("hpc", "linear", split, log_loss=1.0) for split in (0, 1)),
        result("credit", "ml-cdn", 0, log_loss=0.9),
        result("credit", "catboost", 0, log_loss=1.0),
    ]
    expected = [1, 1.1, 1.25, 0, 0.89, 0.93, 0, 1.15, 1, 1]
    found = page.claims(page.Scores.from_results(results))
    assert [claim.value for claim in found] == pytest.approx(expected)
    assert [claim.held for claim in found] == [*[False] * 4, True, *[False] * 5]
    assert [claim.value for claim in page.claims(page.Scores.from_results([]))] == [None] * 10
    assert publish(results, tmp_path) == found
    html = (tmp_path / "index.html").read_text()
    assert "loans (2, 80, 3)" in html and "<b>1.2000 ± 0.0000</b>" in html and "<td>0.75</td>" in html
