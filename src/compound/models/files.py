"""Models as directories: what `persist` saves, plus how to build the model again.

Before a tensor is read the description is held against the options of its method, and names, types and shapes
of all tensors against those of a model built from it without memory (on torch's meta device). What cannot be
checked beforehand a trial question shows.
"""

import dataclasses
import math
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compound.io import persist
from compound.io.persist import Spec
from compound.io.schema import (
    anything,
    boolean,
    either,
    integer,
    many,
    mapping,
    nothing,
    object_of,
    one_of,
    real,
    text,
    told,
)
from compound.models.base import Model
from compound.models.distance_aware import DistanceAware
from compound.models.sound import trial as trial
from compound.ood.distance import SIZED_BY_DATA, Distance
from compound.types import Task

SIZES = integer(0, 10_000_000)  # what becomes a size of a tensor: held against the file's own
FEW = either(
    nothing, integer(0, 1000)
)  # what becomes a number of turns or draws: no tensor tells whether it is meant
COUNTS = object_of(
    {}, dict.fromkeys(("members", "samples", "last_draws", "flows_q", "flows_r", "groups"), FEW), more=True
)
OPTIONS = mapping(
    either(text(100), boolean, real, nothing, many(real, most=100))
)  # as far as they do not depend on the method
TASK = object_of({"kind": one_of("classification", "regression"), "size": SIZES})
DESCRIPTION = object_of(
    {"method": text(), "inputs": integer(1, 10_000_000), "task": TASK, "options": mapping(anything)},
    {"extra": anything},
)
EXTRA = 2**28  # bytes that a model may need besides those in its file


def save_model(model: Model, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
    """Model directory at `path`.

    `extra` (columns, encoder, thresholds) is kept beside the model's description.
    """
    config = describe(model)
    check(config, specs(model.state_dict()))
    check_finite(model.state_dict())
    persist.save(path, config if extra is None else {**config, "extra": extra}, model.state_dict())


def load_model(path: str | Path) -> Model:
    """The model saved at `path`; it answers with the same bits."""

    def look(config: Any, saved: Mapping[str, Spec]) -> None:
        try:
            check(config, saved)
        except ValueError as error:
            raise ValueError(
                f"{path} does not hold a model of this version ({error}): "
                "save it again or choose another path"
            ) from error

    bundle = persist.load(path, look)
    try:
        return rebuild(bundle)
    except ValueError as error:
        raise ValueError(
            f"{path} does not hold a model that works ({error}): save it again or choose another path"
        ) from error


def describe(model: Model) -> dict[str, Any]:
    """The words from which `rebuild` makes the same model."""
    config: Any = model.config
    task, options = dataclasses.asdict(model.task), dataclasses.asdict(config)
    if isinstance(model, DistanceAware):
        options["far"] = model.far.strength
    return {"method": model.method, "inputs": model.inputs, "task": task, "options": options}


def check(config: Any, saved: Mapping[str, Spec]) -> None:
    """Refuse a description that is none, and tensors of another name, type or shape than its model has."""
    DESCRIPTION.check(config, "the model")
    check_options(config["method"], config["options"])
    members = config["options"].get("members") or 1
    if members > 1 and not any(
        members in spec.shape for spec in saved.values()
    ):  # looked at first: every member costs time to build
        raise ValueError(f"no tensor is for {members} members")
    model = shaped(config)
    if all(spec.dtype is torch.float64 for spec in saved.values() if spec.dtype.is_floating_point):
        model.double()  # turned to float64 as a whole after it was built
    compare_module(model, saved)
    if (n_bytes := size(model)) > sum(map(math.prod, (spec.shape for spec in saved.values()))) * 8 + EXTRA:
        raise ValueError(f"it needs {n_bytes} bytes, many more than are in the file")


def shaped(config: Mapping[str, Any]) -> Model:
    """The model of a description, its tensors without memory."""
    with without_memory():
        return _built(config)


def size(model: Model) -> int:
    """Bytes of its tensors, those included that are not saved."""
    return sum(
        tensor.numel() * tensor.element_size() for tensor in chain(model.parameters(), model.buffers())
    )


def check_options(method: str, options: Any) -> None:
    """The options of a method: of the types of its `Config`, and no more turns than one waits for."""
    from compound.models import Method

    OPTIONS.check(options, "options")
    COUNTS.check(options, "options")
    Method(method, **_tuples(options))


def compare_module(module: torch.nn.Module, saved: Mapping[str, Spec]) -> None:
    """Types and shapes of tensors as the module has them. What is missing is left to `load_state_dict`.

    A module may know older files.
    """
    compare({name: spec for name, spec in specs(module.state_dict()).items() if name in saved}, saved)
    for name, part in module.named_modules():
        if isinstance(part, Distance):
            _compare_distance(saved, f"{name}." if name else "")


def compare(wanted: Mapping[str, Spec], saved: Mapping[str, Spec]) -> None:
    """A size of 0 in what is wanted, a fresh module's, is one that data decide."""
    for name in sorted(saved.keys() - wanted.keys()):
        raise ValueError(f"there is a tensor {reprlib.repr(name)}, which has no place")
    for name, (dtype, shape) in wanted.items():
        if name not in saved:
            raise ValueError(f"the tensor {reprlib.repr(name)} is missing")
        if saved[name].dtype is not dtype:
            raise ValueError(f"the tensor {reprlib.repr(name)} is of {saved[name].dtype}, not {dtype}")
        actual = saved[name].shape
        if len(actual) != len(shape) or any(a != b for a, b in zip(actual, shape, strict=True) if b):
            raise ValueError(f"the tensor {reprlib.repr(name)} has shape {actual}, it does not fit {shape}")


def _compare_distance(saved: Mapping[str, Spec], prefix: str) -> None:
    """The sizes that data decide go together: one rank, and as many covariances as centres or none."""
    names = [prefix + name for name in SIZED_BY_DATA]
    if missing := set(names) - saved.keys():
        raise ValueError(f"the tensor {reprlib.repr(min(missing))} is missing")
    (features, width), (count, rank), *covariances = (saved[name].shape for name in names)
    if width != rank or rank > features or (count == 0) != (rank == 0):
        raise ValueError(
            f"the distance has {count} centres of rank {rank} and whitens {features} inputs to {width}"
        )
    if tuple(covariances) not in (((0, 0, 0), (0,)), ((count, rank, rank), (count,))):
        raise ValueError(f"the distance has {count} centres of rank {rank}, but covariances {covariances}")


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"the tensor {reprlib.repr(name)} holds NaN or infinity")


