"""The command for tables as a user meets it: good files, bad files, answers that agree with the estimators' own."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner, Result
from scipy import stats
from sklearn import metrics as oracle

from compound import CompoundRegressor, Method, load, named_generator
from compound.cli.app import main
from compound.estimators import row_predictions
from compound.io import persist
from compound.ood.noise import DistanceAwareNoise
from compound.tables import (
    confidence_intervals,
    evaluating,
    explaining,
    fitting,
    model_inputs,
    pages,
    prediction_metrics,
    streaming,
)

TINY = (
    "--method",
    "ml-cdn",
    "--option",
    "members=2",
    "--option",
    "widths=[10]",
    "--option",
    "hyper=[5]",
    "--epochs",
    "5",
)
NUMBERS = ["mean", "std", "lower", "upper", "aleatoric", "epistemic", "ood_score", "is_ood"]


def frame(rows: int, seed: int = 0) -> pd.DataFrame:
    """Numbers with gaps, words, truth values; a number and a label to predict."""
    random = np.random.default_rng(seed)
    size, weight = random.normal(50, 10, rows), random.normal(0, 1, rows)
    city = random.choice(["Ulm", "Kiel", "Rom"], rows)
    garden = random.random(rows) < 0.5
    price = 3 * size + 40 * (city == "Rom") + 10 * weight + random.normal(0, 5, rows)
    table = pd.DataFrame(
        {
            "size": size.round(3),
            "weight": weight.round(3),
            "city": city,
            "garden": garden,
            "price": price.round(2),
        }
    )
    table.loc[random.random(rows) < 0.15, "weight"] = np.nan
    table["dear"] = np.where(price > np.median(price), "yes", "no")
    return table


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def good(*words: object) -> Result:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, a model of its numbers and a model of its labels."""
    folder = tmp_path_factory.mktemp("tables")
    frame(400).to_csv(folder / "houses.csv", index=False)
    frame(120, seed=1).to_csv(folder / "new.csv", index=False)
    out = good(
        "fit",
        folder / "houses.csv",
        "--target",
        "price",
        "--drop",
        "dear",
        "--out",
        folder / "price.model",
        *TINY,
    ).output
    (folder / "price.txt").write_text(out)
    out = good(
        "fit",
        folder / "houses.csv",
        "--target",
        "dear",
        "--drop",
        "price",
        "--out",
        folder / "dear.model",
        *TINY,
    ).output
    (folder / "dear.txt").write_text(out)
    (folder / "plain.txt").write_text(
        good("predict", folder / "price.model", folder / "new.csv", "--out", folder / "plain.csv").output
    )
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# fit


def test_fit_tells_what_it_did_and_leaves_a_model_with_a_report(home: Path):
    words = (home / "price.txt").read_text()
    for line in (
        "rows             360 to learn from, 40 held out",
        "task             numbers: price",
        "method           ml-cdn",
    ):
        assert line in words
    for name in ("NLL", "RMSE", "coverage of 90%", "ECE", "time"):
        assert f"\n{name} " in words
    assert "2 classes: dear" in (home / "dear.txt").read_text()
    assert "\naccuracy " in (home / "dear.txt").read_text()
    assert sorted(path.name for path in (home / "price.model").iterdir()) == [
        "config.json",
        "report.html",
        "tensors.safetensors",
    ]
    for model in ("price", "dear"):
        page = (home / f"{model}.model" / "report.html").read_text()
        for heading in (
            "Calibration",
            "Intervals" if model == "price" else "Confidence",
            "Most uncertain rows",
            "Strangest rows",
        ):
            assert f"<h2>{heading}</h2>" in page
        assert "http" not in page.replace("http://www.w3.org", "")


def test_summary_is_of_rows_the_fit_never_saw(here: Path, monkeypatch: pytest.MonkeyPatch):
    table = frame(200).drop(columns="dear")
    table["price"] += np.arange(200) / 1e4  # no two alike
    table.to_csv("t.csv", index=False)
    seen = []
    plain = CompoundRegressor.fit
    monkeypatch.setattr(CompoundRegressor, "fit", lambda self, X, y: seen.append((X, y)) or plain(self, X, y))
    wish = fitting.FitRequest("price", method="map", max_epochs=2, test_fraction=0.25, verbose=False)
    fitted = fitting.fit_table(Path("t.csv"), wish)
    ((x, y),) = seen
    assert len(y) == 150
    assert not set(y) & set(fitted.y_test)
    assert sorted([*y, *fitted.y_test]) == sorted(table["price"])
    assert np.array_equal(table["price"].to_numpy()[fitted.test_rows], fitted.y_test)
    assert np.array_equal(table["size"].to_numpy()[fitted.test_rows], fitted.test.x["size"])
    number = {n.name: n.value for n in fitted.metrics}
    mean = fitted.estimator.predict(fitted.test.x)
    assert number["RMSE"] == pytest.approx(oracle.root_mean_squared_error(fitted.y_test, mean))
    assert number["MAE"] == pytest.approx(oracle.mean_absolute_error(fitted.y_test, mean))
    assert "price" not in x.columns


