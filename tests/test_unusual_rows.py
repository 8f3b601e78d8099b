"""Rows with values that training rows never had: flagged, uncertain, predicted within the target's range."""

import numpy as np
import pandas as pd
import pytest

from compound import CompoundClassifier, CompoundRegressor

FAST = {"random_state": 0, "max_epochs": 10}


def table(rows: int, seed: int) -> pd.DataFrame:
    """Mixed columns: a normal one, a heavy tail, one with gaps, a category with rare values, a free text."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "normal": rng.normal(size=rows),
            "heavy": rng.lognormal(0, 1.5, rows),
            "gaps": np.where(rng.random(rows) < 0.2, np.nan, rng.uniform(size=rows)),
            "city": rng.choice(["Bern", "Oslo", "Rome", "Lima"], rows, p=[0.5, 0.3, 0.15, 0.05]),
            "note": [f"note {i}" for i in rng.integers(10**9, size=rows)],
        }
    )


def target(x: pd.DataFrame, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=len(x))
    return np.sin(2 * x["normal"]) + np.log(x["heavy"]) + (x["city"] == "Oslo") + 0.3 * noise


@pytest.fixture(scope="module")
def regressor() -> CompoundRegressor:
    x = table(2000, 0)
    return CompoundRegressor(**FAST).fit(x, target(x, 1))


@pytest.fixture(scope="module")
def classifier() -> CompoundClassifier:
    x = table(2000, 0)
    return CompoundClassifier(**FAST).fit(x, target(x, 1) > 0)


@pytest.fixture(params=["regressor", "classifier"])
def model(request: pytest.FixtureRequest):
    return request.getfixturevalue(request.param)


def test_ordinary_rows_are_flagged_at_the_promised_rate(model):
    rate = model.is_ood(table(4000, 2)).mean()
    # threshold from 2,000 rows: a relative standard deviation of 1 / sqrt(20), and that of 4,000 test rows
    assert 0.01 - 3 * 0.0027 < rate < 0.01 + 3 * 0.0027


@pytest.mark.parametrize(
    "change",
    [
        {"city": "Atlantis"},
        {"city": None},
        {"normal": np.nan},
        {"normal": 8.0},  # beyond the range by half its width and more
        {"normal": -8.0},
        {"gaps": 2.0},
        {"heavy": 1e6},
        {"normal": 1e6, "heavy": -1e6},
    ],
    ids=str,
)
def test_new_kinds_of_values_are_flagged_and_uncertain(model, change):
    plain = table(200, 3)
    changed = plain.assign(**change)
    assert model.is_ood(changed).mean() >= 0.9
    assert (model.decompose(changed).epistemic > model.decompose(plain).epistemic).mean() > 0.9


def test_what_training_had_is_not_a_surprise(model):
    assert model.is_ood(table(500, 4).assign(gaps=np.nan)).mean() < 0.05
    assert model.is_ood(table(500, 4).assign(note="never seen")).mean() < 0.05  # every row brings a new one


@pytest.mark.parametrize("size", [1e3, 1e6, 1e300])
def test_predictions_stay_within_the_range_of_the_target(regressor, size):
    x = table(2000, 0)
    y = target(x, 1)
    width = y.max() - y.min()
    for column in ("normal", "heavy", "gaps"):
        for sign in (-1, 1):
            far = table(50, 5).assign(**{column: sign * size})
            mean, std = regressor.predict(far, return_std=True)
            lower, upper = regressor.predict_interval(far)
            assert (mean >= y.min() - width).all() and (mean <= y.max() + width).all()
            assert np.isfinite(std).all() and np.isfinite(lower).all() and np.isfinite(upper).all()
            assert regressor.is_ood(far).all()
