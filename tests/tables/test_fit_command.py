"""`compound fit`: summary, test rows, task, report, atomic output."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as oracle
from table_commands import TINY, houses, run, run_ok

from compound import CompoundRegressor
from compound.io import model_directory
from compound.tables import (
    fitting,
    model_inputs,
    pages,
)


def test_fit_prints_a_summary_and_saves_model_and_report(home: Path):
    summary = (home / "price.txt").read_text()
    for line in (
        "rows             360 training, 40 held-out test",
        "task             regression: price",
        "method           ml-cdn",
        "outliers         is_ood flags about 0.01 of in-distribution rows, not guaranteed",
    ):
        assert line in summary
    for name in ("NLL", "RMSE", "coverage of 90%", "ECE", "time"):
        assert f"\n{name} " in summary
    assert "classification into 2 classes: dear" in (home / "dear.txt").read_text()
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
            "Rows of highest OOD score",
        ):
            assert f"<h2>{heading}</h2>" in page
        assert "http:" not in page.replace("http://www.w3.org", "") and "https:" not in page


def test_summary_is_of_rows_held_out_from_the_fit(here: Path, monkeypatch: pytest.MonkeyPatch):
    table = houses(200).drop(columns="dear")
    table["price"] += np.arange(200) / 1e4  # no two alike
    table.to_csv("t.csv", index=False)
    seen = []
    plain = CompoundRegressor.fit
    monkeypatch.setattr(CompoundRegressor, "fit", lambda self, X, y: seen.append((X, y)) or plain(self, X, y))
    request = fitting.FitRequest("price", method="map", max_epochs=2, test_fraction=0.25, verbose=False)
    result = fitting.fit_table(Path("t.csv"), request)
    ((x, y),) = seen
    assert len(y) == 150
    assert not set(y) & set(result.y_test)
    assert sorted([*y, *result.y_test]) == sorted(table["price"])
    assert np.array_equal(table["price"].to_numpy()[result.test_rows], result.y_test)
    assert np.array_equal(table["size"].to_numpy()[result.test_rows], result.test.x["size"])
    number = {n.name: n.value for n in result.metrics}
    mean = result.estimator.predict(result.test.x)
    assert number["RMSE"] == pytest.approx(oracle.root_mean_squared_error(result.y_test, mean))
    assert number["MAE"] == pytest.approx(oracle.mean_absolute_error(result.y_test, mean))
    assert "price" not in x.columns


def test_test_rows_are_stratified_and_every_class_is_trained_on():
    y = pd.Series(["a"] * 100 + ["b"] * 30 + ["c"] * 3 + ["d"], name="y")
    table, counts = model_inputs.LabelledTable(Path("t.csv"), pd.DataFrame(), y), []
    for seed in range(400):
        chosen = fitting.choose_test_rows(table, True, fitting.FitRequest("y", test_fraction=0.2, seed=seed))
        counts.append([int((y[chosen] == label).sum()) for label in "abcd"])
    a, b, c, d = np.array(counts).T
    assert set(a + b + c) <= {25, 26} and set(b) <= {5, 6} and set(c) == {0, 1} and not d.any()
    share = 3 * 26 / 134
    assert abs(c.mean() - share) < 4 * np.sqrt(share * (1 - share) / 400)


def test_many_small_classes_have_their_share_of_test_rows(here: Path):
    """Thirty classes of nine rows: once, a single row was held out and the accuracy was "1 (1 to 1)"."""
    random = np.random.default_rng(0)
    pd.DataFrame({"x": random.normal(size=270), "y": [f"c{i}" for i in np.arange(270) % 30]}).to_csv(
        "t.csv", index=False
    )
    output = run_ok("fit", "t.csv", "--target", "y", "--method", "map", "--epochs", "1").output
    lines = dict(line.split(None, 1) for line in output.splitlines() if line.strip())
    assert lines["rows"] == "243 training, 27 held-out test"
    assert lines["calibration"] == "90% prediction sets from 24 calibration rows"
    low, high = (float(word) for word in re.search(r"\((.*) to (.*)\)", lines["accuracy"]).groups())
    assert 0 <= low < high < 0.5


def test_too_few_calibration_rows_are_reported():
    intervals, sets = "90% prediction intervals from", "90% prediction sets from"
    assert pages.calibration_note(24.4, True) == f"{intervals} 24 calibration rows"
    assert pages.calibration_note(9.0, False) == f"{sets} 9 calibration rows"
    too_few = f"{intervals} 9 calibration rows, too few: Gaussian errors assumed"
    assert pages.calibration_note(8.9, True) == too_few
    assert pages.calibration_note(1.0, False) == f"{sets} 1 calibration row, too few: sets hold every class"
    none = f"{intervals} 0 calibration rows, too few: intervals of the predictive distribution"
    assert pages.calibration_note(0.0, True) == none


def test_false_positive_rate_is_reported_with_its_guarantee(here: Path):
    assert pages.ood_note(0.01, True) == "is_ood flags about 0.01 of in-distribution rows"
    houses(200).to_csv("t.csv", index=False)
    arguments = ("fit", "t.csv", "--target", "price", "--drop", "dear", "--method", "map", "--epochs", "1")
    for rate, promised in (("0.1", True), ("0.01", False)):
        note = pages.ood_note(float(rate), promised)
        output = run_ok(*arguments, "--false-alarms", rate).output
        assert f"\noutliers         {note}\n" in output
        assert note in Path("t.model/report.html").read_text()


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
def test_task_is_inferred_from_the_target(values: list, task: str):
    assert model_inputs.infer_task(Path("t.csv"), pd.Series(values, name="y"), "auto") == task
    if not isinstance(values[0], str | bool):
        assert (
            model_inputs.infer_task(Path("t.csv"), pd.Series(values, name="y"), "regression") == "regression"
        )


def test_dollar_signs_in_names_are_not_formulas(here: Path):
    table = (
        houses(60)
        .drop(columns="dear")
        .rename(columns={"size": r"$\frac{", "city": "x_{$^", "price": "price $^$\\{"})
    )
    table.to_csv("t$.csv", index=False)
    run_ok("fit", "t$.csv", "--target", "price $^$\\{", "--out", "m", *TINY)
    run_ok("evaluate", "m", "t$.csv", "--out", "e.html")
    run_ok("explain", "m", "t$.csv", "--row", "1", "--out", "x.png")


def test_files_of_a_killed_fit_do_not_block_the_next(here: Path):
    houses(40).to_csv("t.csv", index=False)
    arguments = ("fit", "t.csv", "--target", "price", "--out", "m", "--method", "map", "--epochs", "1")
    run_ok(*arguments)
    (here / "m" / ".report.html.0123abcd.new").write_text("half a rep")
    run_ok(*arguments)
    assert sorted(path.name for path in (here / "m").iterdir()) == [
        "config.json",
        "report.html",
        "tensors.safetensors",
    ]
    assert sorted(path.name for path in here.iterdir()) == ["m", "t.csv"]


def test_model_and_report_are_saved_atomically(here: Path, monkeypatch: pytest.MonkeyPatch):
    houses(40).to_csv("t.csv", index=False)
    arguments = ("fit", "t.csv", "--target", "price", "--out", "m", "--method", "map", "--epochs", "1")
    write = model_directory.write_synced

    def interrupt(path: Path, data: bytes) -> None:
        if path.name.endswith("tensors.safetensors"):
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(model_directory, "write_synced", interrupt)
    result = run(*arguments)
    assert result.exit_code == 130 and "stopped" in result.output
    assert [path.name for path in here.iterdir()] == ["t.csv"]  # no model without its report