def test_every_class_is_learnt_from_and_shares_in_the_held_out_rows():
    y = pd.Series(["a"] * 100 + ["b"] * 30 + ["c"] * 3 + ["d"], name="y")
    table, counts = model_inputs.LabelledTable(Path("t.csv"), pd.DataFrame(), y), []
    for seed in range(400):
        chosen = fitting._test_mask(table, True, fitting.FitRequest("y", test_fraction=0.2, seed=seed))
        counts.append([int((y[chosen] == label).sum()) for label in "abcd"])
    a, b, c, d = np.array(counts).T
    assert set(a + b + c) <= {25, 26} and set(b) <= {5, 6} and set(c) == {0, 1} and not d.any()
    share = 3 * 26 / 134
    assert abs(c.mean() - share) < 4 * np.sqrt(share * (1 - share) / 400)


def test_many_small_classes_are_judged_on_their_share_of_rows(here: Path):
    """Thirty classes of nine rows: one row used to be held out, and one right answer read "1 (1 to 1)"."""
    random = np.random.default_rng(0)
    pd.DataFrame({"x": random.normal(size=270), "y": [f"c{i}" for i in np.arange(270) % 30]}).to_csv(
        "t.csv", index=False
    )
    told = good("fit", "t.csv", "--target", "y", "--method", "map", "--epochs", "1").output
    lines = dict(line.split(None, 1) for line in told.splitlines() if line.strip())
    assert lines["rows"] == "243 to learn from, 27 held out"
    assert lines["calibration"] == "90% sets rest on 24 calibration rows"
    low, high = (float(word) for word in re.search(r"\((.*) to (.*)\)", lines["accuracy"]).groups())
    assert 0 <= low < high < 0.5


def test_few_rows_are_said_to_be_few():
    assert pages.calibration_note(24.4, True) == "90% intervals rest on 24 calibration rows"
    assert pages.calibration_note(9.0, False) == "90% sets rest on 9 calibration rows"
    assert (
        pages.calibration_note(8.9, True)
        == "90% intervals rest on 9 calibration rows, too few: they take errors for Gaussian"
    )
    assert pages.calibration_note(1.0, False) == "90% sets rest on 1 calibration row, too few: they hold every class"
    assert (
        pages.calibration_note(0.0, True)
        == "90% intervals rest on 0 calibration rows, too few: they are as wide as the model says"
    )


@pytest.mark.parametrize("right,rows", [(1, 1), (0, 3), (33, 33), (7, 20), (500, 1000)])
def test_shares_have_wilsons_intervals(right: int, rows: int):
    found, theirs = (
        confidence_intervals.Metric.from_proportion("accuracy", right / rows, rows),
        stats.binomtest(right, rows).proportion_ci(method="wilson"),
    )
    assert (found.low, found.high) == pytest.approx(
        (theirs.low, theirs.high), abs=1e-12
    ) and found.low < found.high


@pytest.mark.parametrize(
    "values,task",
    [
        (["a", "b", "a"], "classification"),
        ([True, False, True], "classification"),
        ([0, 1, 1], "classification"),
        ([1.0, 2.0, 2.0], "classification"),
        ([1.0, 2.0, 3.0], "regression"),
        ([1.5, 2.0, 2.0], "regression"),
        (list(range(11)), "regression"),
    ],
)
def test_task_is_guessed_from_the_column(values: list, task: str):
    assert model_inputs.infer_task(Path("t.csv"), pd.Series(values, name="y"), "auto") == task
    if not isinstance(values[0], str | bool):
        assert model_inputs.infer_task(Path("t.csv"), pd.Series(values, name="y"), "regression") == "regression"


# predict


def test_answers_are_those_of_the_estimator(home: Path):
    words = (home / "plain.txt").read_text()
    found, table, model = (
        pd.read_csv(home / "plain.csv"),
        pd.read_csv(home / "new.csv"),
        load(home / "price.model"),
    )
    assert list(found) == [*table, *NUMBERS]
    pd.testing.assert_frame_equal(found[list(table)], table)
    x = table[["size", "weight", "city", "garden"]]
    mean, std = model.predict(x, return_std=True)
    low, high = model.predict_interval(x, 0.9)
    parts = model.decompose(x)
    for name, expected in zip(
        NUMBERS, (mean, std, low, high, parts.aleatoric, parts.epistemic, model.ood_score(x)), strict=False
    ):
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)
    assert found["is_ood"].tolist() == model.is_ood(x).tolist()
    assert f"120 rows, {model.is_ood(x).sum()} of them strange" in words


