"""`compound explain`: contributions add up and name the column that was shifted."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from table_commands import FEATURES, houses, run_ok

from compound import CompoundRegressor, Method, load, named_generator
from compound.estimators.validation import encode_table
from compound.ood.distance import Distance
from compound.tables import (
    explaining,
)


def distance_by_columns(distance: Distance, x: torch.Tensor) -> float:
    nearest = explaining.nearest_centres(distance, x)[0]
    return explaining.squared_distance_terms(distance, x, nearest).sum().sqrt().item()


def test_distance_is_attributed_to_the_shifted_column(home: Path):
    model = load(home / "price.model")
    row = houses(1, seed=5)[FEATURES]
    row["weight"] = 0.0
    for column, value in (("size", 150.0), ("weight", 12.0)):
        shifted = row.assign(**{column: value})
        explanation = explaining.explain(model, shifted, named_generator(0))
        assert explanation.contributions[0].column == column
        assert explanation.contributions[0].distance > 0.8
        assert sum(c.distance for c in explanation.contributions) == pytest.approx(1)
        x = encode_table(model, shifted)[0]
        distance = model.ood_detector_.distance
        nearest = distance_by_columns(distance, x)
        assert nearest == pytest.approx(float(distance(x.unsqueeze(0))), rel=1e-5)  # the same, by columns
        assert explanation.distances[0] == pytest.approx(nearest)


def test_distance_terms_add_up_with_rank_deficient_whitening():
    factors = torch.randn(300, 5, generator=named_generator(1))
    loadings = torch.randn(5, 80, generator=named_generator(2))
    x = factors @ loadings + 0.1 * torch.randn(300, 80, generator=named_generator(3))
    distance = Distance(80)
    distance.fit(x, named_generator(4))
    assert distance.whiten.shape[1] < 80
    new = x[:5] + torch.randn(5, 80, generator=named_generator(5))
    nearest = [distance_by_columns(distance, row) for row in new]
    np.testing.assert_allclose(nearest, distance(new), rtol=1e-4)


def test_epistemic_contributions_are_integrated_gradients(home: Path, monkeypatch: pytest.MonkeyPatch):
    model = load(home / "price.model")
    width, spans = model.encoder_.width, explaining._column_slices(model.encoder_)
    matrix = torch.randn(width, width, generator=named_generator(1)).double()
    start, x = torch.randn(2, width, generator=named_generator(2)).double()
    surprises = torch.rand(len(spans), generator=named_generator(3)).double()
    x[-1] = start[-1] + surprises.sum()
    monkeypatch.setattr(
        explaining,
        "epistemic",
        lambda _, rows: torch.einsum("ri,ij,rj->r", rows.double(), matrix, rows.double()),
    )
    increases, at_start = explaining.path_contributions(model, x, start, surprises, named_generator(0))
    gradient = (matrix + matrix.T) @ (start + x) / 2  # of a quadratic, by hand
    exact = ((x - start) * gradient).numpy()
    expected = [exact[span].sum() for span in spans] + gradient[-1].item() * surprises.numpy()
    size = np.abs(exact).sum()
    # points of the path are in float32
    np.testing.assert_allclose(increases, expected, atol=1e-5 * size)
    assert at_start == pytest.approx((start @ matrix @ start).item(), rel=1e-5)


def test_epistemic_contributions_add_up_and_name_the_shifted_column(home: Path):
    model = load(home / "price.model")
    row = houses(1, seed=5)[FEATURES].assign(weight=0.0)
    for column, value in (("size", 150.0), ("weight", 12.0)):
        shifted = row.assign(**{column: value})
        explanation = explaining.explain(model, shifted, named_generator(0))
        increase = explanation.prediction["epistemic"].iloc[0] - explanation.prototype_epistemic
        assert sum(c.epistemic for c in explanation.contributions) == pytest.approx(increase, rel=1e-5)
        assert max(explanation.contributions, key=lambda c: c.epistemic).column == column


def test_prototypes_are_in_the_units_of_the_table(here: Path):
    random = np.random.default_rng(0)
    side = np.arange(300) % 2
    table = pd.DataFrame(
        {"age": 20 + 50 * side + random.normal(0, 0.5, 300), "job": np.where(side, "judge", "pupil")}
    )
    model = CompoundRegressor(Method("map", widths=(5,)), max_epochs=1, random_state=0).fit(
        table, table["age"] * 2
    )
    explanation = explaining.explain(
        model, pd.DataFrame({"age": [69.0], "job": ["judge"]}), named_generator(0)
    )
    assert explanation.prototypes["job"].tolist() == ["judge"] * 3
    # within five standard deviations
    assert all(abs(float(age) - 70) < 2.5 for age in explanation.prototypes["age"])


@pytest.mark.parametrize("kind", ["html", "png"])
def test_explain_from_end_to_end(home: Path, here: Path, kind: str):
    result = run_ok("explain", home / "dear.model", home / "new.csv", "--row", 120, "--out", f"why.{kind}")
    table = pd.read_csv(home / "new.csv")
    assert table["city"].iloc[119] in result.output
    assert f"why.{kind}" in result.output
    start = Path(f"why.{kind}").read_bytes()
    assert start.startswith(b"\x89PNG" if kind == "png" else b"<!doctype html>")


def test_without_a_row_the_most_unusual_one_is_explained(home: Path, here: Path):
    result = run_ok("explain", home / "dear.model", home / "new.csv")
    scores = load(home / "dear.model").ood_score(pd.read_csv(home / "new.csv")[FEATURES])
    assert "page: new.row-highest.html" in result.output
    assert f"Row {1 + scores.argmax()} of new.csv" in Path("new.row-highest.html").read_text()
