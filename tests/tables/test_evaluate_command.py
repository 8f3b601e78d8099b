"""`compound evaluate`: metrics, confidence intervals and slices against other libraries."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn import metrics as oracle
from table_commands import houses, run_ok

from compound import load, named_generator
from compound.estimators import row_predictions
from compound.tables import (
    confidence_intervals,
    model_inputs,
    prediction_metrics,
    row_measures,
    slices,
)


def row_scores(
    home: Path, name: str
) -> tuple[row_predictions.RowScores, model_inputs.LabelledTable, np.ndarray]:
    model = load(home / f"{name}.model")
    labelled = model_inputs.read_labelled(home / "new.csv", model, name)
    y = model_inputs.encode_target(labelled, model)
    measure = row_measures.row_measures
    scores = row_predictions.score_frame(model, labelled.x, y, prediction_metrics.LEVELS, measure=measure)
    return scores, labelled, y


def test_regression_metrics_agree_with_other_libraries(home: Path):
    scores, labelled, y = row_scores(home, "price")
    model = load(home / "price.model")
    metrics = {m.name: m for m in prediction_metrics.prediction_metrics(scores, True, named_generator(0))}
    predictive = model.predict_dist(labelled.x)
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(len(y), len(predictive.means), dtype=torch.float64)),
        torch.distributions.Normal(predictive.means[..., 0].T, predictive.variances[..., 0].T.sqrt()),
    )
    assert metrics["NLL"].value == pytest.approx(-mixture.log_prob(torch.tensor(y)).mean().item())
    for i in (3, 17):
        ends = model.predict_interval(labelled.x, scores.levels[i])
        assert np.array_equal(scores.inside[:, i], (y >= ends.lower) & (y <= ends.upper))
    inside = scores.inside.mean(0)
    assert scores.levels[17] == 0.9
    assert metrics["coverage of 90%"].value == pytest.approx(inside[17])
    assert metrics["ECE"].value == pytest.approx(np.abs(inside - prediction_metrics.LEVELS).mean())
    assert [point.observed for point in prediction_metrics.calibration_curve(scores, True)] == pytest.approx(
        inside
    )


def test_classification_metrics_agree_with_scikit_learn(home: Path):
    scores, labelled, y = row_scores(home, "dear")
    model = load(home / "dear.model")
    metrics = {m.name: m for m in prediction_metrics.prediction_metrics(scores, False, named_generator(0))}
    probs = model.predict_proba(labelled.x)
    assert metrics["NLL"].value == pytest.approx(oracle.log_loss(y, probs))
    assert metrics["accuracy"].value == pytest.approx(oracle.accuracy_score(y, probs.argmax(1)))
    assert metrics["Brier score"].value == pytest.approx(2 * oracle.brier_score_loss(y, probs[:, 1]))
    gaps = 0.0
    for low in range(15):
        in_bin = (probs.max(1) > low / 15) & (probs.max(1) <= (low + 1) / 15)
        gaps += abs((probs.max(1) - (probs.argmax(1) == y))[in_bin].sum()) / len(y)
    assert metrics["ECE"].value == pytest.approx(gaps)
    covered = [
        str(model.classes_[t]) in labels.split("|")
        for t, labels in zip(y, row_predictions.predict_frame(model, labelled.x)["set"], strict=True)
    ]
    assert metrics["coverage of 90%"].value == pytest.approx(np.mean(covered))


def test_bootstrap_intervals_have_the_theoretical_width():
    values = torch.randn(400, generator=named_generator(1)).double().numpy()
    bootstrap = confidence_intervals.Bootstrap(400, named_generator(2))
    samples = bootstrap.evaluate(lambda weights: weights @ torch.from_numpy(values) / 400)
    metric = confidence_intervals.Metric.from_samples("mean", samples)
    error = values.std() / 20
    # the error of a 2.5% quantile of 500 samples is sqrt(0.025 * 0.975 / 500) / density = 0.12 standard
    # errors; four of those
    assert abs(metric.low - (values.mean() - 1.96 * error)) < 0.48 * error
    assert abs(metric.high - (values.mean() + 1.96 * error)) < 0.48 * error
    assert metric.value == pytest.approx(values.mean())


def test_auroc_with_ties_agrees_with_scikit_learn():
    random = np.random.default_rng(0)

    def table(rows: int, shift: float) -> pd.DataFrame:
        parts = {
            name: (random.normal(shift, 1, rows) * 4).round() / 4
            for name in ("aleatoric", "epistemic", "ood_score")
        }
        return pd.DataFrame({**parts, "is_ood": parts["ood_score"] > 1})

    in_dist, ood = table(80, 0.0), table(50, 1.0)
    metrics = {m.name: m for m in prediction_metrics.ood_metrics(in_dist, ood, named_generator(0))}
    labels = np.r_[np.zeros(80), np.ones(50)]
    both = pd.concat([in_dist, ood])
    assert metrics["AUROC of ood_score"].value == pytest.approx(
        oracle.roc_auc_score(labels, both["ood_score"])
    )
    assert metrics["AUROC of total"].value == pytest.approx(
        oracle.roc_auc_score(labels, both["aleatoric"] + both["epistemic"])
    )
    assert metrics["flagged in the OOD table"].value == ood["is_ood"].mean()
    auroc = metrics["AUROC of ood_score"]
    assert auroc.low < auroc.value < auroc.high


def test_slices_are_groups_of_rows(home: Path):
    scores, labelled, _ = row_scores(home, "price")
    parts = slices.slices(scores, labelled.x, True, ["city", "size", "weight"])
    covered = scores.inside[:, 17]
    for part in parts:
        if part.column == "city":
            rows = (labelled.x["city"] == part.value).to_numpy()
            assert part.rows == rows.sum()
            assert part.coverage.value == pytest.approx(covered[rows].mean())
            assert part.error.value == pytest.approx(np.sqrt((scores.error[rows] ** 2).mean()))
            nll = stats.t.interval(0.95, rows.sum() - 1, scores.nll[rows].mean(), stats.sem(scores.nll[rows]))
            assert (part.nll.low, part.nll.high) == pytest.approx(nll)
            covered_rows = stats.binomtest(int(covered[rows].sum()), int(rows.sum()))
            wilson = covered_rows.proportion_ci(method="wilson")
            assert (part.coverage.low, part.coverage.high) == pytest.approx((wilson.low, wilson.high))
    assert {part.value for part in parts if part.column == "city"} == {"Kiel", "Rom", "Ulm"}
    assert sum(part.rows for part in parts if part.column == "size") == 120
    assert {part.rows for part in parts if part.column == "size"} == {24}  # five even ranges
    assert [part.rows for part in parts if part.value == "missing"] == [labelled.x["weight"].isna().sum()]


def test_quantile_bins_are_those_of_pandas():
    column = pd.Series([*range(11), *range(11), None], name="age")  # edges fall on values
    groups = slices.group_rows(column)
    codes = pd.qcut(column, 5, labels=False)
    assert [name for name, _ in groups] == ["0 to 2", "2 to 4", "4 to 6", "6 to 8", "8 to 10", "missing"]
    for i, (_, rows) in enumerate(groups[:-1]):
        assert np.array_equal(rows, codes == i)
    assert groups[-1][1].tolist() == [False] * 22 + [True]


def test_small_slices_are_shown_and_not_ranked():
    def part(rows: int, covered: float) -> slices.Slice:
        inside = np.arange(rows) < round(covered * rows)
        coverage, none = slices.proportion(inside), slices.mean(np.zeros(rows))
        return slices.Slice("c", f"{rows}", rows, coverage, none, none, 1.0, 0.0)

    parts = [part(29, 0.0), part(30, 0.5), part(2000, 0.8), part(2000, 0.9), part(2000, 0.99), part(40, 0.85)]
    assert [each.verdict for each in parts] == ["few rows", "too low", "too low", "", "too high", ""]
    assert [each.value for each in slices.lowest_coverage(parts, 3)] == ["30", "2000", "40"]
    lone = slices.mean(np.array([3.0]))
    assert lone.value == 3.0 and np.isnan(lone.low)


def test_measures_of_targets_agree_with_their_definitions(home: Path):
    scores, labelled, y = row_scores(home, "price")
    model = load(home / "price.model")
    predictive = model.predict_dist(labelled.x)
    grid = torch.linspace(-400, 800, 24_001, dtype=torch.float64)
    for row in (0, 7, 50):
        cdf = torch.stack([predictive[row].cdf(part.reshape(1, 1))[0, 0] for part in grid[::40]])
        squares = (cdf - (grid[::40] >= y[row]).double()).square()
        integral = float(torch.trapezoid(squares, grid[::40]))
        assert scores.measures["CRPS"][row] == pytest.approx(integral, abs=1.0)  # of steps as wide as 2
    lower, upper = model.predict_interval(labelled.x, 0.9)
    penalty = 20 * (np.maximum(lower - y, 0) + np.maximum(y - upper, 0))
    assert scores.measures["interval score of 90%"] == pytest.approx(upper - lower + penalty)
    assert scores.measures["mean width of 90%"] == pytest.approx(upper - lower)
    assert scores.measures["PIT"] == pytest.approx(predictive.cdf(torch.tensor(y)[:, None])[:, 0].numpy())
    assert row_measures.pit_histogram(scores).sum() == len(y)
    for point in row_measures.quantile_reliability(scores):
        below = y <= model.predict_quantiles(labelled.x, point.level)[:, 0]
        assert point.observed == pytest.approx(below.mean()), point.level
    metrics = {m.name: m for m in prediction_metrics.prediction_metrics(scores, True, named_generator(0))}
    assert metrics["CRPS"].value == pytest.approx(scores.measures["CRPS"].mean())
    assert "PIT" not in metrics


def test_risk_is_that_of_the_most_certain_rows(home: Path):
    scores, _, _ = row_scores(home, "price")
    ordered = scores.error[np.argsort(scores.predictions["std"].to_numpy())]
    points = row_measures.risk_coverage(scores, is_regression=True)
    assert points[-1].accepted == 1.0
    for accepted, risk in points:
        assert risk == pytest.approx(np.sqrt((ordered[: round(accepted * 120)] ** 2).mean()))
    scores, labelled, _ = row_scores(home, "dear")
    model = load(home / "dear.model")
    sizes = model.predict_set(labelled.x, 0.9).sum(1)
    assert np.array_equal(scores.measures["mean size of 90% sets"], sizes)
    (last,) = row_measures.risk_coverage(scores, is_regression=False)[-1:]
    assert last.risk == pytest.approx(scores.error.mean())


def test_slices_by_a_column_that_the_model_does_not_read(home: Path, here: Path):
    table = pd.read_csv(home / "new.csv")
    table["seller"] = np.where(np.arange(len(table)) < 20, "small", "large")
    table.to_csv("sold.csv", index=False)
    result = run_ok("evaluate", home / "price.model", "sold.csv", "--by", "seller", "--json", "by.json")
    assert "Slices: seller" in result.output
    results = json.loads(Path("by.json").read_text())
    parts = {part["value"]: part for part in results["slices"] if part["column"] == "seller"}
    assert parts["small"]["verdict"] == "few rows" and parts["small"]["rows"] == 20
    assert parts["large"]["coverage"]["low"] < parts["large"]["coverage"]["value"]
    assert sum(results["pit"]) == 120 and results["quantiles"][0]["level"] == 0.025


def test_evaluate_from_end_to_end(home: Path, here: Path):
    boats = houses(100, seed=2)
    boats["size"] += 200
    boats.drop(columns=["price", "dear"]).to_csv("boats.csv", index=False)
    arguments = ("--ood", "boats.csv", "--slice", "city", "--out", "page.html", "--json", "results.json")
    result = run_ok("evaluate", home / "price.model", home / "new.csv", *arguments)
    for expected in ("RMSE", "AUROC of ood_score", "Slices: city", "Ulm", "Calibration"):
        assert expected in result.output
    results = json.loads(Path("results.json").read_text())
    assert results["ood"]["AUROC of ood_score"]["value"] > 0.99  # twenty standard deviations away
    rmse = results["metrics"]["RMSE"]
    assert rmse["low"] < rmse["value"] < rmse["high"]
    page = Path("page.html").read_text()
    assert "<h2>Slices</h2>" in page
    assert "Out-of-distribution detection" in page
    assert "coverage of 90%" in run_ok("evaluate", home / "dear.model", home / "new.csv").output


@pytest.mark.parametrize("right,rows", [(1, 1), (0, 3), (33, 33), (7, 20), (500, 1000)])
def test_proportions_have_wilson_intervals(right: int, rows: int):
    metric = confidence_intervals.Metric.from_proportion("accuracy", right / rows, rows)
    expected = stats.binomtest(right, rows).proportion_ci(method="wilson")
    assert (metric.low, metric.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert metric.low < metric.high
