"""Permutation importance and partial dependence against slow forms through the estimator's own methods."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from table_commands import FEATURES, houses

from compound import load, named_generator
from compound.estimators.row_predictions import no_progress
from compound.tables import importance


@pytest.mark.parametrize("target", ["price", "dear"])
def test_importance_is_that_of_permuted_tables(home: Path, target: str):
    model, table = load(home / f"{target}.model"), houses(60, seed=5)
    x = table[FEATURES]
    x.loc[3, "weight"] = np.nan
    x.loc[4, "size"] = 500.0  # beyond the range: a surprise that moves with its value
    y = table[target].to_numpy()
    labels = y if target == "price" else np.searchsorted(model.classes_, y)
    found = importance.permutation_importance(model, x, labels, named_generator(2), no_progress)

    def evaluate(rows: pd.DataFrame) -> tuple[float, np.ndarray]:
        """Risk of the rows in their drawn order, and their uncertainty."""
        if target == "price":
            mean, std = model.predict(rows, return_std=True)
            return np.sqrt(((mean - labels[order]) ** 2).mean()), std
        probs = model.predict_proba(rows)
        entropy = -(probs * np.log(probs)).sum(1)
        return -np.log(probs[np.arange(60), labels[order]]).mean(), entropy

    generator = named_generator(2)
    order = torch.randperm(60, generator=generator).numpy()
    base = x.iloc[order].reset_index(drop=True)
    risk, uncertainty = evaluate(base)
    assert {each.column for each in found} == set(FEATURES)
    by_name = {each.column: each for each in found}
    for name in FEATURES:
        moved = base.copy()
        moved[name] = base[name].to_numpy()[torch.randperm(60, generator=generator).numpy()]
        new_risk, new = evaluate(moved)
        assert by_name[name].prediction == pytest.approx(new_risk - risk, rel=1e-4, abs=1e-6)
        change = np.sqrt(((new - uncertainty) ** 2).mean()) / uncertainty.mean()
        assert by_name[name].uncertainty == pytest.approx(change, rel=1e-4, abs=1e-6)
    assert [each.prediction for each in found] == sorted((e.prediction for e in found), reverse=True)


def test_dependence_is_the_mean_over_rows(home: Path):
    model, x = load(home / "price.model"), houses(30, seed=6)[FEATURES]
    by_size, by_city, by_garden = importance.partial_dependence(
        model, x, ["size", "city", "garden"], named_generator(0)
    )
    assert by_city.values == ["Kiel", "Rom", "Ulm"] and by_garden.values == [False, True]
    assert set(by_size.values) <= set(x["size"]) and by_size.values == sorted(by_size.values)
    for curve in (by_size, by_city, by_garden):
        for k, value in enumerate(curve.values):
            moved = x.assign(**{curve.column: value})
            assert curve.mean[k] == pytest.approx(model.predict(moved).mean())
            lower, upper = model.predict_interval(moved, 0.9)
            assert (curve.low[k], curve.high[k]) == pytest.approx((lower.mean(), upper.mean()))


def test_dependence_of_classes_names_the_class(home: Path):
    model, x = load(home / "dear.model"), houses(30, seed=6)[FEATURES]
    (curve,) = importance.partial_dependence(model, x, ["size"], named_generator(0))
    assert curve.label == "yes"
    probs = model.predict_proba(x.assign(size=curve.values[2]))[:, 1]
    assert curve.mean[2] == pytest.approx(probs.mean())
    assert (curve.low[2], curve.high[2]) == pytest.approx(tuple(np.quantile(probs, [0.1, 0.9])))


def test_grids_are_values_of_the_column():
    times = pd.Series(pd.date_range("2024-01-01", periods=100))
    assert len(importance.grid_values(times)) == importance.GRID
    assert importance.grid_values(pd.Series([1.0, np.nan, 1.0])) == [1.0]
    assert importance.grid_values(pd.Series([np.nan, np.nan])) == []
    words = pd.Series([c for i, c in enumerate("abcdefghij") for _ in range(i + 1)])
    assert importance.grid_values(words) == list("cdefghij")
