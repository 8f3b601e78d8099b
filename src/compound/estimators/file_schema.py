"""Validation of an estimator's files: types, ranges, and agreement of configuration and tensors."""

import reprlib
from collections.abc import Mapping
from typing import Any, TypeVar

from compound.estimators.calibration_files import POOLED, PREFIXES, check_calibration
from compound.estimators.encoder import Encoder
from compound.estimators.number_forms import FORMS, SYMBOLS
from compound.estimators.target_kinds import KINDS as KINDS_OF_TARGETS
from compound.estimators.time_column import KINDS
from compound.io.schema import (
    Schema,
    any_of,
    anything,
    array_of,
    boolean,
    enum,
    integer,
    mapping_of,
    null,
    number,
    object_of,
    real,
    string,
)
from compound.io.tensor_specs import TensorSpec
from compound.models.files import (
    EXTRA_BYTES,
    check_config,
    check_module_specs,
    check_options,
    meta_device,
    meta_model,
    module_bytes,
)
from compound.ood import CombinedDetector, Distance

T = TypeVar("T")

TASK_KINDS = {"CompoundRegressor": "regression", "CompoundClassifier": "classification"}
MODEL_PREFIX = "model."  # of the names of the model's tensors
DISTANCE_PREFIX = "distance."  # of the names of the out-of-distribution distance's tensors
OOD_PREFIX = "ood."  # of those of the detector: a sample of training rows, p-values of each witness

FLAG = any_of(boolean, integer(0, 100))  # scikit-learn accepts numbers as booleans
PARAMETERS = object_of(
    {
        "method": object_of({"name": string(), "options": anything}),
        "max_epochs": any_of(null, integer(1)),
        "batch_size": any_of(null, integer(1)),
        "lr": any_of(null, number(0)),
        "early_stopping": FLAG,
        "validation_fraction": number(0, 1),
        "false_positive_rate": number(0, 1),
        "warm_start": FLAG,
        "random_state": any_of(null, integer(0, 2**32 - 1)),
        "device": enum("auto", "cpu"),
        "verbose": FLAG,
    },
    {
        "target_kind": string(100),
        "ordinal": any_of(FLAG, array_of(any_of(string(), boolean, real))),
        "class_weight": any_of(null, string(100), array_of(array_of(any_of(string(), boolean, real), 2, 2))),
    },
)
SCALE = number(1e-300)  # a divisor
LABELS = array_of(any_of(string(), null))
NUMERIC_COLUMN = object_of(
    {
        "name": string(),
        "mean": number(),
        "scale": SCALE,
        "fill": number(),
        "has_missing": boolean,
        "low": number(),
        "high": number(),
    },
    {"boolean": boolean},
    additional=True,
)
CATEGORICAL_COLUMN = object_of(
    {
        "name": string(),
        "values": LABELS,
        "has_other": boolean,
        "rare": any_of(null, LABELS),
        "has_missing": boolean,
    },
    additional=True,
)
PART = object_of({"kind": enum(*KINDS), "mean": number(), "scale": SCALE})
TIME_COLUMN = object_of(
    {"name": string(), "elapsed": NUMERIC_COLUMN, "parts": array_of(PART, 0, len(KINDS))}, additional=True
)


def _check_column(value: Any, path: str) -> None:
    kinds = {"values": CATEGORICAL_COLUMN, "parts": TIME_COLUMN} if isinstance(value, dict) else {}
    next((kinds[name] for name in kinds if name in value), NUMERIC_COLUMN).check(value, path)


FORM = object_of({"symbol": enum(*SYMBOLS), "thousands": enum(",", ".", " ", "'"), "decimal": enum(".", ",")})
CONFIG = object_of(
    {
        "estimator": enum(*TASK_KINDS),
        "layout": integer(),
        "parameters": PARAMETERS,
        "model": anything,
        "encoder": array_of(Schema("a column", _check_column), 1),
        "names": array_of(string()),
        "columns": integer(1),
        "forms": mapping_of(FORM),
        "seed": integer(0, 2**63),
        "threshold": number(0),
        "history": mapping_of(array_of(any_of(real, null))),  # not used for predictions: may be infinite
        "best_step": integer(),
    },
    {
        "target": any_of(string(), null),
        "promised": boolean,
        "adaptive": boolean,
        "groups": array_of(string()),
        "group_column": any_of(string(), null),
        "roles": mapping_of(string()),
        "target_names": array_of(string()),
    },
    additional=True,
)
REGRESSION = object_of(
    {"shift": array_of(number(), 1), "scale": array_of(SCALE, 1), "y_is_1d": boolean},
    {"target_kind": enum(*KINDS_OF_TARGETS), "horizons": array_of(number(0), 0, 100)},
    additional=True,
)
CLASSIFICATION = object_of(
    {
        "classes": array_of(any_of(string(), boolean, number()), 2),
        "dtype": string(50),
        "temperature": number(1e-3, 1e3),
    },
    additional=True,
)


