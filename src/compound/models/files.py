"""Models as directories: what `persist` saves, plus how to build the model again."""

import dataclasses
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from compound import persist
from compound.models.base import Model
from compound.models.far import WithFar
from compound.types import Task


def save_model(model: Model, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
    """Model directory at `path`; `extra` (columns, encoder, thresholds) is kept beside the model's description."""
    config = describe(model)
    persist.save(path, config if extra is None else {**config, "extra": extra}, model.state_dict())


def load_model(path: str | Path) -> Model:
    """The model saved at `path`; it answers with the same bits."""
    try:
        return rebuild(persist.load(path))
    except KeyError as error:
        raise ValueError(f"{path} has no entry {error}: it does not hold a model, choose another path") from error
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit the method it names ({error}): save the model again with this version") from error


def describe(model: Model) -> dict[str, Any]:
    """The words from which `rebuild` makes the same model."""
    config: Any = model.config
    task, options = dataclasses.asdict(model.task), dataclasses.asdict(config)
    if isinstance(model, WithFar):
        options["far"] = model.strength
    return {"method": model.method, "inputs": model.inputs, "task": task, "options": options}


def rebuild(bundle: persist.Bundle) -> Model:
    """A fresh model of the description, filled with the saved tensors."""
    from compound.models import Method, build  # here, not above: that module imports every method

    config = bundle.config
    options = {name: _tuples(value) for name, value in config["options"].items()}
    model = build(Method(config["method"], **options), config["inputs"], Task(**config["task"]), seed=0)
    for name, value in chain(model.named_parameters(), model.named_buffers()):
        if name in bundle.tensors:  # a model turned to float64 after it was built comes back as float64
            value.data = value.data.to(bundle.tensors[name].dtype)
    model.load_state_dict(bundle.tensors)
    return model


def _tuples(value: Any) -> Any:
    """JSON knows lists only; the settings of a method are frozen and hold tuples."""
    if isinstance(value, list):
        return tuple(_tuples(entry) for entry in value)
    return {name: _tuples(entry) for name, entry in value.items()} if isinstance(value, dict) else value
