"""Exported models in ONNX Runtime and in a stand-in for TorchServe predict as the estimator does."""

import importlib.util
import json
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import compound
from compound.estimators import onnx_operations


def rows(count: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    kinds = rng.choice(["flat", "house"], count)
    return pd.DataFrame({"size": rng.normal(size=count), "kind": kinds, "age": rng.uniform(0, 9, count)})


@pytest.fixture(scope="module")
def regressor() -> compound.CompoundRegressor:
    x = rows(200, 0)
    y = x["size"] + (x["kind"] == "house")
    return compound.CompoundRegressor(
        compound.Method("ml-cdn", widths=(4,), hyper=(3,), members=1), max_epochs=3
    ).fit(x, y)


@pytest.fixture(scope="module")
def classifier() -> compound.CompoundClassifier:
    x = rows(200, 0)
    y = np.where(x["size"] > 0.5, "large", np.where(x["age"] > 5, "old", "new"))
    return compound.CompoundClassifier("map", max_epochs=3, random_state=0).fit(x, y)


def expected(estimator: Any, x: pd.DataFrame) -> list[np.ndarray]:
    first = estimator.predict(x, return_std=True) if hasattr(estimator, "predict_interval") else None
    outputs = first or (estimator.predict_proba(x),)
    return [*outputs, *estimator.decompose(x)[:3], estimator.ood_score(x)]


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_onnx_runtime_gives_the_estimator_s_predictions(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx has onnxruntime")
    estimator = request.getfixturevalue(kind)
    estimator.export(tmp_path / "m.onnx", rows=12)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    x = pd.concat([rows(8, 1), rows(4, 2).assign(size=40.0)], ignore_index=True)  # some far away
    outputs = session.run(None, {"x": estimator.encoder_.numbers(x)})
    for actual, wanted in zip(outputs, expected(estimator, x), strict=True):
        np.testing.assert_allclose(actual.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-4)
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["compound.json"])
    assert metadata["outputs"] == [output.name for output in session.get_outputs()]
    assert (metadata["rows"], metadata["threshold"]) == (12, estimator.threshold_)
    assert metadata["inputs"] == estimator.encoder_.names


def served(archive: Path, folder: Path) -> Any:
    """The handler of an archive, unpacked and initialised as TorchServe does."""
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())
    spec = importlib.util.spec_from_file_location("handler", folder / manifest["model"]["handler"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (handler_class,) = [
        value for value in vars(module).values() if isinstance(value, type) and value.__module__ == "handler"
    ]
    handler = handler_class()
    context = SimpleNamespace(system_properties={"model_dir": str(folder)}, manifest=manifest)
    handler.initialize(context)
    return lambda data: handler.handle(data, context)


def encoded(estimator: Any, x: pd.DataFrame) -> list[dict[str, float]]:
    """Rows by names of inputs; those that are 0 and need not be there are left out."""
    numbers = [dict(zip(estimator.encoder_.names, row, strict=True)) for row in estimator.encoder_.numbers(x)]
    return [{k: v for k, v in row.items() if v or k in ("size", "age")} for row in numbers]


def test_archive_answers_requests_of_any_length_together(regressor, tmp_path: Path):
    regressor.export(tmp_path / "houses.mar", rows=8)
    answer = served(tmp_path / "houses.mar", tmp_path / "unpacked")
    x = rows(11, 1)
    bodies = [encoded(regressor, x.iloc[:9]), encoded(regressor, x.iloc[9:])]
    first, wrong, second = answer(
        [{"body": {"rows": bodies[0]}}, {"data": b'{"rows": [3'}, {"data": json.dumps({"rows": bodies[1]})}]
    )
    predictions = pd.DataFrame([*first["predictions"], *second["predictions"]])
    for name, wanted in zip(predictions, expected(regressor, x), strict=False):
        np.testing.assert_allclose(predictions[name], wanted, rtol=1e-4, atol=1e-4)
    assert (predictions["is_ood"] == regressor.is_ood(x)).all()
    assert "the body must be" in wrong["error"]
    for row, message in (
        ({"size": 1.0}, "has no 'age'"),
        ({**bodies[0][0], "colour": 1}, "has no 'input colour in this model'"),
        ([1.0, 2.0], "a row of 2 numbers"),
    ):
        assert message in answer([{"body": {"rows": [row]}}])[0]["error"]


def test_archive_names_the_classes(classifier, tmp_path: Path):
    classifier.export(tmp_path / "m.mar", rows=4)
    x = rows(3, 5)
    (done,) = served(tmp_path / "m.mar", tmp_path / "unpacked")([{"body": {"rows": encoded(classifier, x)}}])
    probabilities = pd.DataFrame([row["probabilities"] for row in done["predictions"]])
    assert list(probabilities) == ["large", "new", "old"]
    np.testing.assert_allclose(probabilities, classifier.predict_proba(x), atol=1e-5)


def test_other_endings_and_missing_packages_are_refused(regressor, tmp_path: Path, monkeypatch):
    with pytest.raises(ValueError, match=r"m\.txt has an unknown format: end it in \.pt2"):
        regressor.export(tmp_path / "m.txt")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"ONNX is not installed: pip install 'compound-torch\[onnx\]'"):
        regressor.export(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_operations_for_onnx_are_those_of_torch():
    tails = torch.logspace(-300, -0.31, 3000, dtype=torch.float64)
    p = torch.cat([tails, 1 - tails[tails > 1e-15]])
    wanted = torch.special.ndtri(p)
    assert bool(((onnx_operations.ndtri(p) - wanted).abs() <= 1e-14 * wanted.abs() + 1e-16).all())
    ordered = torch.tensor([-1.0, 0.0, 0.0, 2.0])
    values = torch.tensor([[-2.0, -1.0, 0.0], [0.5, 2.0, 3.0]])
    for right in (True, False):
        actual = onnx_operations.searchsorted(ordered, values, right=right)
        assert torch.equal(actual, torch.searchsorted(ordered, values, right=right))
    repeats = torch.tensor([2, 0, 3, 1])
    actual = onnx_operations.repeat_interleave(repeats, output_size=6)
    assert torch.equal(actual, torch.repeat_interleave(repeats))