def check_estimator(config: Any, specs: Mapping[str, TensorSpec]) -> None:
    """Raise ValueError for an invalid configuration, and for tensors that do not agree with it.

    `specs` are those of all tensors, by their names in the file.
    """
    CONFIG.check(config, "it")
    kind = TASK_KINDS[config["estimator"]]
    (REGRESSION if kind == "regression" else CLASSIFICATION).check(config, "it")
    check_config(config["model"], without_prefix(specs, MODEL_PREFIX))
    _check_method(config)
    _check_lengths(config, kind)
    with meta_device():
        distance = Distance(config["model"]["inputs"])
        detector = CombinedDetector(distance)
    check_module_specs(distance, without_prefix(specs, DISTANCE_PREFIX))
    _check_detector(detector, without_prefix(specs, OOD_PREFIX))
    check_calibration(config, specs)
    known = (MODEL_PREFIX, DISTANCE_PREFIX, OOD_PREFIX, *PREFIXES)
    for name in specs:
        if not name.startswith(known) and name not in POOLED:
            raise ValueError(f"there is a tensor {reprlib.repr(name)}, which an estimator has not")


def without_prefix(entries: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The entries whose name starts with the prefix, under their names without it."""
    return {name.removeprefix(prefix): entry for name, entry in entries.items() if name.startswith(prefix)}


def _check_method(config: dict[str, Any]) -> None:
    """Raise ValueError if the method among the parameters is invalid, or much larger than the saved model.

    It may be another than the model's, since `set_params` after `fit` changes it for the next fit.
    """
    method = config["parameters"]["method"]
    check_options(method["name"], method["options"])
    next_model = {**config["model"], "method": method["name"], "options": method["options"]}
    if module_bytes(meta_model(next_model)) > 2 * module_bytes(meta_model(config["model"])) + EXTRA_BYTES:
        raise ValueError(f"the method {method['name']} of its parameters is many times as large as its model")


def _check_lengths(config: dict[str, Any], kind: str) -> None:
    """Raise ValueError unless columns, names, targets and classes are as many as model and encoder have.

    `kind` is that of the estimator's task, regression or classification.
    """
    task = config["model"]["task"]
    columns = len(config["encoder"])
    expected = {"names": columns, "shift": task["size"], "scale": task["size"], "classes": task["size"]}
    for name, length in expected.items():
        if config.get(name) and len(config[name]) != length:
            raise ValueError(f"{name} has {len(config[name])} entries, not {length}")
    if config["columns"] != columns or task["kind"] != kind:
        raise ValueError(
            f"{config['columns']} columns and the task {task['kind']} do not fit {columns} columns and {kind}"
        )
    family = config["model"]["task"].get("family")
    if kind == "regression" and (family or "gaussian") != config.get("target_kind", "gaussian"):
        raise ValueError(f"the target's kind {config.get('target_kind')} is not that of the model, {family}")
    encoder = Encoder.from_config(config["encoder"])
    inputs = config["model"]["inputs"]
    if encoder.width != inputs:
        raise ValueError(f"its columns make {encoder.width} numbers, the model takes {inputs}")
    for name, form in config["forms"].items():
        if (form["thousands"], form["decimal"]) not in FORMS:
            raise ValueError(f"the numbers of {reprlib.repr(name)} have one sign for thousands and decimals")
        if name != config.get("target") and encoder.types().get(name) != "number":
            raise ValueError(f"there is no numeric column {reprlib.repr(name)}, of which it has a form")
    if config["names"] and config["names"] != [column.name for column in encoder.columns]:
        raise ValueError("its names are not those of its columns")


def _check_detector(detector: CombinedDetector, specs: Mapping[str, TensorSpec]) -> None:
    """Raise ValueError unless the detector's tensors have its types, and sizes that fit together."""
    for name, empty in detector.state_dict().items():
        spec = specs.get(name)
        if spec is None or spec.dtype is not empty.dtype or len(spec.shape) != 2 or 0 in spec.shape:
            raise ValueError(f"the tensor {name!r} is missing or of another type or shape ({spec})")
    expected = (detector.sample.shape[1], len(detector.values), specs["values"].shape)
    if (specs["sample"].shape[1], specs["values"].shape[0], specs["logs"].shape) != expected:
        raise ValueError("the sample of rows, or the p-values of the out-of-distribution score, do not fit")
    if unknown := set(specs) - set(detector.state_dict()):
        raise ValueError(f"there is a tensor {reprlib.repr(min(unknown))}, which a detector has not")