def test_classes_come_with_probabilities_and_sets(home: Path, here: Path):
    good("predict", home / "dear.model", home / "new.csv", "--only", "--coverage", "0.8", "--out", "a.csv")
    found, model = pd.read_csv("a.csv"), load(home / "dear.model")
    x = pd.read_csv(home / "new.csv")[["size", "weight", "city", "garden"]]
    probs = model.predict_proba(x)
    assert list(found) == ["class", "probability", "set", *NUMBERS[4:], "p(no)", "p(yes)"]
    np.testing.assert_allclose(found[["p(no)", "p(yes)"]], probs, rtol=1e-6)
    assert found["class"].tolist() == model.predict(x).tolist()
    for labels, row, inside in zip(found["set"], probs, model.predict_set(x, 0.8), strict=True):
        order = np.argsort(-row)
        assert labels.split("|") == list(model.classes_[order[inside[order]]])


@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz", "tsv.gz", "parquet"])
def test_every_kind_of_file_gives_the_same_answers(home: Path, here: Path, kind: str):
    table = pd.read_csv(home / "new.csv")
    path = Path(f"in.{kind}")
    if kind == "parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if "tsv" in kind else ",")
    out = Path(f"out.{kind}")
    good("predict", home / "price.model", path, "--out", out)
    found = (
        pd.read_parquet(out) if kind == "parquet" else pd.read_csv(out, sep="\t" if "tsv" in kind else ",")
    )
    pd.testing.assert_frame_equal(found, pd.read_csv(home / "plain.csv"), rtol=1e-12)


def test_long_tables_go_piece_by_piece(home: Path, here: Path, monkeypatch: pytest.MonkeyPatch):
    events = []
    plain_ask, plain_write = streaming.predict_frame, streaming.TableWriter.write
    monkeypatch.setattr(streaming, "CHUNK_ROWS", 50)  # no multiple of the model's own blocks
    monkeypatch.setattr(streaming, "predict_frame", lambda *a: events.append("ask") or plain_ask(*a))
    monkeypatch.setattr(streaming.TableWriter, "write", lambda *a: events.append("write") or plain_write(*a))
    good("predict", home / "price.model", home / "new.csv", "--out", "pieces.csv")
    assert (
        events == ["ask"] + ["ask", "write"] * 3
    )  # one look ahead, then each piece is written before the next is asked
    pd.testing.assert_frame_equal(pd.read_csv("pieces.csv"), pd.read_csv(home / "plain.csv"), rtol=1e-6)


def test_columns_the_model_does_not_read_pass_through_as_written(home: Path, here: Path):
    table = pd.read_csv(home / "new.csv", dtype={"price": str})[["garden", "city", "weight", "size"]]
    table.insert(0, "id", [f"{i:03}" for i in range(120)])
    table.to_csv("t.csv", index=False)
    good("predict", home / "price.model", "t.csv", "--out", "a.csv")
    found = pd.read_csv("a.csv", dtype={"id": str})
    assert found["id"].tolist() == table["id"].tolist()
    np.testing.assert_allclose(
        found["mean"], pd.read_csv(home / "plain.csv")["mean"]
    )  # the order of columns does not matter


def test_truth_values_with_gaps_are_read_alike_by_fit_and_predict(here: Path):
    table = frame(60).drop(columns="dear")
    table["garden"] = ["true", "", "false"] * 20
    table.to_csv("t.csv", index=False)
    good("fit", "t.csv", "--target", "price", "--method", "map", "--epochs", 1)
    model = load("t.model")
    assert model.encoder_.columns[3].boolean and model.encoder_.columns[3].gaps
    good("predict", "t.model", "t.csv", "--out", "a.csv")
    x = pd.read_csv("t.csv").drop(columns="price")  # True, missing, False
    np.testing.assert_allclose(pd.read_csv("a.csv")["mean"], model.predict(x), rtol=1e-6)
    as_numbers = x.assign(garden=x["garden"].map({True: 1.0, False: 0.0}))
    assert np.array_equal(model.predict(as_numbers), model.predict(x))


def test_tables_of_numbers_alone_keep_the_names_of_their_columns(here: Path):
    table = frame(80)[["weight", "size", "price"]]
    table.to_csv("t.csv", index=False)
    good("fit", "t.csv", "--target", "price", "--method", "map", "--epochs", 1)
    model = load("t.model")
    assert [column.name for column in model.encoder_.columns] == ["weight", "size"]
    table[["size", "price", "weight"]].to_csv("turned.csv", index=False)
    good("predict", "t.model", "turned.csv", "--out", "a.csv")
    np.testing.assert_allclose(
        pd.read_csv("a.csv")["mean"], model.predict(table[["weight", "size"]]), rtol=1e-6
    )
    good("evaluate", "t.model", "t.csv", "--out", "e.html")
    assert "weight" in good("explain", "t.model", "t.csv", "--row", 3).output
    table.rename(columns={"size": "length"}).to_csv("other.csv", index=False)
    refused(run("predict", "t.model", "other.csv"), "no column 'size'")


