"""Estimators on disk: bit-equal predictions after loading, or a clear error."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from fuzz_damages import put_together, take_apart
from sklearn.base import clone
from test_estimators import CLASSIFIER, REGRESSOR, line, mixed

import compound
from compound import CompoundClassifier, CompoundRegressor, Method
from compound.estimators.number_forms import NumberForm
from compound.io.model_directory import CONFIG, TENSORS


@pytest.fixture(scope="module")
def regressor() -> CompoundRegressor:
    x, y = line(80)
    return clone(REGRESSOR).set_params(random_state=0, max_epochs=3).fit(x, np.stack([y, x[:, 1]], 1))


@pytest.fixture(scope="module")
def classifier() -> CompoundClassifier:
    frame = mixed(80)
    return (
        clone(CLASSIFIER)
        .set_params(random_state=np.random.RandomState(0), max_epochs=3)
        .fit(frame, frame["kind"].astype(str))
    )


@pytest.fixture
def saved(regressor, tmp_path):
    regressor.save(tmp_path / "model")
    return tmp_path / "model"


def test_a_loaded_regressor_predicts_with_the_same_bits(regressor, saved):
    again, (x, _) = compound.load(saved), line(30, seed=1)
    assert type(again) is CompoundRegressor and again.get_params() | {
        "method": 0
    } == regressor.get_params() | {"method": 0}
    for before, after in zip(regressor.predict_interval(x), again.predict_interval(x), strict=True):
        assert np.array_equal(before, after)
    for before, after in zip(regressor.decompose(x), again.decompose(x), strict=True):
        assert np.array_equal(before, after)
    assert (
        np.array_equal(regressor.ood_score(x), again.ood_score(x))
        and regressor.threshold_ == again.threshold_
    )
    np.testing.assert_equal(again.history_.columns, regressor.history_.columns)  # NaN counts as equal
    again.fit(*line(40))  # it can be fitted again


def test_a_loaded_classifier_has_its_columns_and_labels(classifier, tmp_path):
    classifier.save(tmp_path / "model")
    again, frame = CompoundClassifier.load(tmp_path / "model"), mixed(30, seed=1)
    assert np.array_equal(again.predict_proba(frame), classifier.predict_proba(frame))
    assert np.array_equal(again.predict(frame), classifier.predict(frame))
    assert list(again.classes_) == ["a", "b", "c"] and list(again.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame.rename(columns={"size": "weight"}))
    with pytest.raises(ValueError, match=r"CompoundClassifier, not a CompoundRegressor"):
        CompoundRegressor.load(tmp_path / "model")


@pytest.mark.parametrize("labels", [[0, 7], [1.0, 2.0], [False, True], ["é", "ü"]])
def test_labels_of_every_type_are_restored(labels, tmp_path):
    x, y = line(40)
    dtype = object if isinstance(labels[0], str) else None
    model = (
        clone(CLASSIFIER)
        .set_params(max_epochs=1)
        .fit(x, np.array(labels, dtype=dtype)[(y > 1000).astype(int)])
    )
    model.save(tmp_path / "model")
    again = compound.load(tmp_path / "model")
    assert again.classes_.tolist() == labels and again.classes_.dtype == model.classes_.dtype


def test_any_flipped_bit_is_detected(saved):
    draw = np.random.default_rng(0)
    for name in (CONFIG, TENSORS):
        intact = (saved / name).read_bytes()
        for i in draw.integers(len(intact), size=25):
            damaged = bytearray(intact)
            damaged[i] ^= 1 << int(draw.integers(8))
            (saved / name).write_bytes(damaged)
            if name == CONFIG and json_equal(bytes(damaged), intact):
                continue  # other spaces, same content
            with pytest.raises(ValueError, match="model"):
                compound.load(saved)
        (saved / name).write_bytes(intact)
    compound.load(saved)


def json_equal(a: bytes, b: bytes) -> bool:
    try:
        return json.loads(a) == json.loads(b)
    except ValueError:
        return False


@pytest.mark.parametrize("name", [CONFIG, TENSORS])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_truncated_files_are_refused(saved, name, part):
    intact = (saved / name).read_bytes()
    (saved / name).write_bytes(intact[: int(part * len(intact))])
    with pytest.raises(ValueError, match="model"):
        compound.load(saved)


def test_files_of_two_models_are_refused(saved, tmp_path):
    clone(REGRESSOR).set_params(random_state=1, max_epochs=1).fit(*line(80)).save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / TENSORS, saved / TENSORS)
    with pytest.raises(ValueError, match="another save"):
        compound.load(saved)


@pytest.mark.parametrize(
    "entry,value", [("threshold", 1e9), ("seed", 3), ("shift", [0.0, 0.0]), ("y_is_1d", True)]
)
def test_an_edited_config_is_refused(saved, entry, value):
    frame = json.loads((saved / CONFIG).read_text())
    assert frame["config"][entry] != value
    frame["config"][entry] = value
    (saved / CONFIG).write_text(json.dumps(frame))
    with pytest.raises(ValueError, match="edited"):
        compound.load(saved)


def set_entry(node: dict, keys: str, value) -> None:
    *path, last = keys.split("/")
    for name in path:
        node = node[int(name) if isinstance(node, list) else name]
    node[int(last) if isinstance(node, list) else last] = value


@pytest.mark.parametrize(
    "keys, value, message",
    [
        ("threshold", -1.0, "threshold is -1"),
        ("threshold", float("nan"), "threshold is nan"),
        ("scale/0", 0.0, r"scale\[0\] is 0"),
        ("shift", [0.0], "shift has 1 entries, not 2"),
        ("y_is_1d", 1, "y_is_1d is 1, not true or false"),
        ("seed", True, "seed is True"),
        ("columns", 3, "3 columns"),
        ("names", ["a"], "names has 1 entries, not 2"),
        ("encoder/0/has_missing", True, "4 numbers, the model takes 3"),
        ("encoder/0/scale", "1", "scale"),
        ("parameters/lr", "fast", "lr is 'fast'"),
        ("parameters/method/options/widths", [20_000, 20_000], "many times as large"),
        ("parameters/method/options/members", 10**9, "members"),
        ("model/inputs", 10**6, "does not fit"),
        ("model/task/size", 1, "does not fit|not 1"),
        ("model/options/widths", [20_000, 20_000], "does not fit|unexpected tensor"),
        ("history", [[]], "history"),
        ("estimator", "CompoundClassifier", "classes"),
    ],
)
def test_invalid_values_are_refused_whatever_the_checksum(saved, keys, value, message):
    parts = take_apart(saved)
    set_entry(parts.frame["config"], keys, value)
    put_together(saved, parts)
    with pytest.raises(ValueError, match=message):
        compound.load(saved)


@pytest.fixture(scope="module")
def dated() -> CompoundRegressor:
    """A regressor on times, one column of which is a target or number written in a form."""
    days = pd.date_range("2024-01-01", periods=80, freq="31h")
    frame = pd.DataFrame({"day": days, "price": np.arange(80.0)})
    model = clone(REGRESSOR).set_params(random_state=0, max_epochs=1).fit(frame, frame["price"])
    model.number_forms_ = {"price": NumberForm("$", ",", ".")}
    return model


@pytest.mark.parametrize(
    "keys, value, message",
    [
        ("encoder/0/parts/0/kind", "moon", "kind is 'moon'"),
        ("encoder/0/parts/0/scale", 0.0, "scale is 0"),
        ("encoder/0/parts/0/mean", float("nan"), "mean is nan"),
        ("encoder/0/parts/0", {"kind": "month"}, "no entry 'mean'"),
        ("encoder/0/parts", [], "the model takes"),
        ("encoder/0/parts", None, "parts is None"),
        ("encoder/0/elapsed", None, "elapsed is None"),
        ("encoder/0/elapsed/scale", -1.0, "scale is -1"),
        ("encoder/0/elapsed/has_missing", True, "the model takes"),
        ("forms/price/symbol", "x", "symbol is 'x'"),
        ("forms/price/thousands", ".", "one sign for thousands and decimals"),
        ("forms/price", ["$", ",", "."], "'price' is"),
        ("forms", {"day": {"symbol": "", "thousands": ",", "decimal": "."}}, "no numeric column 'day'"),
        ("forms", {"cost": {"symbol": "", "thousands": ",", "decimal": "."}}, "no numeric column 'cost'"),
    ],
)
def test_invalid_times_and_forms_are_refused(dated, tmp_path, keys, value, message):
    dated.save(tmp_path / "m")
    parts = take_apart(tmp_path / "m")
    set_entry(parts.frame["config"], keys, value)
    put_together(tmp_path / "m", parts)
    with pytest.raises(ValueError, match=message):
        compound.load(tmp_path / "m")


def test_times_and_forms_are_restored(dated, tmp_path):
    dated.save(tmp_path / "m")
    again = compound.load(tmp_path / "m")
    assert again.encoder_ == dated.encoder_ and again.number_forms_ == dated.number_forms_
    parts = take_apart(tmp_path / "m")  # whatever the mean of the days, the calendar stays within bounds
    parts.frame["config"]["encoder"][0]["elapsed"]["fill"] = 1e140
    put_together(tmp_path / "m", parts)
    row = pd.DataFrame({"day": pd.to_datetime([None]), "price": [1.0]})
    assert np.isfinite(compound.load(tmp_path / "m").predict(row)).all()


@pytest.mark.parametrize("dtype", ["|O8x", "<U2000000000", "<M8[s]", "<i8", "|V9", "object"])
def test_labels_that_do_not_fit_their_dtype_are_refused(classifier, tmp_path, dtype):
    classifier.save(tmp_path / "m")
    parts = take_apart(tmp_path / "m")
    parts.frame["config"]["dtype"] = dtype
    put_together(tmp_path / "m", parts)
    if dtype == "object":  # as it was
        assert list(compound.load(tmp_path / "m").classes_) == ["a", "b", "c"]
    else:
        with pytest.raises(ValueError, match="does not hold an estimator"):
            compound.load(tmp_path / "m")


def test_inconsistent_distance_tensors_are_refused(saved):
    parts = take_apart(saved)
    for name in ("distance.centres", "distance.whiten"):
        tensors = {**parts.tensors, name: parts.tensors[name][:, :-1].contiguous()}
        put_together(saved, parts._replace(tensors=tensors))
        with pytest.raises(ValueError, match="the distance has"):
            compound.load(saved)


def test_an_invalid_prediction_is_an_error(regressor, saved):
    again = compound.load(saved)
    with torch.no_grad():
        again.model_.likelihood.log_noise.fill_(torch.nan)
    with pytest.raises(ValueError, match="the model cannot predict"):
        again.predict(line(3)[0])
    with pytest.raises(ValueError, match="NaN"):
        again.save(saved)  # and cannot be saved
    compound.load(saved)


def test_another_layout_is_refused(saved, monkeypatch):
    monkeypatch.setattr("compound.estimators.files.LAYOUT", 9)
    monkeypatch.setattr("compound.estimators.files.READABLE", (9,))
    with pytest.raises(ValueError, match="layout 8, this library reads 9"):
        compound.load(saved)


def test_a_bare_model_is_not_an_estimator(tmp_path):
    compound.save_model(Method("map").build(2, compound.Task("regression", 1), 0), tmp_path / "model")
    with pytest.raises(ValueError, match="load_model"):
        compound.load(tmp_path / "model")


def test_an_unfitted_estimator_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match="not fitted"):
        CompoundRegressor().save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_exported_programs_predict_as_the_estimator_does(regressor, tmp_path):
    regressor.export(tmp_path / "model.pt2", rows=16)
    x = np.concatenate([line(12, seed=1)[0], 40 * line(4, seed=2)[0]])
    outputs = torch.export.load(tmp_path / "model.pt2").module()(
        torch.from_numpy(regressor.encoder_.numbers(x))
    )
    parts = regressor.decompose(x)
    expected = (*regressor.predict(x, return_std=True), *parts[:3], regressor.ood_score(x))
    for actual, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(
            actual.detach().numpy(), wanted, rtol=1e-5, atol=1e-5
        )  # distances are in float32


def test_exported_classifiers_take_encoded_numbers(classifier, tmp_path):
    classifier.export(tmp_path / "model.pt2", rows=10)
    extra = {"compound.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra).module()
    frame = mixed(10, seed=1)
    numbers = torch.from_numpy(classifier.encoder_.numbers(frame))
    np.testing.assert_allclose(
        program(numbers)[0].detach().numpy(), classifier.predict_proba(frame), atol=1e-5
    )
    metadata = json.loads(extra["compound.json"])
    assert metadata["classes"] == ["a", "b", "c"] and metadata["inputs"] == classifier.encoder_.names
    assert metadata["outputs"][0] == "probabilities" and metadata["threshold"] == classifier.threshold_


@pytest.mark.parametrize("kind", ["weibull", "ordinal"])
def test_programs_of_every_kind_predict_as_the_estimator_does(kind, tmp_path):
    x, _ = line(60)
    y = np.round(np.exp(1 + x[:, 0])) + 1
    if kind == "ordinal":
        model = clone(CLASSIFIER).set_params(ordinal=True, max_epochs=2, random_state=0)
        y = np.clip(y, 1, 4)
    else:
        model = clone(REGRESSOR).set_params(target_kind=kind, max_epochs=2, random_state=0)
    model.fit(x, y).export(tmp_path / "model.pt2", rows=8)
    new = np.concatenate([line(5, seed=1)[0], 40 * line(3, seed=2)[0]])
    program = torch.export.load(tmp_path / "model.pt2").module()
    outputs = [part.detach().numpy() for part in program(torch.from_numpy(model.encoder_.numbers(new)))]
    first = (model.predict_proba(new),) if kind == "ordinal" else model.predict(new, return_std=True)
    expected = (*first, *model.decompose(new)[:3], model.ood_score(new))
    for actual, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(actual.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


def test_missing_values_are_replaced_as_in_training(regressor):
    x, _ = line(5, seed=1)
    missing = x.copy()
    missing[0, 0] = np.nan
    filled = x.copy()
    filled[0, 0] = regressor.encoder_.columns[0].fill
    assert np.array_equal(regressor.predict(missing), regressor.predict(filled))
    assert np.array_equal(regressor.predict(pd.DataFrame(missing)), regressor.predict(filled))
