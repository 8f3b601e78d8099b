"""Estimators on disk: one directory of safetensors and JSON that holds all an answer needs.

The model's description and weights, the encoder's columns, units of y or classes, calibration, threshold, parameters and history.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compound import persist
from compound.data.encoder import Encoder
from compound.estimators.calibration import Intervals, Sets, Temperature
from compound.estimators.strangeness import Strangeness
from compound.models import Method
from compound.models.files import describe, rebuild
from compound.nn import FarNoise
from compound.train import History

if TYPE_CHECKING:
    from compound.estimators.base import Estimator

LAYOUT = 3  # of the words below; raised when an older library could not make sense of them


def save(estimator: "Estimator", path: str | Path, report: bytes | None = None) -> None:
    """Everything a fitted estimator knows, as a model directory at `path`, with a report.html where one is given."""
    from sklearn.utils.validation import check_is_fitted

    from compound.estimators.regressor import CompoundRegressor

    check_is_fitted(estimator)
    history = {name: [None if math.isnan(v) else v for v in values] for name, values in estimator.history_.columns.items()}
    words: dict[str, Any] = {
        "estimator": type(estimator).__name__,
        "layout": LAYOUT,
        "parameters": _parameters(estimator),
        "model": describe(estimator.model_),
        "encoder": estimator.encoder_.words(),
        "names": [str(name) for name in getattr(estimator, "feature_names_in_", [])],
        "columns": estimator.n_features_in_,
        "target": getattr(estimator, "target_name_", None),  # where a table's column was learnt from
        "seed": estimator.seed_,
        "threshold": estimator.threshold_,
        "promised": estimator.strangeness_.promised,
        "history": history,
        "best_step": estimator.history_.best_step,
    }
    tensors = {f"model.{name}": tensor for name, tensor in estimator.model_.state_dict().items()}
    tensors |= {f"far.{name}": tensor for name, tensor in estimator.strangeness_.far.state_dict().items()}
    if isinstance(estimator, CompoundRegressor):
        words |= {"shift": estimator.shift_.tolist(), "scale": estimator.scale_.tolist(), "single": estimator.single_}
        tensors |= {"scores": estimator.intervals_.scores, "weights": estimator.intervals_.weights}
    else:
        classes: Any = estimator.classes_  # type: ignore[attr-defined]
        words |= {"classes": _plain(classes), "dtype": classes.dtype.str, "temperature": estimator.temperature_.value}  # type: ignore[attr-defined]
        tensors |= {"scores": estimator.sets_.scores, "weights": estimator.sets_.weights}  # type: ignore[attr-defined]
    persist.save(path, words, tensors, report)


def load(path: str | Path) -> Any:
    """The estimator saved at `path`, ready to predict; nothing in the files is executed."""
    bundle = persist.load(path)
    try:
        return _restored(path, bundle)
    except (KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} does not hold an estimator ({error}): choose another path or save it again") from error


def _restored(path: str | Path, bundle: persist.Bundle) -> Any:
    from compound.estimators.classifier import CompoundClassifier
    from compound.estimators.regressor import CompoundRegressor

    words = bundle.config
    kinds = {"CompoundRegressor": CompoundRegressor, "CompoundClassifier": CompoundClassifier}
    if words.get("estimator") not in kinds:
        raise ValueError(f"{path} does not hold an estimator: it is a model of the library itself, use compound.load_model")
    if words["layout"] != LAYOUT:
        raise ValueError(f"{path} has layout {words['layout']}, this library reads {LAYOUT}: use the compound that saved it, or fit again")
    parameters = dict(words["parameters"])
    method = parameters.pop("method")
    name = method["name"]
    estimator: Any = kinds[words["estimator"]](Method(name, **_options(method["options"])) if method["options"] else name, **parameters)
    far = FarNoise(words["model"]["inputs"])
    far.load_state_dict(_under(bundle, "far."))
    estimator.model_ = rebuild(persist.Bundle(words["model"], _under(bundle, "model.")))
    estimator.encoder_ = Encoder.of(words["encoder"])
    estimator.strangeness_ = Strangeness(far, words["threshold"], words.get("promised", True))
    estimator.seed_, estimator.n_features_in_ = words["seed"], words["columns"]
    if words["names"]:
        estimator.feature_names_in_ = np.array(words["names"], dtype=object)
    if words.get("target"):
        estimator.target_name_ = words["target"]
    columns = {name: [math.nan if v is None else v for v in values] for name, values in words["history"].items()}
    estimator.history_ = History(columns, words["best_step"])
    if isinstance(estimator, CompoundRegressor):
        estimator.shift_, estimator.scale_, estimator.single_ = np.array(words["shift"]), np.array(words["scale"]), words["single"]
        estimator.intervals_ = Intervals(bundle.tensors["scores"], bundle.tensors["weights"])
    else:
        estimator.classes_ = np.array(words["classes"], dtype=np.dtype(words["dtype"]))
        estimator.temperature_ = Temperature(words["temperature"])
        estimator.sets_ = Sets(bundle.tensors["scores"], bundle.tensors["weights"])
    return estimator


def _parameters(estimator: "Estimator") -> dict[str, Any]:
    """What the estimator was made with; functions and random states are not kept."""
    found = estimator.get_params(deep=False)
    method = found["method"] if isinstance(found["method"], Method) else Method(found["method"])
    kept = {name: _number(value) for name, value in found.items() if name not in ("callbacks", "method")}
    if not isinstance(kept["random_state"], int | None):
        kept["random_state"] = None
    return kept | {"method": {"name": method.name, "options": method.options}}


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _plain(classes: Any) -> list[Any]:
    values = classes.tolist()
    if not all(isinstance(value, str | int | float | bool) for value in values):
        raise ValueError(f"classes_ holds {values[0]!r}: only labels that are text, numbers or truth values can be saved")
    return values


def _options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def _under(bundle: persist.Bundle, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): tensor for name, tensor in bundle.tensors.items() if name.startswith(prefix)}
