"""Estimators for tables: scikit-learn's contract, data frames, weights, decomposition, memory."""

import re
import resource
import weakref

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from compound import CompoundClassifier, CompoundRegressor, Method
from compound.estimators import memory, prediction
from compound.estimators.prediction import TABLE_BLOCK
from compound.estimators.row_predictions import predict_frame
from compound.models import METHODS
from compound.nn import PiecewiseLinearEncoding
from compound.types import Task

TINY = {"widths": (20,), "hyper": (10,)}
REGRESSOR = CompoundRegressor(Method("ml-cdn", members=2, **TINY), max_epochs=20, batch_size=32)
CLASSIFIER = CompoundClassifier(Method("ml-cdn", **TINY), max_epochs=15, batch_size=32)
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "rows are shuffled into batches, as in SGDRegressor",
    "check_class_weight_classifiers": "15 epochs are too few for weights of ten million to one: see below",
}


@parametrize_with_checks([REGRESSOR, CLASSIFIER], expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
def test_class_weights_decide_between_overlapping_classes():
    """scikit-learn's check of them, with enough epochs."""
    x, y = make_blobs(centers=2, random_state=0, cluster_std=20)
    classifier = CompoundClassifier(
        Method("ml-cdn", **TINY),
        max_epochs=100,
        batch_size=32,
        class_weight={0: 1000, 1: 1e-4},
        random_state=0,
    )
    assert (classifier.fit(x[::2], y[::2]).predict(x[1::2]) == 0).mean() > 0.87


def line(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """y = 1000 + 3 x0 + noise of standard deviation 1, with a second, irrelevant input."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 2))
    return x, 1000 + 3 * x[:, 0] + draw.normal(size=rows)


@pytest.fixture(scope="module")
def regressor() -> CompoundRegressor:
    return clone(REGRESSOR).set_params(random_state=0).fit(*line(300))


def test_mean_and_std_are_in_the_units_of_y(regressor):
    x, y = line(1000, seed=1)
    mean, std = regressor.predict(x, return_std=True)
    assert np.sqrt(np.mean((mean - y) ** 2)) < 1.5  # 1 for the noise alone, 3.2 for a constant prediction
    assert 0.7 < np.median(std) < 1.6
    assert np.array_equal(mean, regressor.predict(x))


def test_a_prediction_does_not_depend_on_other_rows(regressor):
    x, _ = line(300, seed=2)
    order = np.random.default_rng(0).permutation(300)
    mean, interval = regressor.predict(x), regressor.predict_interval(x)
    np.testing.assert_allclose(regressor.predict(x[order]), mean[order], rtol=1e-8)  # 1000 ± 3 from float32
    alone = regressor.predict_interval(x[200:201])
    assert (alone.lower[0], alone.upper[0]) == (interval.lower[200], interval.upper[200])


def test_prediction_of_many_rows_frees_earlier_blocks(regressor, monkeypatch):
    """At most one block of draws is alive when the next one is computed."""
    alive = []

    postprocess = prediction.postprocess

    def counting(estimator, predictive):
        assert sum(reference() is not None for reference in alive) <= 1
        out = postprocess(estimator, predictive)
        alive.append(weakref.ref(out.means))
        return out

    monkeypatch.setattr(prediction, "postprocess", counting)
    regressor.predict_interval(line(3 * TABLE_BLOCK)[0])
    assert len(alive) == 3


def test_quantiles_are_the_bounds_of_the_interval(regressor):
    x, _ = line(50, seed=3)
    low, high = regressor.predict_interval(x, coverage=0.8)
    np.testing.assert_array_equal(regressor.predict_quantiles(x, [0.1, 0.9]), np.stack([low, high], 1))
    quantiles = regressor.predict_quantiles(x, [0.01, 0.1, 0.5, 0.9, 0.99])
    assert (np.diff(quantiles, axis=1) > 0).all()


def test_components_sum_to_the_total_and_outliers_are_epistemic(regressor):
    x, _ = line(50, seed=3)
    parts = regressor.decompose(x)
    np.testing.assert_allclose(parts.total, parts.aleatoric + parts.epistemic, rtol=1e-6)
    np.testing.assert_allclose(parts.aleatoric, parts.component + parts.mixing, rtol=1e-6)
    assert all((part >= 0).all() for part in parts)
    np.testing.assert_allclose(np.sqrt(parts.total), regressor.predict(x, return_std=True)[1], rtol=1e-4)
    far = regressor.decompose(x + 30)
    assert (far.epistemic > 10 * parts.epistemic.max()).all()


def test_samples_have_the_moments_of_the_predictive(regressor):
    x, _ = line(20, seed=4)
    mean, std = regressor.predict(x, return_std=True)
    samples = regressor.sample_y(x, 4000)
    assert (np.abs(samples.mean(1) - mean) < 5 * std / np.sqrt(4000)).all()
    np.testing.assert_allclose(samples.std(1), std, rtol=0.15)


def test_several_targets_have_separate_units():
    x, y = line(200)
    both = np.stack([y, -1e6 * x[:, 1]], 1)
    model = clone(REGRESSOR).set_params(random_state=0, max_epochs=30).fit(x, both)
    mean = model.predict(x)
    assert [np.corrcoef(mean[:, k], both[:, k])[0, 1] > 0.9 for k in (0, 1)] == [True, True]
    low, high = model.predict_interval(x)
    inside = ((low <= both) & (both <= high)).mean(0)
    assert (inside > 0.8).all()
    assert model.predict_quantiles(x, 0.3).shape == (200, 2, 1)


def test_a_row_of_weight_zero_has_no_effect():
    x, y = line(80)
    weight = np.ones(80)
    weight[:20] = 0
    y[:20] = 1e6
    small = clone(REGRESSOR).set_params(random_state=0, max_epochs=3)
    without = clone(small).fit(x[20:], y[20:]).predict(x)
    assert np.array_equal(clone(small).fit(x, y, sample_weight=weight).predict(x), without)
    assert np.array_equal(
        clone(small).fit(x, y, sample_weight=4 * weight).predict(x), without
    )  # only proportions count


def test_rows_of_larger_weight_count_more():
    x = np.zeros((200, 1))
    y = np.repeat(["light", "heavy"], 100)
    weight = np.where(y == "heavy", 9.0, 1.0)
    model = (
        clone(CLASSIFIER)
        .set_params(random_state=0, max_epochs=20, early_stopping=False)
        .fit(x, y, sample_weight=weight)
    )
    assert model.classes_[0] == "heavy" and model.predict_proba(x)[0, 0] > 0.7  # 0.5 without weights


def test_rare_classes_have_calibrated_probabilities():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(1000, 2))
    y = np.where(draw.random(1000) < np.where(x[:, 0] > 1, 0.2, 0.01), "rare", "usual")
    model = clone(CLASSIFIER).set_params(random_state=0, max_epochs=10).fit(x, y)
    probability = model.predict_proba(x)[:, 0]
    assert abs(probability.mean() - (y == "rare").mean()) < 0.03
    assert probability[x[:, 0] > 1].mean() > 3 * probability[x[:, 0] < 1].mean()
    assert set(model.predict(x)) <= {"rare", "usual"}


def mixed(rows: int, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": draw.normal(size=rows),
            "colour": draw.choice(["red", "green"], rows),
            "new": draw.random(rows) < 0.5,
        }
    )
    frame["kind"] = pd.Categorical(draw.choice(["a", "b", "c"], rows))
    frame.loc[::7, "size"] = np.nan
    frame.loc[3, "colour"] = None
    return frame


def test_data_frames_with_text_and_missing_values():
    polars = pytest.importorskip("polars")
    frame = mixed(200)
    y = 5.0 * (frame["colour"] == "red") + 3.0 * frame["new"] + frame["size"].isna()
    model = clone(REGRESSOR).set_params(random_state=0, max_epochs=30).fit(frame, y)
    assert model.score(frame, y) > 0.8
    assert list(model.feature_names_in_) == ["size", "colour", "new", "kind"]
    np.testing.assert_array_equal(model.predict(polars.from_pandas(frame)), model.predict(frame))
    again = clone(model).fit(polars.from_pandas(frame), y)
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["colour", "size", "new", "kind"]])
    with pytest.raises(ValueError, match="data frame"):
        model.predict(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="'size' holds 'big' at row 0"):
        model.predict(frame.assign(size=["big"] * 200))


def test_grid_search_sets_the_options_of_a_method():
    x, y = line(60)
    tiny = clone(REGRESSOR).set_params(max_epochs=2, random_state=0)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), tiny),
        {"compoundregressor__method__lam": [1e-5, 1e-2]},
        cv=2,
        n_jobs=2,
    ).fit(x, y)
    assert search.best_params_["compoundregressor__method__lam"] in (1e-5, 1e-2)
    assert tiny.method.options.get("lam") is None  # the original is unchanged
    named = CompoundRegressor("ml-cdn").set_params(method__lam=0.5)
    assert clone(named).get_params()["method__lam"] == 0.5
    assert len(cross_val_score(tiny, x, y, cv=2)) == 2


def test_warm_start_continues_training():
    x, y = line(100)
    cold = clone(REGRESSOR).set_params(random_state=0, max_epochs=1)
    warm = clone(cold).set_params(warm_start=True)
    once = cold.fit(x, y).score(x, y)
    for _ in range(6):
        warm.fit(x, y)
    assert warm.score(x, y) > once + 0.1
    with pytest.raises(ValueError, match="warm_start"):
        clone(CLASSIFIER).set_params(warm_start=True, max_epochs=1).fit(x, y > 1000).fit(
            x, np.repeat(["a", "b"], 50)
        )


def test_callbacks_receive_the_progress_of_training():
    reports = []
    clone(REGRESSOR).set_params(max_epochs=2, callbacks=[reports.append]).fit(*line(64))
    assert reports[-1].step == reports[-1].steps == 4


@pytest.mark.parametrize(
    "params",
    [
        {"method": "nonsense"},
        {"device": "cuda"},
        {"max_epochs": 0},
        {"batch_size": 0.5},
        {"lr": -1},
        {"validation_fraction": 1.0},
        {"false_positive_rate": 0},
    ],
)
def test_invalid_parameters_are_refused_before_any_work(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        CompoundRegressor(**params).fit(*line(20))


@pytest.mark.parametrize("name", METHODS)
def test_sizes_of_models_are_computed_without_building_them(name):
    task = Task("regression", 2)
    model = Method(name).build(11, task, 0, PiecewiseLinearEncoding(11, bins=7))
    built = sum(tensor.numel() for tensor in model.state_dict().values())
    assert memory.n_numbers(Method(name), 11, 7, task) == built


def test_the_memory_check_needs_no_memory_itself():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    method, task = Method("map", widths=(100_000, 100_000)), Task("regression", 1)
    assert memory.n_numbers(method, 4, 0, task) > 10**10
    assert memory.skeleton(Method("ml-cdn", members=3), 4, 0, task).members == 3
    with pytest.raises(ValueError, match=r"needs about \d+\.\d GB"):
        CompoundRegressor(method).fit(*line(20))
    with pytest.raises(ValueError, match=r"widths is .* give a list of whole numbers"):
        CompoundRegressor(Method("map", widths=(10**10, 10**10))).fit(*line(20))
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
    )  # KiB; the weights would be 40 GB


def test_a_fit_beyond_memory_is_refused_with_advice():
    task, method = Task("regression", 1), Method("ml-cdn")
    free = 8 * 10**9
    with pytest.raises(ValueError, match=r"needs about \d+\.\d GB, 8\.0 GB are free") as refusal:
        memory.check(method, 100_000_000, 20, 0, task, 200, 5, free)
    rows = int(re.search(r"at most ([\d,]+) rows", str(refusal.value)).group(1).replace(",", ""))
    memory.check(method, rows - 1, 20, 0, task, 200, 5, free)  # the advice works
    with pytest.raises(ValueError, match="sample"):
        memory.check(method, int(1.01 * rows), 20, 0, task, 200, 5, free)
    with pytest.raises(ValueError, match="drop columns"):
        memory.check(method, 100, 1_000_000, 0, task, 100, 5, free)
    memory.check(method, 1000, 20, 0, task, 100, 5, free)


@pytest.mark.parametrize("name", ["dpn", "mdn", "temperature", "mc-dropout"])
def test_other_methods_have_the_same_interface(name):
    x, y = line(60)
    model = CompoundClassifier(name, max_epochs=3, random_state=0).fit(x, y > 1000)
    assert np.allclose(model.predict_proba(x).sum(1), 1)
    assert model.is_ood(x + 100).all()


@pytest.mark.parametrize("power", [-460, 455])
def test_predictions_scale_with_the_units_of_y(power: int):
    """Multiplication by a power of two is exact: means scale with it and variances with its square."""
    x, y = line(60)
    model = CompoundRegressor(Method("ml-cdn", members=2, **TINY), max_epochs=2, random_state=0)
    mean, std = model.fit(x, y).predict(x, return_std=True)
    lower, total = model.predict_interval(x).lower, model.decompose(x).total
    scaled = clone(model).fit(x, y * 2.0**power)
    for expected, actual in zip(
        (mean, std, lower),
        (*scaled.predict(x, return_std=True), scaled.predict_interval(x).lower),
        strict=True,
    ):
        np.testing.assert_allclose(actual * 2.0**-power, expected, rtol=1e-9)  # quantiles are iterative
    assert np.array_equal(scaled.decompose(x).total * 2.0**-power * 2.0**-power, total)


def test_targets_whose_squares_over_or_underflow_are_refused():
    x, y = line(20)
    for factor, advice in (
        (1e-162, "multiply it"),
        (1e-300, "multiply it"),
        (1e160, "divide it"),
        (1e300, "divide it"),
    ):
        with pytest.raises(ValueError, match=f"square: {advice} by a constant"):
            CompoundRegressor(max_epochs=1).fit(x, y * factor)
    constant = CompoundRegressor("map", max_epochs=1, random_state=0).fit(x, np.full(20, 1e-200))
    assert np.isfinite(constant.predict(x)).all()


@pytest.mark.parametrize(
    "kind,width", [(CompoundRegressor, 3), (CompoundRegressor, 70), (CompoundClassifier, 70)]
)
def test_predictions_of_a_row_are_bit_equal_alone_and_among_others(kind, width: int):
    """Wide inputs have a shape per cluster: there other rows decide which products are computed."""
    random = np.random.default_rng(0)
    x = random.normal(size=(TABLE_BLOCK + 100, width))
    y = x[:, 0] if kind is CompoundRegressor else np.digitize(x[:, 0], [-0.5, 0.5])
    model = kind(Method("ml-cdn", members=2, **TINY), max_epochs=1, random_state=0).fit(x[:600], y[:600])
    x = np.concatenate([x[:150], 3 * x[150:]])  # some have far noise; more than a block

    def all_predictions(rows: np.ndarray) -> dict[str, np.ndarray]:
        predictions = {"ood_score": model.ood_score(rows), **model.decompose(rows)._asdict()}
        if kind is CompoundRegressor:
            predictions["mean"], predictions["std"] = model.predict(rows, return_std=True)
            predictions["lower"], predictions["upper"] = model.predict_interval(rows)
        else:
            predictions["probabilities"], predictions["set"] = (
                model.predict_proba(rows),
                model.predict_set(rows),
            )
        return predictions | {
            f"frame {name}": column.to_numpy()
            for name, column in predict_frame(model, pd.DataFrame(rows)).items()
        }

    together = all_predictions(x)
    for rows in ([0], [130], [299], [3, 250, 17], list(range(1, 300)), list(range(299, -1, -1))):
        for name, values in all_predictions(x[rows]).items():
            assert np.array_equal(values, together[name][rows]), name
