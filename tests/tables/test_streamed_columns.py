"""The encoder of a table that passes by in chunks: that of the whole table, and bins from a sketch."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch

from compound.estimators.encoder import Encoder
from compound.estimators.encoder_columns import CategoricalColumn
from compound.estimators.quantile_sketch import QuantileSketch
from compound.estimators.streamed_columns import (
    MAX_LABELS,
    CategoricalStatistics,
    Moments,
    column_statistics,
    encoded_counts,
    fit_columns,
)
from compound.nn import PiecewiseLinearEncoding


def mixed_table(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    skewed = rng.lognormal(size=rows)
    gaps = np.where(rng.random(rows) < 0.2, np.nan, rng.normal(1e6, 3.0, rows))
    times = pd.Series(pd.Timestamp("2021-03-01") + pd.to_timedelta(rng.integers(0, 10**8, rows), unit="s"))
    return pd.DataFrame(
        {
            "skewed": skewed,
            "gaps": gaps,
            "few": rng.integers(0, 4, rows).astype(float),
            "constant": np.full(rows, 0.1),
            "empty": np.full(rows, np.nan),
            "spike": np.where(rng.random(rows) < 0.6, 0.0, skewed),
            "flag": rng.random(rows) < 0.3,
            "time": times.mask(rng.random(rows) < 0.1),
            "colour": pd.Series(rng.choice(["red", "blue", "Green", None], rows, p=[0.5, 0.3, 0.1, 0.1])),
            "city": pd.Series([f"c{int(k)}" for k in rng.zipf(1.4, rows)]),
        }
    )


def stream(table: pd.DataFrame, chunk: int):
    kinds = Encoder.fit(table.head(50)).types()
    statistics = [column_statistics(name, kinds[name], seed=0) for name in table]
    for start in range(0, len(table), chunk):
        for each in statistics:
            each.update(table[each.name].iloc[start : start + chunk])
    return statistics


@pytest.mark.parametrize("chunk", [13, 997, 10_000])
def test_the_encoder_of_a_stream_is_that_of_the_table(chunk: int):
    table = mixed_table(300 if chunk == 13 else 5000)
    streamed, whole = fit_columns(stream(table, chunk)), Encoder.fit(table)
    assert [type(c) for c in streamed.columns] == [type(c) for c in whole.columns]
    for ours, exact in zip(streamed.to_config(), whole.to_config(), strict=True):
        for name, value in exact.items():
            if isinstance(value, float):
                np.testing.assert_allclose(ours[name], value, rtol=1e-10, atol=1e-300, err_msg=exact["name"])
            elif name not in ("elapsed", "parts"):
                assert ours[name] == value, (exact["name"], name)
    np.testing.assert_allclose(streamed.transform(table), whole.transform(table), atol=1e-6)


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_bins_of_a_stream_are_those_of_the_encoded_rows(kind: str):
    table = mixed_table(5000)
    statistics = stream(table, 700)
    encoder = fit_columns(statistics)
    ours = PiecewiseLinearEncoding.from_counts(encoded_counts(statistics, encoder), len(table), kind)
    exact = PiecewiseLinearEncoding.fit(torch.from_numpy(encoder.transform(table)), kind)
    assert ours.state_dict().keys() == exact.state_dict().keys()
    for name, tensor in exact.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", ["random", "ascending", "waves"])
def test_ranks_of_a_sketch_are_exact_to_a_thousandth(order: str):
    rows = 400_000
    x = np.random.default_rng(1).permutation(rows).astype(float)
    x = {"random": x, "ascending": np.sort(x), "waves": x[np.argsort(np.sin(x), kind="stable")]}[order]
    sketch = QuantileSketch(seed=3, capacity=2048)  # a quarter of the capacity: four times the error
    for start in range(0, rows, 30_011):
        sketch.update(x[start : start + 30_011])
    levels = np.linspace(0.001, 0.999, 500)
    errors = np.array([sketch.quantile(level) for level in levels]) / rows - levels
    assert np.abs(errors).max() < 4e-3 / 4 and not sketch.is_exact
    values, weights = sketch.items()
    assert weights.sum() == rows and len(values) < 20 * 2048


def test_a_small_stream_has_exact_quantiles():
    x = np.random.default_rng(0).normal(size=501)
    sketch = QuantileSketch(seed=0)
    for part in np.array_split(x, 7):
        sketch.update(part)
    assert sketch.median() == np.median(x)
    sketch.update(x[:1])
    assert sketch.median() == np.median(np.append(x, x[0])) and sketch.is_exact


def test_moments_of_far_numbers_do_not_cancel():
    x = 1e9 + np.random.default_rng(0).normal(size=10_000)
    moments = Moments()
    for part in np.array_split(x, 13):
        moments.update(part)
    np.testing.assert_allclose([moments.mean, moments.scale], [x.mean(), x.std()], rtol=1e-8)


def test_frequent_labels_outlive_millions_of_rare_ones():
    statistics = CategoricalStatistics("name")
    for k in range(6):
        rare = [f"{k}-{i}" for i in range(MAX_LABELS // 2)]
        statistics.update(pd.Series([*rare, *["often"] * 500]))
    column = statistics.fit(remember=True)
    assert isinstance(column, CategoricalColumn) and "often" in column.values
    assert statistics.labels["often"] == 3000 and len(statistics.labels) <= MAX_LABELS
    assert column.has_other and column.rare is None  # new names are ordinary


def test_categories_are_those_of_scikit_learn():
    from sklearn.preprocessing import OneHotEncoder

    from compound.estimators.encoder import MAX_CATEGORIES, choose_categories

    rng = np.random.default_rng(0)
    labels = np.array([None, *(f"v{int(k)}" for k in rng.zipf(1.2, 6000))], dtype=object)
    peer = OneHotEncoder(
        handle_unknown="infrequent_if_exist", min_frequency=10, max_categories=MAX_CATEGORIES
    )
    infrequent = peer.fit(labels[:, None]).infrequent_categories_[0].tolist()
    column = choose_categories("v", Counter(labels.tolist()), len(labels), remember=True)
    assert list(column.rare or ()) == infrequent
    assert list(column.values) == [v for v in peer.categories_[0].tolist() if v not in infrequent]
