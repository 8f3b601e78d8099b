"""Estimators on disk: saving to, and loading from, a model directory.

It holds the model's configuration and weights, the encoder's columns, units of y or classes, calibration,
OOD threshold, parameters and history.
"""

import json
import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from compound.estimators.adaptive import AdaptiveConformal
from compound.estimators.calibration import TemperatureScaler
from compound.estimators.calibration_files import calibration_tensors, restore_calibration
from compound.estimators.columns import Array
from compound.estimators.encoder import Encoder
from compound.estimators.file_schema import (
    DISTANCE_PREFIX,
    MODEL_PREFIX,
    OOD_PREFIX,
    TASK_KINDS,
    check_estimator,
    without_prefix,
)
from compound.estimators.number_forms import NumberForm
from compound.estimators.validation import check_parameters
from compound.io.bundle import Bundle
from compound.io.model_directory import load_directory, save_directory
from compound.io.schema import shortened
from compound.io.tensor_specs import TensorSpec, check_finite, specs_of
from compound.models import Method
from compound.models.files import describe, rebuild
from compound.models.sanity import probe_inputs
from compound.ood import CombinedDetector, Distance
from compound.train.history import History

if TYPE_CHECKING:
    from compound.estimators.base import Estimator

LAYOUT = 8  # of the configuration; increased when an older library could not read it
READABLE = (7, LAYOUT)  # 7 had no kinds of targets, groups or boxes
MAX_LABEL_LENGTH = 10_000  # characters for which a dtype of labels may reserve memory