def specs(tensors: Mapping[str, Tensor]) -> dict[str, Spec]:
    return {name: Spec(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def rebuild(bundle: persist.Bundle) -> Model:
    """A fresh model of the description, filled with the saved tensors; `check` has seen both."""
    model = _built(bundle.config)
    for name, value in chain(model.named_parameters(), model.named_buffers()):
        if name in bundle.tensors:  # a model turned to float64 after it was built comes back as float64
            value.data = value.data.to(bundle.tensors[name].dtype)
    fill(model, bundle.tensors)
    return model


def fill(model: Model, tensors: Mapping[str, Tensor]) -> None:
    """The tensors put into the model, which is then asked on trial."""
    check_finite(tensors)
    compare_module(model, specs(tensors))
    try:
        model.load_state_dict(tensors)
    except (RuntimeError, LookupError) as error:
        raise ValueError(f"the tensors do not fit the method ({told(error)})") from error
    if wrong := trial(model):
        raise ValueError(f"asked on trial, {wrong}")


def _built(config: Mapping[str, Any]) -> Model:
    from compound.models import Method, build  # here, not above: that module imports every method

    options = {name: _tuples(value) for name, value in config["options"].items()}
    try:
        return build(Method(config["method"], **options), config["inputs"], Task(**config["task"]), seed=0)
    except (
        TypeError,
        RuntimeError,
        ArithmeticError,
        LookupError,
    ) as error:  # options that do not go together, sizes beyond 64 bits
        raise ValueError(f"it cannot be built ({told(error)})") from error


@contextmanager
def without_memory() -> Iterator[None]:
    """Tensors have shapes only, of the dtypes that a model is built with by default."""
    former = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(former)


def _tuples(value: Any) -> Any:
    """JSON knows lists only; the settings of a method are frozen and hold tuples."""
    if isinstance(value, list):
        return tuple(_tuples(entry) for entry in value)
    return {name: _tuples(entry) for name, entry in value.items()} if isinstance(value, dict) else value
