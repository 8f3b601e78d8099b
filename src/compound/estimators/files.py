"""Estimators on disk: one directory of safetensors and JSON that holds all an answer needs.

The model's description and weights, the encoder's columns, units of y or classes, calibration, threshold, parameters and history.
"""

import json
import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from compound.estimators.calibration import ConformalIntervals, ConformalSets, TemperatureScaler
from compound.estimators.encoder import Encoder
from compound.io import persist
from compound.io.persist import Spec
from compound.io.schema import (
    Rule,
    anything,
    boolean,
    either,
    integer,
    many,
    mapping,
    nothing,
    number,
    object_of,
    one_of,
    real,
    text,
    told,
)
from compound.models import Method
from compound.models.files import (
    EXTRA,
    check_finite,
    check_options,
    compare_module,
    describe,
    rebuild,
    shaped,
    size,
    specs,
    without_memory,
)
from compound.models.files import check as check_model
from compound.models.sound import probe
from compound.ood.detector import OODDetector
from compound.ood.distance import Distance
from compound.train.loop import History

if TYPE_CHECKING:
    from compound.estimators.base import Estimator

T = TypeVar("T")

LAYOUT = 4  # of the words below; raised when an older library could not make sense of them
LABEL = 10_000  # characters that a type of labels may be wide, whatever they need
CALIBRATION = (
    "scores",
    "weights",
)  # tensors of their own: (rows, targets), or (rows,) for classes
TASKS = {"CompoundRegressor": "regression", "CompoundClassifier": "classification"}

FLAG = either(boolean, integer(0, 100))  # scikit-learn takes numbers for truth values
PARAMETERS = object_of(
    {
        "method": object_of({"name": text(), "options": anything}),
        "max_epochs": either(nothing, integer(1)),
        "batch_size": either(nothing, integer(1)),
        "lr": either(nothing, number(0)),
        "early_stopping": FLAG,
        "validation_fraction": number(0, 1),
        "false_alarms": number(0, 1),
        "warm_start": FLAG,
        "random_state": either(nothing, integer(0, 2**32 - 1)),
        "device": one_of("auto", "cpu"),
        "verbose": FLAG,
    }
)
SCALE = number(1e-300)  # divided by
NUMBER = object_of(
    {"name": text(), "mean": number(), "scale": SCALE, "fill": number(), "gaps": boolean},
    {"boolean": boolean},
    more=True,
)
CATEGORY = object_of({"name": text(), "values": many(either(text(), nothing)), "rest": boolean}, more=True)
COLUMN = Rule(
    "a column",
    lambda value, where: (CATEGORY if isinstance(value, dict) and "values" in value else NUMBER).check(
        value, where
    ),
)
PAST = either(real, nothing)  # not used to answer: may be infinite
WORDS = object_of(
    {
        "estimator": one_of(*TASKS),
        "layout": integer(),
        "parameters": PARAMETERS,
        "model": anything,
        "encoder": many(COLUMN, 1),
        "names": many(text()),
        "columns": integer(1),
        "seed": integer(0, 2**63),
        "threshold": number(0),
        "history": mapping(many(PAST)),
        "best_step": integer(),
    },
    {"target": either(text(), nothing), "promised": boolean},
    more=True,
)
TARGETS = object_of({"shift": many(number(), 1), "scale": many(SCALE, 1), "single": boolean}, more=True)
CLASSES = object_of(
    {
        "classes": many(either(text(), boolean, number()), 2),
        "dtype": text(50),
        "temperature": number(1e-3, 1e3),
    },
    more=True,
)