@pytest.mark.parametrize("value", ["2024-05-01", "2024-05-01 10:30:00", "10:30:00"])
def test_times_are_refused_by_fit(here: Path, value: str):
    write("t.csv", TABLE.replace("Ulm", value))
    refused(run("fit", "t.csv", "--target", "price"), "t.csv", "'city'", "times", "--drop")


# evaluate


def judged(home: Path, name: str) -> tuple[row_predictions.RowScores, model_inputs.LabelledTable, np.ndarray]:
    model = load(home / f"{name}.model")
    labelled = model_inputs.read_labelled(home / "new.csv", model, name)
    truth = model_inputs.encode_target(labelled, model)
    return row_predictions.score_frame(model, labelled.x, truth, prediction_metrics.LEVELS), labelled, truth


def test_numbers_for_numbers_agree_with_other_libraries(home: Path):
    found, labelled, truth = judged(home, "price")
    model = load(home / "price.model")
    number = {n.name: n for n in prediction_metrics.prediction_metrics(found, True, named_generator(0))}
    answer = model.predict_dist(labelled.x)
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(len(truth), len(answer.means), dtype=torch.float64)),
        torch.distributions.Normal(answer.means[..., 0].T, answer.variances[..., 0].T.sqrt()),
    )
    assert number["NLL"].value == pytest.approx(-mixture.log_prob(torch.tensor(truth)).mean().item())
    for place in (3, 17):
        ends = model.predict_interval(labelled.x, found.levels[place])
        assert np.array_equal(found.inside[:, place], (truth >= ends.lower) & (truth <= ends.upper))
    inside = found.inside.mean(0)
    assert found.levels[17] == 0.9
    assert number["coverage of 90%"].value == pytest.approx(inside[17])
    assert number["ECE"].value == pytest.approx(np.abs(inside - prediction_metrics.LEVELS).mean())
    assert [point.observed for point in prediction_metrics.calibration_curve(found, True)] == pytest.approx(inside)


def test_numbers_for_classes_agree_with_other_libraries(home: Path):
    found, labelled, truth = judged(home, "dear")
    model = load(home / "dear.model")
    number = {n.name: n for n in prediction_metrics.prediction_metrics(found, False, named_generator(0))}
    probs = model.predict_proba(labelled.x)
    assert number["NLL"].value == pytest.approx(oracle.log_loss(truth, probs))
    assert number["accuracy"].value == pytest.approx(oracle.accuracy_score(truth, probs.argmax(1)))
    assert number["Brier score"].value == pytest.approx(2 * oracle.brier_score_loss(truth, probs[:, 1]))
    gaps = 0.0
    for low in range(15):
        mine = (probs.max(1) > low / 15) & (probs.max(1) <= (low + 1) / 15)
        gaps += abs((probs.max(1) - (probs.argmax(1) == truth))[mine].sum()) / len(truth)
    assert number["ECE"].value == pytest.approx(gaps)
    good_sets = [
        str(model.classes_[t]) in labels.split("|")
        for t, labels in zip(truth, row_predictions.predict_frame(model, labelled.x)["set"], strict=True)
    ]
    assert number["coverage of 90%"].value == pytest.approx(np.mean(good_sets))


def test_bootstrap_intervals_have_the_width_of_theory():
    values = torch.randn(400, generator=named_generator(1)).double().numpy()
    bootstrap = confidence_intervals.Bootstrap(400, named_generator(2))
    samples = bootstrap.evaluate(lambda weights: weights @ torch.from_numpy(values) / 400)
    found = confidence_intervals.Metric.from_samples("mean", samples)
    error = values.std() / 20
    # a 2.5% quantile of 500 draws is off by sqrt(0.025 * 0.975 / 500) / density = 0.12 standard errors; four of those
    assert abs(found.low - (values.mean() - 1.96 * error)) < 0.48 * error
    assert abs(found.high - (values.mean() + 1.96 * error)) < 0.48 * error
    assert found.value == pytest.approx(values.mean())


def test_separation_agrees_with_scikit_learn_ties_included():
    random = np.random.default_rng(0)

    def table(rows: int, shift: float) -> pd.DataFrame:
        parts = {
            name: (random.normal(shift, 1, rows) * 4).round() / 4
            for name in ("aleatoric", "epistemic", "ood_score")
        }
        return pd.DataFrame({**parts, "is_ood": parts["ood_score"] > 1})

    here, there = table(80, 0.0), table(50, 1.0)
    number = {n.name: n for n in prediction_metrics.ood_metrics(here, there, named_generator(0))}
    labels = np.r_[np.zeros(80), np.ones(50)]
    both = pd.concat([here, there])
    assert number["AUROC of ood_score"].value == pytest.approx(
        oracle.roc_auc_score(labels, both["ood_score"])
    )
    assert number["AUROC of total"].value == pytest.approx(
        oracle.roc_auc_score(labels, both["aleatoric"] + both["epistemic"])
    )
    assert number["flagged in the OOD table"].value == there["is_ood"].mean()
    assert (
        number["AUROC of ood_score"].low
        < number["AUROC of ood_score"].value
        < number["AUROC of ood_score"].high
    )


