"""Saving and loading of models: a directory with the tensors, and a configuration to rebuild the model from.

Before a tensor is read, the configuration is validated against the options of its method, and names, types
and shapes of all tensors against those of a model built from it on torch's meta device, where tensors take no
memory. What cannot be checked beforehand is found by a trial prediction.
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
from torch import Tensor, nn

from compound.io.bundle import Bundle
from compound.io.model_directory import load_directory, save_directory
from compound.io.schema import (
    any_of,
    anything,
    array_of,
    boolean,
    enum,
    integer,
    mapping_of,
    null,
    object_of,
    real,
    shortened,
    string,
)
from compound.io.tensor_specs import TensorSpec, check_finite, check_specs, specs_of
from compound.models.base import Model
from compound.models.distance_aware import DistanceAware
from compound.models.sanity import model_defect as model_defect
from compound.nn import PiecewiseLinearEncoding
from compound.ood.distance import SIZED_BY_DATA, Distance
from compound.types import Task

SIZE = integer(0, 10_000_000)  # becomes a size of a tensor, which is compared with the file
COUNT = any_of(null, integer(0, 1000))  # of iterations or draws: no tensor confirms it, so it is bounded
COUNT_NAMES = ("members", "samples", "last_draws", "flows_q", "flows_r", "groups")
COUNTS = object_of({}, dict.fromkeys(COUNT_NAMES, COUNT), additional=True)
OPTIONS = mapping_of(any_of(string(100), boolean, real, null, array_of(real, max_items=100)))  # of any method
TASK = object_of(
    {"kind": enum("classification", "regression"), "size": SIZE}, {"family": any_of(null, string(100))}
)
CONFIG = object_of(
    {"method": string(), "inputs": integer(1, 10_000_000), "task": TASK, "options": mapping_of(anything)},
    {"encoding": object_of({"kept": SIZE, "bins": SIZE, "groups": SIZE}), "extra": anything},
)
EXTRA_BYTES = 2**28  # memory that a model may need beyond the size of its file


def save_model(model: Model, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
    """Save a model as a directory of JSON and safetensors.

    Parameters
    ----------
    model : Model
        A model, trained or not.
    path : str or Path
        The directory to write. A model that is there is replaced atomically.
    extra : mapping, default=None
        Anything that fits into JSON (columns, thresholds), stored beside the model's configuration.

    Raises
    ------
    ValueError
        If a tensor holds NaN or infinity, or `path` holds files that are not part of a model.

    Examples
    --------
    >>> import tempfile
    >>> from compound import Task, build, load_model, save_model
    >>> model = build("map", 3, Task("regression", 1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(model, f"{folder}/model")
    ...     load_model(f"{folder}/model").task
    Task(kind='regression', size=1)
    """
    config = describe(model)
    check_config(config, specs_of(model.state_dict()))
    check_finite(model.state_dict())
    save_directory(path, config if extra is None else {**config, "extra": extra}, model.state_dict())


def load_model(path: str | Path) -> Model:
    """Load a model that `save_model` has written; equal inputs and seeds give bit-equal predictions.

    Nothing in the files is executed, and all of their content is validated.

    Parameters
    ----------
    path : str or Path
        The model directory.

    Returns
    -------
    Model
        The model with its tensors, on the CPU.

    Raises
    ------
    ValueError
        If the directory is missing, damaged, or does not hold a model of this version.

    Examples
    --------
    >>> import tempfile
    >>> from compound import Task, build, load_model, save_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(build("map", 3, Task("classification", 4)), f"{folder}/model")
    ...     load_model(f"{folder}/model").inputs
    3
    """

    def check(config: Any, specs: Mapping[str, TensorSpec]) -> None:
        try:
            check_config(config, specs)
        except ValueError as error:
            raise ValueError(
                f"{path} does not hold a model of this version ({error}): "
                "save it again or choose another path"
            ) from error

    bundle = load_directory(path, check)
    try:
        return rebuild(bundle)
    except ValueError as error:
        raise ValueError(
            f"{path} does not hold a model that works ({error}): save it again or choose another path"
        ) from error


def describe(model: Model) -> dict[str, Any]:
    """The configuration from which `rebuild` builds an equal model."""
    task = dataclasses.asdict(model.task)
    options = dataclasses.asdict(model.config)
    if isinstance(model, DistanceAware):
        options["far"] = model.far.strength
        if model.far.far_distance != "inputs":
            options["far_distance"] = model.far.far_distance
    config = {"method": model.method, "inputs": model.inputs, "task": task, "options": options}
    encodings = [each for each in model.modules() if isinstance(each, PiecewiseLinearEncoding)]
    if not encodings:
        return config
    encoding = encodings[0]
    sizes = {"kept": len(encoding.kept), "bins": encoding.bins, "groups": len(encoding.counts)}
    return {**config, "encoding": sizes}


def check_config(config: Any, specs: Mapping[str, TensorSpec]) -> None:
    """Raise ValueError for an invalid configuration, or for tensors that its model does not have."""
    CONFIG.check(config, "the model")
    check_options(config["method"], config["options"])
    members = config["options"].get("members") or 1
    if members > 1 and not any(members in spec.shape for spec in specs.values()):
        raise ValueError(f"no tensor is for {members} members")  # first, as every member takes time to build
    model = meta_model(config)
    if all(spec.dtype is torch.float64 for spec in specs.values() if spec.dtype.is_floating_point):
        model.double()  # the saved model was converted after it was built
    check_module_specs(model, specs)
    saved_numbers = sum(math.prod(spec.shape) for spec in specs.values())
    if (needed := module_bytes(model)) > saved_numbers * 8 + EXTRA_BYTES:
        raise ValueError(f"it needs {needed} bytes, many more than are in the file")


def check_options(method: str, options: Any) -> None:
    """Raise ValueError unless the options have the types of the method's `Config` and bounded counts."""
    from compound.models import Method

    OPTIONS.check(options, "options")
    COUNTS.check(options, "options")
    Method(method, **_lists_to_tuples(options))


def check_module_specs(module: nn.Module, specs: Mapping[str, TensorSpec]) -> None:
    """Raise ValueError for tensors that the module does not have, or has of another type or shape.

    Missing tensors are left to `load_state_dict`: a module may accept older files.
    """
    expected = specs_of(module.state_dict())
    check_specs(specs, {name: spec for name, spec in expected.items() if name in specs})
    for name, submodule in module.named_modules():
        if isinstance(submodule, Distance):
            _check_distance_specs(specs, f"{name}." if name else "")


def _check_distance_specs(specs: Mapping[str, TensorSpec], prefix: str) -> None:
    """Raise ValueError unless the tensors of a `Distance`, whose names begin with `prefix`, fit together.

    Their sizes depend on the data: all must have the same rank, and no covariances or one per centre.
    """
    names = [prefix + name for name in SIZED_BY_DATA]
    if missing := set(names) - specs.keys():
        raise ValueError(f"the tensor {reprlib.repr(min(missing))} is missing")
    (features, width), (count, rank), *covariances = (specs[name].shape for name in names)
    if width != rank or rank > features or (count == 0) != (rank == 0):
        raise ValueError(
            f"the distance has {count} centres of rank {rank} and whitens {features} inputs to {width}"
        )
    if tuple(covariances) not in (((0, 0, 0), (0,)), ((count, rank, rank), (count,))):
        raise ValueError(f"the distance has {count} centres of rank {rank}, but covariances {covariances}")


def rebuild(bundle: Bundle) -> Model:
    """Build the model of a configuration and copy the saved tensors into it; call `check_config` first."""
    model = _build(bundle.config)
    for name, value in chain(model.named_parameters(), model.named_buffers()):
        if name in bundle.tensors:  # a model converted to float64 after it was built stays float64
            value.data = value.data.to(bundle.tensors[name].dtype)
    load_tensors(model, bundle.tensors)
    return model


def load_tensors(model: Model, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the model; ValueError unless they fit and a trial prediction is valid."""
    check_finite(tensors)
    check_module_specs(model, specs_of(tensors))
    try:
        model.load_state_dict(tensors)
    except (RuntimeError, LookupError) as error:
        raise ValueError(f"the tensors do not fit the method ({shortened(error)})") from error
    if defect := model_defect(model):
        raise ValueError(f"in a trial prediction, {defect}")


def meta_model(config: Mapping[str, Any]) -> Model:
    """The model of a configuration on the meta device: its tensors have shapes, but no memory."""
    with meta_device():
        return _build(config)


@contextmanager
def meta_device() -> Iterator[None]:
    """Context in which new tensors are on the meta device, without memory, and float32 by default."""
    former = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(former)


def module_bytes(module: nn.Module) -> int:
    """Bytes of all parameters and buffers, including buffers that are not saved."""
    tensors = chain(module.parameters(), module.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _build(config: Mapping[str, Any]) -> Model:
    """The model of a configuration, with fresh weights; ValueError where it cannot be built."""
    from compound.models import Method  # not at the top: that module imports every method

    options = {name: _lists_to_tuples(value) for name, value in config["options"].items()}
    try:
        method = Method(config["method"], **options)
        inputs = config["inputs"]
        encoding = PiecewiseLinearEncoding(inputs, **config["encoding"]) if "encoding" in config else None
        return method.build(inputs, Task(**config["task"]), 0, encoding)
    except (TypeError, RuntimeError, ArithmeticError, LookupError) as error:
        # inconsistent options, sizes beyond 64 bits
        raise ValueError(f"it cannot be built ({shortened(error)})") from error


def _lists_to_tuples(value: Any) -> Any:
    """The value with all lists, also nested ones, as tuples: options hold tuples, but JSON has only lists."""
    if isinstance(value, list):
        return tuple(_lists_to_tuples(entry) for entry in value)
    if isinstance(value, dict):
        return {name: _lists_to_tuples(entry) for name, entry in value.items()}
    return value