def save(estimator: "Estimator", path: str | Path, report: bytes | None = None) -> None:
    """Everything a fitted estimator knows, as a model directory at `path`, with a report.html where one is given."""
    from sklearn.utils.validation import check_is_fitted

    from compound.estimators.regressor import CompoundRegressor

    check_is_fitted(estimator)
    history = {
        name: [None if math.isnan(v) else v for v in values]
        for name, values in estimator.history_.columns.items()
    }
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
        "promised": estimator.ood_detector_.promised,
        "history": history,
        "best_step": estimator.history_.best_step,
    }
    tensors = {f"model.{name}": tensor for name, tensor in estimator.model_.state_dict().items()}
    tensors |= {f"distance.{name}": tensor for name, tensor in estimator.ood_detector_.distance.state_dict().items()}
    if isinstance(estimator, CompoundRegressor):
        words |= {
            "shift": estimator.shift_.tolist(),
            "scale": estimator.scale_.tolist(),
            "single": estimator.y_is_1d_,
        }
        tensors |= {"scores": estimator.intervals_.scores, "weights": estimator.intervals_.weights}
    else:
        classes: Any = estimator.classes_  # type: ignore[attr-defined]
        words |= {
            "classes": _plain(classes),
            "dtype": classes.dtype.str,
            "temperature": estimator.temperature_.value,
        }  # type: ignore[attr-defined]
        tensors |= {"scores": estimator.sets_.scores, "weights": estimator.sets_.weights}  # type: ignore[attr-defined]
    _check(json.loads(json.dumps(words)), specs(tensors))  # what could not be loaded is not saved
    check_finite(tensors)
    persist.save(path, words, tensors, report)


def load(path: str | Path) -> Any:
    """The estimator saved at `path`, ready to predict; nothing in the files is executed."""

    def look(words: Any, found: Mapping[str, Spec]) -> None:
        if isinstance(words, dict) and words.get("estimator") not in list(
            TASKS
        ):  # not by its hash: it may be a list
            raise ValueError(
                f"{path} does not hold an estimator: it is a model of the library itself, use compound.load_model"
            )
        if isinstance(words, dict) and words.get("layout") != LAYOUT:
            layout = reprlib.repr(words.get("layout"))
            raise ValueError(
                f"{path} has layout {layout}, this library reads {LAYOUT}: use the compound that saved it, or fit again"
            )
        try:
            _check(words, found)
        except ValueError as error:
            start = f"{path} does not hold an estimator of this version, or tensors of another save"
            raise ValueError(f"{start} ({told(error)}): choose another path or save it again") from error

    bundle = persist.load(path, look)
    try:
        return _restored(bundle)
    except (ValueError, LookupError, TypeError, RuntimeError, ArithmeticError) as error:
        raise ValueError(
            f"{path} does not hold an estimator that works ({told(error)}): choose another path or save it again"
        ) from error


def _check(words: Any, found: Mapping[str, Spec]) -> None:
    """Refuse words of other types or ranges, and words and tensors that do not go together."""
    WORDS.check(words, "it")
    kind, model = TASKS[words["estimator"]], words["model"]
    (TARGETS if kind == "regression" else CLASSES).check(words, "it")
    check_model(model, _under(found, "model."))
    method = words["parameters"]["method"]  # of the next fit, where it was changed since
    check_options(method["name"], method["options"])
    if (
        size(shaped({**model, "method": method["name"], "options": method["options"]}))
        > 2 * size(shaped(model)) + EXTRA
    ):
        raise ValueError(f"the method {method['name']} of its parameters is many times as large as its model")
    outputs, inputs, columns = model["task"]["size"], model["inputs"], len(words["encoder"])
    named = {name: len(words[name]) for name in ("names", "shift", "scale", "classes") if words.get(name)}
    wanted = {"names": columns, "shift": outputs, "scale": outputs, "classes": outputs}
    for name, length in named.items():
        if length != wanted[name]:
            raise ValueError(f"{name} has {length} entries, not {wanted[name]}")
    if words["columns"] != columns or model["task"]["kind"] != kind:
        raise ValueError(
            f"{words['columns']} columns and the task {model['task']['kind']} do not fit {columns} columns and {kind}"
        )
    encoder = Encoder.from_config(words["encoder"])
    if encoder.width != inputs:
        raise ValueError(f"its columns make {encoder.width} numbers, the model takes {inputs}")
    if words["names"] and words["names"] != [column.name for column in encoder.columns]:
        raise ValueError("its names are not those of its columns")
    with without_memory():
        distance = Distance(inputs)
    compare_module(distance, _under(found, "distance."))
    for name in CALIBRATION:
        spec = found.get(name)
        if (
            spec is None
            or spec.dtype is not torch.float64
            or spec.shape[1:] != ((outputs,) if kind == "regression" else ())
        ):
            raise ValueError(f"the tensor {name!r} is missing or of another type or shape ({spec})")
    if found["scores"].shape != found["weights"].shape:
        raise ValueError(f"there are {found['scores'].shape} scores and {found['weights'].shape} weights")
    for name in found:
        if not name.startswith(("model.", "distance.")) and name not in CALIBRATION:
            raise ValueError(f"there is a tensor {reprlib.repr(name)}, which an estimator has not")