def save(estimator: "Estimator", path: str | Path, report: bytes | None = None) -> None:
    """Save a fitted estimator as a model directory at `path`, with a report.html where one is given."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)
    config = _config(estimator)
    tensors = _tensors(estimator)
    check_estimator(json.loads(json.dumps(config)), specs_of(tensors))  # what cannot be loaded is not saved
    check_finite(tensors)
    save_directory(path, config, tensors, report)


def load(path: str | Path) -> Any:
    """Load an estimator that its method `save`, or the command `compound fit`, has written.

    Nothing in the files is executed, and all of their content is validated.

    Parameters
    ----------
    path : str or Path
        The model directory.

    Returns
    -------
    CompoundRegressor or CompoundClassifier
        The fitted estimator; its predictions are equal to the last bit.

    Raises
    ------
    ValueError
        If the directory is missing, damaged, or does not hold an estimator of this version.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import compound
    >>> X = np.linspace(-1, 1, 50).reshape(-1, 1)
    >>> model = compound.CompoundRegressor("map", max_epochs=5, random_state=0).fit(X, X[:, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model")
    ...     loaded = compound.load(f"{folder}/model")
    >>> bool((loaded.predict(X) == model.predict(X)).all())
    True
    """

    def check(config: Any, specs: Mapping[str, TensorSpec]) -> None:
        # by comparison, not by hash: the entry may be a list
        if isinstance(config, dict) and config.get("estimator") not in list(TASK_KINDS):
            raise ValueError(
                f"{path} does not hold an estimator: it is a model of the library itself, "
                "use compound.load_model"
            )
        if isinstance(config, dict) and config.get("layout") not in list(READABLE):
            layout = reprlib.repr(config.get("layout"))
            raise ValueError(
                f"{path} has layout {layout}, this library reads {LAYOUT}: "
                "use the compound that saved it, or fit again"
            )
        try:
            check_estimator(config, specs)
        except ValueError as error:
            raise ValueError(
                f"{path} does not hold an estimator of this version, or tensors of another save "
                f"({shortened(error)}): choose another path or save it again"
            ) from error

    bundle = load_directory(path, check)
    try:
        return _restore(bundle)
    except (ValueError, LookupError, TypeError, RuntimeError, ArithmeticError) as error:
        raise ValueError(
            f"{path} does not hold an estimator that works ({shortened(error)}): "
            "choose another path or save it again"
        ) from error


def _config(estimator: Any) -> dict[str, Any]:
    """The configuration, as JSON, from which `_restore` makes an equal estimator."""
    columns = estimator.history_.columns.items()
    config: dict[str, Any] = {
        "estimator": type(estimator).__name__,
        "layout": LAYOUT,
        "parameters": _parameters(estimator),
        "model": describe(estimator.model_),
        "encoder": estimator.encoder_.to_config(),
        "names": [str(name) for name in getattr(estimator, "feature_names_in_", [])],
        "columns": estimator.n_features_in_,
        "target": getattr(estimator, "target_name_", None),  # the target's column, where a file was read
        "forms": {  # of numbers in the columns of a file
            name: form._asdict() for name, form in getattr(estimator, "number_forms_", {}).items()
        },
        "seed": estimator.seed_,
        "threshold": estimator.threshold_,
        "promised": estimator.ood_detector_.promised,
        "history": {name: [None if math.isnan(v) else v for v in values] for name, values in columns},
        "best_step": estimator.history_.best_step,
        "adaptive": isinstance(estimator.pooled_, AdaptiveConformal),
        "groups": list(estimator.group_calibrations_),
        "group_column": estimator.group_column_,
        "roles": getattr(estimator, "roles_", {}),
        "target_names": getattr(estimator, "target_names_", []),
    }
    if estimator.model_.task.kind == "regression":
        shift = estimator.shift_.tolist()
        kind = {"target_kind": estimator.target_kind_, "horizons": estimator.horizons_.tolist()}
        units = {"shift": shift, "scale": estimator.scale_.tolist(), "y_is_1d": estimator.y_is_1d_}
        return config | units | kind
    classes = estimator.classes_
    temperature = estimator.temperature_.value
    return config | {"classes": _json_labels(classes), "dtype": classes.dtype.str, "temperature": temperature}


def _tensors(estimator: Any) -> dict[str, Tensor]:
    """Tensors of model, out-of-distribution detector and calibration, by their names in the file."""
    model = estimator.model_.state_dict()
    distance = estimator.ood_detector_.distance.state_dict()
    evidence = estimator.ood_detector_.state_dict()
    return (
        {MODEL_PREFIX + name: tensor for name, tensor in model.items()}
        | {DISTANCE_PREFIX + name: tensor for name, tensor in distance.items()}
        | {OOD_PREFIX + name: tensor for name, tensor in evidence.items()}
        | calibration_tensors(estimator)
    )


def _parameters(estimator: "Estimator") -> dict[str, Any]:
    """The constructor's parameters but those of one run; RandomState objects are not saved."""
    params = estimator.get_params(deep=False)
    method = params["method"] if isinstance(params["method"], Method) else Method(params["method"])
    if isinstance(params.get("class_weight"), dict):  # JSON has text as keys only
        params["class_weight"] = [[label, float(weight)] for label, weight in params["class_weight"].items()]
    saved = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in map(_plain, params.items())
        if name not in ("callbacks", "checkpoint", "distributed", "method")
    }
    if not isinstance(saved["random_state"], int | None):
        saved["random_state"] = None
    return saved | {"method": {"name": method.name, "options": method.options}}


def _plain(parameter: tuple[str, Any]) -> tuple[str, Any]:
    """A parameter with an array or tuple of labels as a list."""
    name, value = parameter
    return name, np.asarray(value).tolist() if name == "ordinal" and not np.isscalar(value) else value


def _json_labels(classes: Array) -> list[Any]:
    """The array `classes_` as a list of JSON values; ValueError for labels that JSON cannot hold."""
    values = classes.tolist()
    if not all(isinstance(value, str | int | float | bool) for value in values):
        raise ValueError(
            f"classes_ holds {values[0]!r}: only labels that are text, numbers or booleans can be saved"
        )
    return values


def _restore(bundle: Bundle) -> Any:
    """The fitted estimator of a bundle that `check_estimator` has accepted."""
    config = bundle.config
    check_finite(bundle.tensors)
    estimator = _unfitted(config)
    check_parameters(estimator)
    estimator.model_ = rebuild(Bundle(config["model"], without_prefix(bundle.tensors, MODEL_PREFIX)))
    estimator.encoder_ = Encoder.from_config(config["encoder"])
    estimator.ood_detector_ = _restore_detector(bundle, estimator.model_.distance)
    estimator.seed_ = config["seed"]
    estimator.n_features_in_ = config["columns"]
    if config["names"]:
        estimator.feature_names_in_ = np.array(config["names"], dtype=object)
    if config.get("target"):
        estimator.target_name_ = config["target"]
    if config.get("target_names"):
        estimator.target_names_ = list(config["target_names"])
    estimator.roles_ = dict(config.get("roles", {}))
    estimator.number_forms_ = {name: NumberForm(**form) for name, form in config["forms"].items()}
    history = config["history"].items()
    columns = {name: [math.nan if v is None else v for v in values] for name, values in history}
    estimator.history_ = History(columns, config["best_step"])
    _restore_calibration(estimator, bundle)
    return estimator


def _unfitted(config: dict[str, Any]) -> Any:
    """The estimator with its saved parameters, before its fitted attributes are set."""
    from compound.estimators.classifier import CompoundClassifier
    from compound.estimators.regressor import CompoundRegressor

    parameters = dict(config["parameters"])
    method = parameters.pop("method")
    if isinstance(parameters.get("class_weight"), list):
        parameters["class_weight"] = dict(parameters["class_weight"])
    options = {
        name: tuple(value) if isinstance(value, list) else value for name, value in method["options"].items()
    }
    kinds = {kind.__name__: kind for kind in (CompoundRegressor, CompoundClassifier)}
    return kinds[config["estimator"]](
        Method(method["name"], **options) if options else method["name"], **parameters
    )


def _restore_detector(bundle: Bundle, of_model: Any) -> CombinedDetector:
    """The saved out-of-distribution detector; ValueError unless its scores of probe inputs are finite.

    Its distance is that of the model, `of_model`, if they are equal: then both compute it once.
    """
    inputs = bundle.config["model"]["inputs"]
    distance = Distance(inputs)
    distance.load_state_dict(without_prefix(bundle.tensors, DISTANCE_PREFIX))
    if isinstance(of_model, Distance) and _equal_buffers(distance, of_model):
        distance = of_model
    detector = CombinedDetector(distance, bundle.config["threshold"], bundle.config.get("promised", True))
    detector.load_state_dict(without_prefix(bundle.tensors, OOD_PREFIX))
    for name in ("values", "logs"):
        table = getattr(detector, name)
        if bool((table < 0).any()) or bool((table[:, 1:] < table[:, :-1]).any()):
            raise ValueError("its p-values hold negative numbers, or are not in ascending order")
    probes = probe_inputs(inputs, distance.shift)
    scores = detector.scores(probes, probes.new_ones(len(probes)), probes.new_zeros(len(probes)))
    if not bool(torch.isfinite(scores).all()):
        raise ValueError("its out-of-distribution score is not a number")
    return detector


def _equal_buffers(one: Distance, other: Distance) -> bool:
    pairs = zip(one.buffers(), other.buffers(), strict=True)
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


def _restore_calibration(estimator: Any, bundle: Bundle) -> None:
    """Set the attributes of calibration, and the units of y or the classes; ValueError for invalid ones."""
    config = bundle.config
    restore_calibration(estimator, config, bundle.tensors)
    if config["model"]["task"]["kind"] == "regression":
        estimator.target_kind_ = config.get("target_kind", "gaussian")
        estimator.horizons_ = np.array(config.get("horizons", []), dtype=np.float64)
        estimator.shift_ = np.array(config["shift"], dtype=np.float64)
        estimator.scale_ = np.array(config["scale"], dtype=np.float64)
        estimator.y_is_1d_ = config["y_is_1d"]
    else:
        estimator.classes_ = _restore_classes(config["classes"], np.dtype(config["dtype"]))
        estimator.temperature_ = TemperatureScaler(config["temperature"])


def _restore_classes(values: list[Any], dtype: "np.dtype[Any]") -> Array:
    """The array `classes_` of saved labels and their dtype; ValueError if the conversion changes labels."""
    if dtype.kind not in "biufUO" or dtype.itemsize > 4 * max(
        MAX_LABEL_LENGTH, *(len(str(value)) for value in values)
    ):
        raise ValueError(f"classes of type {dtype} cannot be saved")
    classes = np.array(values, dtype=dtype)
    if classes.tolist() != values or len({(type(value), value) for value in values}) != len(values):
        raise ValueError(f"classes are not distinct values of type {dtype}")
    return classes