def test_slices_are_groups_of_rows(home: Path):
    found, labelled, _ = judged(home, "price")
    parts = prediction_metrics.slices(found, labelled.x, True, ["city", "size", "weight"])
    covered = found.inside[:, 17]
    for part in parts:
        if part.column == "city":
            mine = (labelled.x["city"] == part.value).to_numpy()
            assert part.rows == mine.sum()
            assert part.coverage == pytest.approx(covered[mine].mean())
            assert part.error == pytest.approx(np.sqrt((found.error[mine] ** 2).mean()))
    assert {part.value for part in parts if part.column == "city"} == {"Kiel", "Rom", "Ulm"}
    assert sum(part.rows for part in parts if part.column == "size") == 120
    assert {part.rows for part in parts if part.column == "size"} == {24}  # five even ranges
    assert [part.rows for part in parts if part.value == "missing"] == [labelled.x["weight"].isna().sum()]


def test_ranges_of_numbers_are_those_of_pandas():
    column = pd.Series([*range(11), *range(11), None], name="age")  # edges fall on values
    found = prediction_metrics.group_rows(column)
    codes = pd.qcut(column, 5, labels=False)
    assert [name for name, _ in found] == ["0 to 2", "2 to 4", "4 to 6", "6 to 8", "8 to 10", "missing"]
    for place, (_, mine) in enumerate(found[:-1]):
        assert np.array_equal(mine, codes == place)
    assert found[-1][1].tolist() == [False] * 22 + [True]


def test_evaluate_from_end_to_end(home: Path, here: Path):
    strange = frame(100, seed=2)
    strange["size"] += 200
    strange.drop(columns=["price", "dear"]).to_csv("boats.csv", index=False)
    words = ("--ood", "boats.csv", "--slice", "city", "--out", "page.html", "--json", "numbers.json")
    result = good("evaluate", home / "price.model", home / "new.csv", *words)
    for expected in ("RMSE", "AUROC of ood_score", "Slices: city", "Ulm", "Calibration"):
        assert expected in result.output
    numbers = json.loads(Path("numbers.json").read_text())
    assert numbers["ood"]["AUROC of ood_score"]["value"] > 0.99  # twenty standard deviations away
    assert (
        numbers["metrics"]["RMSE"]["low"]
        < numbers["metrics"]["RMSE"]["value"]
        < numbers["metrics"]["RMSE"]["high"]
    )
    page = Path("page.html").read_text()
    assert "Slice by slice" in page
    assert "Rows of the other table" in page
    assert "coverage of 90%" in good("evaluate", home / "dear.model", home / "new.csv").output


# explain


def test_strangeness_comes_from_the_column_that_was_moved(home: Path):
    model = load(home / "price.model")
    row = frame(1, seed=5)[["size", "weight", "city", "garden"]]
    row["weight"] = 0.0
    for column, value in (("size", 150.0), ("weight", 12.0)):
        moved = row.assign(**{column: value})
        found = explaining.explain(model, moved, named_generator(0))
        assert found.contributions[0].column == column
        assert found.contributions[0].ood_score > 0.8
        assert sum(share.ood_score for share in found.contributions) == pytest.approx(1)
        x = row_predictions.encoded(model, moved)[0]
        far = model.ood_detector_.far
        nearest = explaining.squared_distance_terms(far, x, explaining.nearest_centres(far, x)[0]).sum().sqrt().item()
        assert nearest == pytest.approx(model.ood_score(moved)[0], rel=1e-5)  # the same distance, by columns
        assert found.distances[0] == pytest.approx(nearest)


def test_parts_of_the_distance_add_up_where_whitening_leaves_directions_out():
    x = torch.randn(300, 5, generator=named_generator(1)) @ torch.randn(
        5, 80, generator=named_generator(2)
    ) + 0.1 * torch.randn(300, 80, generator=named_generator(3))
    far = DistanceAwareNoise(80)
    far.fit(x, named_generator(4))
    assert far.whiten.shape[1] < 80
    asked = x[:5] + torch.randn(5, 80, generator=named_generator(5))
    nearest = [
        explaining.squared_distance_terms(far, row, explaining.nearest_centres(far, row)[0]).sum().sqrt().item()
        for row in asked
    ]
    np.testing.assert_allclose(nearest, far.distance(asked), rtol=1e-4)