def _restored(bundle: persist.Bundle) -> Any:
    """`_check` has seen the words and the layout of the tensors."""
    from compound.estimators.classifier import CompoundClassifier
    from compound.estimators.regressor import CompoundRegressor

    words, (scores, weights) = bundle.config, (bundle.tensors[name] for name in CALIBRATION)
    check_finite(bundle.tensors)
    if not all(bool((bundle.tensors[name] >= 0).all()) for name in CALIBRATION) or not bool(
        (scores[1:] >= scores[:-1]).all()
    ):
        raise ValueError(
            "the calibration's tensors hold negative numbers, or scores are not in ascending order"
        )
    parameters = dict(words["parameters"])
    method = parameters.pop("method")
    name, options = method["name"], method["options"]
    kinds: dict[str, type] = {
        "CompoundRegressor": CompoundRegressor,
        "CompoundClassifier": CompoundClassifier,
    }
    estimator: Any = kinds[words["estimator"]](
        Method(name, **_options(options)) if options else name, **parameters
    )
    estimator._checked()
    distance = Distance(words["model"]["inputs"])
    distance.load_state_dict(_under(bundle.tensors, "distance."))
    estimator.model_ = rebuild(persist.Bundle(words["model"], _under(bundle.tensors, "model.")))
    estimator.encoder_ = Encoder.from_config(words["encoder"])
    estimator.ood_detector_ = OODDetector(distance, words["threshold"], words.get("promised", True))
    estimator.seed_, estimator.n_features_in_ = words["seed"], words["columns"]
    if words["names"]:
        estimator.feature_names_in_ = np.array(words["names"], dtype=object)
    if words.get("target"):
        estimator.target_name_ = words["target"]
    columns = {
        name: [math.nan if v is None else v for v in values] for name, values in words["history"].items()
    }
    estimator.history_ = History(columns, words["best_step"])
    if isinstance(estimator, CompoundRegressor):
        estimator.shift_, estimator.scale_, estimator.y_is_1d_ = (
            _floats(words["shift"]),
            _floats(words["scale"]),
            words["single"],
        )
        estimator.intervals_ = ConformalIntervals(scores, weights)
    else:
        estimator.classes_ = _classes(words["classes"], np.dtype(words["dtype"]))
        estimator.temperature_, estimator.sets_ = (
            TemperatureScaler(words["temperature"]),
            ConformalSets(scores, weights),
        )
    distances = estimator.ood_detector_.scores(probe(words["model"]["inputs"], distance.shift))
    if not distance.fitted or not bool(torch.isfinite(distances).all()):
        raise ValueError("the distance from its training rows is not a number")
    return estimator


def _classes(values: list[Any], dtype: "np.dtype[Any]") -> Any:
    """Labels of the dtype they had; only such as come back from it unchanged."""
    if dtype.kind not in "biufUO" or dtype.itemsize > 4 * max(LABEL, *(len(str(value)) for value in values)):
        raise ValueError(f"classes of type {dtype} cannot be saved")
    classes = np.array(values, dtype=dtype)
    if classes.tolist() != values or len({(type(value), value) for value in values}) != len(values):
        raise ValueError(f"classes are not distinct values of type {dtype}")
    return classes


def _floats(values: list[float]) -> "np.ndarray[Any, Any]":
    return np.array(values, dtype=np.float64)


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
        raise ValueError(
            f"classes_ holds {values[0]!r}: only labels that are text, numbers or truth values can be saved"
        )
    return values


def _options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def _under(entries: Mapping[str, T], prefix: str) -> dict[str, T]:
    return {name.removeprefix(prefix): entry for name, entry in entries.items() if name.startswith(prefix)}
