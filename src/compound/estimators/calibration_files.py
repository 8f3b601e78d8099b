"""The calibration of an estimator on disk: of all rows, of groups, of boxes, and adapted over time.

scores, weights                  of all rows; after `recalibrate` scores and miscoverages
group.0.scores, group.0.weights  of the first group of the configuration, and so on
joint.scores, .weights, .units   of boxes around several targets
"""

import reprlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from compound.estimators.adaptive import MISCOVERAGES, AdaptiveConformal, AdaptiveSets
from compound.estimators.calibration import ConformalIntervals, ConformalSets, JointScores
from compound.io.tensor_specs import TensorSpec

PREFIXES = ("group.", "joint.")
POOLED = ("scores", "weights", "miscoverages")


def calibration_tensors(estimator: Any) -> dict[str, Tensor]:
    """Tensors of all calibrations of a fitted estimator, by their names in the file."""
    pooled = estimator.pooled_
    second = "miscoverages" if isinstance(pooled, AdaptiveConformal) else "weights"
    tensors = {"scores": pooled.scores, second: getattr(pooled, second)}
    for k, group in enumerate(estimator.group_calibrations_.values()):
        tensors |= {f"group.{k}.scores": group.scores, f"group.{k}.weights": group.weights}
    joint = getattr(estimator, "joint_", None)
    if joint is not None and len(joint.units) > 1:
        tensors |= {f"joint.{name}": getattr(joint, name) for name in ("scores", "weights", "units")}
    return tensors


def check_calibration(config: Mapping[str, Any], specs: Mapping[str, TensorSpec]) -> None:
    """Raise ValueError unless the tensors of calibration are float64 and of shapes that fit."""
    task = config["model"]["task"]
    is_regression = task["kind"] == "regression"
    targets: tuple[int, ...] = (task["size"],) if is_regression else ()
    expected: dict[str, tuple[int, ...]] = {}
    if config.get("adaptive"):
        columns = targets or (1,)
        expected["miscoverages"] = (len(MISCOVERAGES), *columns)
        _check_rows(specs, ("scores",), columns)
    else:
        _check_rows(specs, ("scores", "weights"), targets)
    for k in range(len(config.get("groups", ()))):
        _check_rows(specs, (f"group.{k}.scores", f"group.{k}.weights"), targets)
    if any(name.startswith("joint.") for name in specs):
        expected["joint.units"] = (task["size"],)
        _check_rows(specs, ("joint.scores", "joint.weights"), (1,))
    for name, shape in expected.items():
        spec = specs.get(name)
        if spec is None or spec.dtype is not torch.float64 or tuple(spec.shape) != shape:
            raise ValueError(f"the tensor {name!r} is missing or of another type or shape ({spec})")
    known = {f"group.{k}.{part}" for k in range(len(config.get("groups", ()))) for part in POOLED[:2]}
    known |= {"joint.scores", "joint.weights", "joint.units"} if is_regression else set()
    known |= {"scores", "miscoverages" if config.get("adaptive") else "weights"}
    for name in specs:
        if (name.startswith(PREFIXES) or name in POOLED) and name not in known:
            raise ValueError(f"there is a tensor {reprlib.repr(name)}, which an estimator has not")


def _check_rows(specs: Mapping[str, TensorSpec], names: tuple[str, ...], columns: tuple[int, ...]) -> None:
    """Raise ValueError unless these tensors are float64 of one shape (rows, *columns)."""
    for name in names:
        spec = specs.get(name)
        if spec is None or spec.dtype is not torch.float64 or tuple(spec.shape[1:]) != columns:
            raise ValueError(f"the tensor {name!r} is missing or of another type or shape ({spec})")
    if len({tuple(specs[name].shape) for name in names}) > 1:
        raise ValueError(f"the tensors {' and '.join(names)} have different shapes")


def restore_calibration(estimator: Any, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Set the calibrations of an estimator; ValueError for scores out of order or negative numbers."""
    is_regression = config["model"]["task"]["kind"] == "regression"
    kind: Any = ConformalIntervals if is_regression else ConformalSets
    if config.get("adaptive"):
        adaptive = AdaptiveConformal if is_regression else AdaptiveSets
        if not len(tensors["scores"]) or bool((tensors["scores"] < 0).any()):
            raise ValueError("the adapted scores are missing or hold negative numbers")
        estimator._set_pooled(adaptive(tensors["scores"], tensors["miscoverages"]))
    else:
        estimator._set_pooled(kind(*_checked(tensors, "")))
    estimator.group_column_ = config.get("group_column")
    estimator.group_calibrations_ = {
        label: kind(*_checked(tensors, f"group.{k}.")) for k, label in enumerate(config.get("groups", ()))
    }
    if not is_regression:
        return
    if "joint.units" in tensors:
        if bool((tensors["joint.units"] <= 0).any()):
            raise ValueError("a unit of the boxes is not above 0")
        estimator.joint_ = JointScores(*_checked(tensors, "joint."), tensors["joint.units"])
    elif config["model"]["task"]["size"] == 1 and not config.get("adaptive"):
        scores, weights = _checked(tensors, "")
        estimator.joint_ = JointScores(scores, weights, torch.ones(1, dtype=torch.float64))


def _checked(tensors: Mapping[str, Tensor], prefix: str) -> tuple[Tensor, Tensor]:
    """Scores and weights; ValueError unless scores ascend and nothing is negative."""
    scores, weights = tensors[f"{prefix}scores"], tensors[f"{prefix}weights"]
    if bool((scores < 0).any()) or bool((weights < 0).any()) or bool((scores[1:] < scores[:-1]).any()):
        raise ValueError(
            "the calibration's tensors hold negative numbers, or scores are not in ascending order"
        )
    return scores, weights