def test_shares_of_doubt_integrate_the_gradient(home: Path, monkeypatch: pytest.MonkeyPatch):
    model = load(home / "price.model")
    width, spans = model.encoder_.width, explaining._column_slices(model.encoder_)
    matrix = torch.randn(width, width, generator=named_generator(1)).double()
    start, x = torch.randn(2, width, generator=named_generator(2)).double()
    monkeypatch.setattr(
        explaining,
        "epistemic",
        lambda _, rows: torch.einsum("ri,ij,rj->r", rows.double(), matrix, rows.double()).numpy(),
    )
    found, usual = explaining.path_contributions(model, x, start, named_generator(0))
    exact = ((x - start) * ((matrix + matrix.T) @ (start + x) / 2)).numpy()  # of a quadratic, by hand
    size = np.abs(exact).sum()
    np.testing.assert_allclose(
        found, [exact[span].sum() for span in spans], atol=1e-5 * size
    )  # stops are in float32
    assert usual == pytest.approx((start @ matrix @ start).item(), rel=1e-5)


def test_shares_of_doubt_add_up_and_name_the_column_that_was_moved(home: Path):
    model = load(home / "price.model")
    row = frame(1, seed=5)[["size", "weight", "city", "garden"]].assign(weight=0.0)
    for column, value in (("size", 150.0), ("weight", 12.0)):
        moved = row.assign(**{column: value})
        found = explaining.explain(model, moved, named_generator(0))
        rise = found.prediction["epistemic"].iloc[0] - found.prototype_epistemic
        assert sum(share.epistemic for share in found.contributions) == pytest.approx(rise, rel=1e-5)
        assert max(found.contributions, key=lambda share: share.epistemic).column == column


def test_prototypes_are_in_the_units_of_the_table(here: Path):
    random = np.random.default_rng(0)
    side = np.arange(300) % 2
    table = pd.DataFrame(
        {"age": 20 + 50 * side + random.normal(0, 0.5, 300), "job": np.where(side, "judge", "pupil")}
    )
    model = CompoundRegressor(Method("map", widths=(5,)), max_epochs=1, random_state=0).fit(
        table, table["age"] * 2
    )
    found = explaining.explain(model, pd.DataFrame({"age": [69.0], "job": ["judge"]}), named_generator(0))
    assert found.prototypes["job"].tolist() == ["judge"] * 3
    assert all(
        abs(float(age) - 70) < 2.5 for age in found.prototypes["age"]
    )  # within five standard deviations


@pytest.mark.parametrize("kind", ["html", "png"])
def test_explain_from_end_to_end(home: Path, here: Path, kind: str):
    result = good("explain", home / "dear.model", home / "new.csv", "--row", 120, "--out", f"why.{kind}")
    table = pd.read_csv(home / "new.csv")
    assert table["city"].iloc[119] in result.output
    assert f"why.{kind}" in result.output
    start = Path(f"why.{kind}").read_bytes()
    assert start.startswith(b"\x89PNG" if kind == "png" else b"<!doctype html>")


# export


def test_exported_program_answers_like_the_model(home: Path, here: Path):
    assert "dear.pt2" in good("export", home / "dear.model", "--rows", 20).output
    model = load(home / "dear.model")
    x = pd.read_csv(home / "new.csv")[["size", "weight", "city", "garden"]].head(20)
    probabilities, *_, distance = torch.export.load("dear.pt2").module()(
        torch.tensor(model.encoder_.numbers(x))
    )
    np.testing.assert_allclose(probabilities, model.predict_proba(x), atol=1e-5)
    np.testing.assert_allclose(distance, model.ood_score(x), rtol=1e-5)
    assert [entry.name for entry in here.iterdir()] == ["dear.pt2"]


# what is refused


def spoil(text: str, line: int, old: str, new: str) -> str:
    lines = text.splitlines()
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    return "\n".join(lines) + "\n"


TABLE = "size,weight,city,garden,price\n" + "".join(
    f"{40 + i}.5,{i % 7},Ulm,true,{100 + i}.25\n" for i in range(30)
)
BAD = {
    "no-target": (TABLE.replace("price", "cost"), ["no column 'price'", "cost"]),
    "empty": ("", ["is empty"]),
    "no-rows": ("size,weight,city,garden,price\n", ["no rows"]),
    "short": (spoil(TABLE, 17, ",Ulm", ""), ["line 17", "4 entries"]),
    "word": (spoil(TABLE, 12, "50.5", "big"), ["line 12", "'size'", "'big'"]),
    "not-utf8": (spoil(TABLE, 9, "Ulm", "Köln").encode("latin-1"), ["line 9", "'city'", "UTF-8"]),
    "endless": (spoil(TABLE, 12, "50.5", "inf"), ["line 12", "'size'", "infinite"]),
    "twice": (TABLE.replace("weight", "size"), ["two columns 'size'"]),
}


