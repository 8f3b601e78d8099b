"""`compound predict` and `compound export`: predictions equal those of the estimator."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from table_commands import FEATURES, NUMBERS, assert_rejected, houses, run, run_ok

from compound import load
from compound.tables import (
    streaming,
)


def test_predictions_are_those_of_the_estimator(home: Path):
    predictions = pd.read_csv(home / "plain.csv")
    table = pd.read_csv(home / "new.csv")
    model = load(home / "price.model")
    assert list(predictions) == [*table, *NUMBERS]
    pd.testing.assert_frame_equal(predictions[list(table)], table)
    x = table[FEATURES]
    mean, std = model.predict(x, return_std=True)
    low, high = model.predict_interval(x, 0.9)
    parts = model.decompose(x)
    values = (mean, std, low, high, parts.aleatoric, parts.epistemic, model.ood_score(x))
    for name, expected in zip(NUMBERS, values, strict=False):
        np.testing.assert_allclose(predictions[name], expected, rtol=1e-6)
    assert predictions["is_ood"].tolist() == model.is_ood(x).tolist()
    summary = f"120 rows, {model.is_ood(x).sum()} flagged as out-of-distribution"
    assert summary in (home / "plain.txt").read_text()


def test_classifiers_write_probabilities_and_sets(home: Path, here: Path):
    run_ok("predict", home / "dear.model", home / "new.csv", "--only", "--coverage", "0.8", "--out", "a.csv")
    predictions, model = pd.read_csv("a.csv"), load(home / "dear.model")
    x = pd.read_csv(home / "new.csv")[FEATURES]
    probs = model.predict_proba(x)
    assert list(predictions) == ["class", "probability", "set", *NUMBERS[4:], "p(no)", "p(yes)"]
    np.testing.assert_allclose(predictions[["p(no)", "p(yes)"]], probs, rtol=1e-6)
    assert predictions["class"].tolist() == model.predict(x).tolist()
    for labels, row, inside in zip(predictions["set"], probs, model.predict_set(x, 0.8), strict=True):
        order = np.argsort(-row)
        assert labels.split("|") == list(model.classes_[order[inside[order]]])


@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz", "tsv.gz", "parquet"])
def test_every_file_format_gives_the_same_predictions(home: Path, here: Path, kind: str):
    table = pd.read_csv(home / "new.csv")
    path = Path(f"in.{kind}")
    if kind == "parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if "tsv" in kind else ",")
    out = Path(f"out.{kind}")
    run_ok("predict", home / "price.model", path, "--out", out)
    predictions = (
        pd.read_parquet(out) if kind == "parquet" else pd.read_csv(out, sep="\t" if "tsv" in kind else ",")
    )
    pd.testing.assert_frame_equal(predictions, pd.read_csv(home / "plain.csv"), rtol=1e-12)


def test_tables_are_predicted_in_chunks(home: Path, here: Path, monkeypatch: pytest.MonkeyPatch):
    events = []
    predict, write = streaming.predict_frame, streaming.TableWriter.write
    monkeypatch.setattr(streaming, "CHUNK_ROWS", 50)  # no multiple of the model's block size
    monkeypatch.setattr(streaming, "predict_frame", lambda *a: events.append("predict") or predict(*a))
    monkeypatch.setattr(streaming.TableWriter, "write", lambda *a: events.append("write") or write(*a))
    run_ok("predict", home / "price.model", home / "new.csv", "--out", "chunks.csv")
    # one row first, for the names; then chunks, each written while the next may already be predicted
    assert (events.count("predict"), events.count("write")) == (4, 3)
    for end in range(1, len(events) + 1):
        assert events[:end].count("write") < events[:end].count("predict")
    pd.testing.assert_frame_equal(pd.read_csv("chunks.csv"), pd.read_csv(home / "plain.csv"), rtol=1e-6)


def test_other_columns_pass_through_unchanged(home: Path, here: Path):
    table = pd.read_csv(home / "new.csv", dtype={"price": str})[["garden", "city", "weight", "size"]]
    table.insert(0, "id", [f"{i:03}" for i in range(120)])
    table.to_csv("t.csv", index=False)
    run_ok("predict", home / "price.model", "t.csv", "--out", "a.csv")
    predictions = pd.read_csv("a.csv", dtype={"id": str})
    assert predictions["id"].tolist() == table["id"].tolist()
    # the order of columns does not matter
    np.testing.assert_allclose(predictions["mean"], pd.read_csv(home / "plain.csv")["mean"])


def test_booleans_with_missing_values_are_read_alike_by_fit_and_predict(here: Path):
    table = houses(60).drop(columns="dear")
    table["garden"] = ["true", "", "false"] * 20
    table.to_csv("t.csv", index=False)
    run_ok("fit", "t.csv", "--target", "price", "--method", "map", "--epochs", 1)
    model = load("t.model")
    assert model.encoder_.columns[3].boolean and model.encoder_.columns[3].has_missing
    run_ok("predict", "t.model", "t.csv", "--out", "a.csv")
    x = pd.read_csv("t.csv").drop(columns="price")  # True, missing, False
    np.testing.assert_allclose(pd.read_csv("a.csv")["mean"], model.predict(x), rtol=1e-6)
    as_numbers = x.assign(garden=x["garden"].map({True: 1.0, False: 0.0}))
    assert np.array_equal(model.predict(as_numbers), model.predict(x))


def test_columns_are_matched_by_name(here: Path):
    table = houses(80)[["weight", "size", "price"]]
    table.to_csv("t.csv", index=False)
    run_ok("fit", "t.csv", "--target", "price", "--method", "map", "--epochs", 1)
    model = load("t.model")
    assert [column.name for column in model.encoder_.columns] == ["weight", "size"]
    table[["size", "price", "weight"]].to_csv("reordered.csv", index=False)
    run_ok("predict", "t.model", "reordered.csv", "--out", "a.csv")
    np.testing.assert_allclose(
        pd.read_csv("a.csv")["mean"], model.predict(table[["weight", "size"]]), rtol=1e-6
    )
    run_ok("evaluate", "t.model", "t.csv", "--out", "e.html")
    assert "weight" in run_ok("explain", "t.model", "t.csv", "--row", 3).output
    table.rename(columns={"size": "length"}).to_csv("other.csv", index=False)
    assert_rejected(run("predict", "t.model", "other.csv"), "no column 'size'")


def test_exported_program_predicts_like_the_model(home: Path, here: Path):
    assert "dear.pt2" in run_ok("export", home / "dear.model", "--rows", 20).output
    model = load(home / "dear.model")
    x = pd.read_csv(home / "new.csv")[FEATURES].head(20)
    probabilities, *_, score = torch.export.load("dear.pt2").module()(torch.tensor(model.encoder_.numbers(x)))
    np.testing.assert_allclose(probabilities, model.predict_proba(x), atol=1e-5)
    # between ordinary rows that lie close together log p is steep: it magnifies rounding
    np.testing.assert_allclose(score, model.ood_score(x), rtol=1e-4, atol=1e-3)
    assert [entry.name for entry in here.iterdir()] == ["dear.pt2"]