def write(path: str, content: str | bytes) -> None:
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())


def refused(result: Result, *expected: str) -> None:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    (line,) = [line for line in result.output.splitlines() if line.startswith("Error:")]
    for words in expected:
        assert words in line
    assert line.count(". ") == 0  # one sentence


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("packed", [False, True])
def test_bad_files_are_refused_by_fit(here: Path, name: str, packed: bool):
    content, expected = BAD[name]
    path = "t.csv.gz" if packed else "t.csv"
    data = content if isinstance(content, bytes) else content.encode()
    Path(path).write_bytes(gzip.compress(data) if packed else data)
    refused(run("fit", path, "--target", "price"), path, *expected)
    assert [entry.name for entry in here.iterdir()] == [path]


@pytest.mark.parametrize("name", ["empty", "no-rows", "short", "word", "not-utf8", "endless", "no-column"])
def test_bad_files_are_refused_by_predict_and_evaluate(home: Path, here: Path, name: str):
    bad = {
        **BAD,
        "no-column": (TABLE.replace("city", "town"), ["no column 'city'", "size, weight, city, garden"]),
    }
    content, expected = bad[name]
    write("t.csv", content)
    refused(run("predict", home / "price.model", "t.csv"), "t.csv", *expected)
    refused(run("evaluate", home / "price.model", "t.csv", "--out", "page.html"), "t.csv", *expected)
    refused(run("explain", home / "price.model", "t.csv", "--row", "1"), "t.csv", *expected)
    assert [entry.name for entry in here.iterdir()] == ["t.csv"]


def test_an_error_in_the_last_row_leaves_the_former_answers_alone(
    home: Path, here: Path, monkeypatch: pytest.MonkeyPatch
):
    lines = "".join(
        f"{40 + i % 20}.5,{i % 7},Ulm,true,{100 + i % 50}.25\n" for i in range(60_000)
    )  # more than one block of the reader
    write("t.csv", "size,weight,city,garden,price\n" + lines + "1,2,Ulm,true,maybe\n1,many,Ulm,true,4\n")
    Path("a.csv").write_text("kept")
    answers = pd.DataFrame({name: np.zeros(streaming.CHUNK_ROWS) for name in NUMBERS})
    monkeypatch.setattr(streaming, "predict_frame", lambda model, table, coverage: answers.head(len(table)))
    refused(
        run("predict", home / "price.model", "t.csv", "--out", "a.csv"),
        "t.csv",
        "line 60003",
        "'weight'",
        "'many'",
    )
    assert Path("a.csv").read_text() == "kept"
    assert sorted(entry.name for entry in here.iterdir()) == ["a.csv", "t.csv"]


def test_the_line_is_right_in_later_pieces_too(home: Path, here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streaming, "CHUNK_ROWS", 10)
    write("t.csv", spoil(TABLE, 27, "65.5", "inf"))
    refused(run("predict", home / "price.model", "t.csv"), "line 27", "'size'", "infinite")


def test_words_among_the_numbers_of_a_parquet_file_are_refused(home: Path, here: Path):
    table = frame(50).astype({"size": str})
    table.loc[20, "size"] = "big"
    table.to_parquet("t.parquet")
    refused(run("predict", home / "price.model", "t.parquet"), "t.parquet", "row 21", "'size'", "'big'")
    whole = Path("t.parquet").read_bytes()
    Path("t.parquet").write_bytes(whole[: len(whole) // 2])
    refused(run("predict", home / "price.model", "t.parquet"), "t.parquet")
    assert [entry.name for entry in here.iterdir()] == ["t.parquet"]


def test_bad_wishes_are_refused_before_any_work(home: Path, here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fitting, "score_frame", None)
    write("t.csv", TABLE)
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    table, model, new = ("t.csv", "--target", "price"), home / "price.model", home / "new.csv"
    for words, *expected in (
        (("fit", "nothing.csv", "--target", "price"), "nothing.csv", "missing"),
        (("fit", "t.xlsx", "--target", "price"), "t.xlsx", ".parquet"),
        (("fit", "t.csv", "--target", "cost"), "no column 'cost'", "size, weight"),
        (("fit", *table, "--drop", "cost"), "no column 'cost'"),
        (("fit", *table, "--drop", "price"), "both target and dropped"),
        (("fit", *table, "--method", "magic"), "method is 'magic'"),
        (("fit", *table, "--option", "lam"), "NAME=VALUE"),
        (("fit", *table, "--option", "speed=3"), "no option 'speed'"),
        (("fit", *table, "--held-out", "1"), "--held-out is 1"),
        (("fit", *table, "--false-alarms", "2"), "false_alarms is 2"),
        (("fit", *table, "--out", "full"), "full", "notes.txt"),
        (("fit", *table, "--out", "t.csv"), "t.csv is a file"),
        (
            ("fit", "t.csv", "--target", "city", "--task", "regression"),
            "line 2",
            "'Ulm'",
            "--task classification",
        ),
        (("predict", "nothing", new), "nothing"),
        (("predict", model, new, "--out", "a.doc"), "a.doc", ".parquet"),
        (("predict", model, new, "--out", "no/a.csv"), "no is no folder"),
        (("predict", model, new, "--coverage", "90"), "coverage is 90"),
        (("evaluate", model, new, "--slice", "colour"), "'colour'", "size, weight, city, garden"),
        (("evaluate", model, new, "--target", "cost"), "no column 'cost'"),
        (("evaluate", home / "dear.model", new, "--target", "city"), "line 2", "'city'", "no, yes"),
        (("explain", model, new, "--row", "121"), "has 120 rows"),
        (("explain", model, new, "--row", "1", "--out", "why.pdf"), "why.pdf", ".png"),
        (("export", "nothing"), "nothing"),
    ):
        refused(run(*words), *expected)
    assert sorted(entry.name for entry in here.iterdir()) == ["full", "t.csv"]


def test_gaps_in_the_target_and_names_that_clash_are_refused(home: Path, here: Path):
    write("t.csv", spoil(spoil(TABLE, 5, "103.25", ""), 9, "107.25", "NA"))
    refused(run("fit", "t.csv", "--target", "price"), "line 5", "'price'", "2 rows in all")
    write("t.csv", TABLE.replace("price", "mean"))
    refused(run("predict", home / "price.model", "t.csv"), "'mean'", "--only")
    good("predict", home / "price.model", "t.csv", "--only")
    refused(run("predict", home / "price.model", "t.csv", "--only", "--out", "t.csv"), "the table itself")


@pytest.mark.parametrize("name", ["fit", "predict", "evaluate", "explain", "export"])
def test_every_command_shows_an_example(name: str):
    assert f"Example: compound {name}" in good(name, "--help").output


# what was left behind, what cannot be written, names that look like formulas


def test_dollars_in_names_are_letters(here: Path):
    table = (
        frame(60)
        .drop(columns="dear")
        .rename(columns={"size": r"$\frac{", "city": "x_{$^", "price": "price $^$\\{"})
    )
    table.to_csv("t$.csv", index=False)
    good("fit", "t$.csv", "--target", "price $^$\\{", "--out", "m", *TINY)
    good("evaluate", "m", "t$.csv", "--out", "e.html")
    good("explain", "m", "t$.csv", "--row", "1", "--out", "x.png")


def test_a_killed_report_blocks_no_later_fit(here: Path):
    frame(40).to_csv("t.csv", index=False)
    words = ("fit", "t.csv", "--target", "price", "--out", "m", "--method", "map", "--epochs", "1")
    good(*words)
    (here / "m" / ".report.html.0123abcd.new").write_text("half a rep")
    good(*words)
    assert sorted(path.name for path in (here / "m").iterdir()) == [
        "config.json",
        "report.html",
        "tensors.safetensors",
    ]
    assert sorted(path.name for path in here.iterdir()) == ["m", "t.csv"]


def test_model_and_report_come_in_one_move(here: Path, monkeypatch: pytest.MonkeyPatch):
    frame(40).to_csv("t.csv", index=False)
    words = ("fit", "t.csv", "--target", "price", "--out", "m", "--method", "map", "--epochs", "1")
    write = persist._write

    def cut_off(path: Path, data: bytes) -> None:
        if path.name.endswith("tensors.safetensors"):
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(persist, "_write", cut_off)
    result = run(*words)
    assert result.exit_code == 130 and "stopped" in result.output
    assert [path.name for path in here.iterdir()] == [
        "t.csv"
    ]  # neither a model without its report nor anything else


def test_places_that_cannot_be_written_are_refused_before_any_work(
    home: Path, here: Path, monkeypatch: pytest.MonkeyPatch
):
    looked = (
        (fitting, "fit_table"),
        (model_inputs, "load_estimator"),
        (evaluating, "load_estimator"),
        (explaining, "explain_row"),
    )
    for (
        module,
        name,
    ) in looked:  # all of them imported by now: what is imported while it is patched would stay so
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("worked before it looked"))
    Path("file").write_text("")
    model, new = home / "price.model", home / "new.csv"
    refused(run("fit", home / "houses.csv", "--target", "price", "--out", "file/m"), "cannot be written to")
    refused(run("evaluate", model, new, "--json", "file/a.json"), "cannot be written to")
    refused(run("evaluate", model, new, "--out", here), "is a folder")
    refused(run("explain", model, new, "--row", 1, "--out", "file/a.html"), "cannot be written to")
    refused(run("export", model, "--out", "file/a.pt2"), "cannot be written to")
    refused(run("export", model, "--rows", 1_000_000_000), "rows is 1,000,000,000", "4,096")
