"""Checkpoints of a fit: all that the next step reads, so that a resumed fit ends with the same bits.

A file is validated before it is used: it must be of the same run (`identity`), and its tensors must have the
types and shapes of the model and the optimizer. A fused optimizer step does not compare sizes: with a moment
that is smaller than its parameter, it would read beyond the end.
"""

import dataclasses
import math
import reprlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compound.io.bundle import digest
from compound.io.checkpoint_file import load_checkpoint, pack, save_checkpoint, unpack
from compound.io.schema import (
    any_of,
    array_of,
    boolean,
    dict_of,
    integer,
    mapping_of,
    null,
    object_of,
    real,
    scalar,
)
from compound.io.tensor_specs import TensorSpec, check_finite, check_specs, specs_of
from compound.models.base import Model
from compound.models.files import load_tensors, model_defect
from compound.train.config import TrainConfig
from compound.train.history import COLUMNS, History
from compound.train.state import TrainState, model_tensors
from compound.types import Batch

TENSOR = scalar("a tensor", lambda value: isinstance(value, Tensor))
DICT = scalar("a record", lambda value: isinstance(value, dict))
HISTORY = object_of({name: array_of(real) for name in COLUMNS})
CONTENT = object_of({"identity": DICT, "finished": boolean, "model": mapping_of(TENSOR)}, additional=True)
FINISHED = object_of({"history": object_of({"columns": HISTORY, "best_step": integer()})}, additional=True)
OPTIMIZER = object_of({"state": dict_of(mapping_of(any_of(TENSOR, null))), "param_groups": array_of(DICT)})
STATE = object_of(
    {
        "ema": array_of(TENSOR),
        "best": array_of(TENSOR),
        "sums": TENSOR,
        "columns": HISTORY,
        "best_nll": real,
        "held_out": real,
    }
    | {name: integer() for name in ("step", "best_step", "stale", "skipped")}
)
RUNNING = object_of({"optimizer": OPTIMIZER, "state": STATE}, additional=True)


class Checkpoint:
    """The checkpoint file of one fit: of one model, data set, configuration and seed."""

    def __init__(self, path: str | Path, model: Model, data: Batch, config: TrainConfig, seed: int):
        self.path = Path(path)
        self.model = model
        self.config = config
        self.identity = _identity(model, data, config, seed)

    def load(self) -> dict[str, Any] | None:
        """The validated content of the file; None if there is no file, ValueError if it is of another run.

        `finished` says whether the fit is complete. A complete one has `model` and `history`, another one
        `model`, `optimizer` and `state`.
        """
        if not self.path.exists():
            return None
        bundle = load_checkpoint(self.path)
        try:
            content: dict[str, Any] = unpack(bundle)
            CONTENT.check(content, "it")
            (FINISHED if content["finished"] else RUNNING).check(content, "it")
            check_finite(bundle.tensors)
        except ValueError as error:
            raise self._refused(f"is not a checkpoint of a fit ({error})") from error
        for name, value in self.identity.items():
            saved = content["identity"].get(name)
            if saved != value:
                raise self._refused(f"is of a run with {name} {reprlib.repr(saved)}, this one has {value!r}")
        return content

    def restore_model(self, content: dict[str, Any]) -> None:
        """Copy the tensors of `content`, from `load`, into the model."""
        try:
            load_tensors(self.model, content["model"])
        except ValueError as error:
            raise self._refused(f"does not fit the model ({error})") from error

    def restore_state(
        self, content: dict[str, Any], optimizer: torch.optim.Optimizer, initial: TrainState
    ) -> TrainState:
        """Load the saved state into `optimizer`, and return the saved `TrainState`.

        `initial`, the state before the first step, has the shapes that saved tensors must have.
        """
        try:
            _check_optimizer(content["optimizer"], optimizer)
            state = TrainState(**content["state"])
            _check_state(state, initial, self.model, self.config)
            optimizer.load_state_dict(content["optimizer"])
        except (ValueError, RuntimeError, LookupError, TypeError) as error:
            raise self._refused(f"does not fit the run ({error})") from error
        return state

    def check_result(self) -> None:
        """Raise ValueError if a resumed fit has ended with a model that cannot predict.

        An edited file can pass all checks of `load` and still make the remaining steps diverge.
        """
        if defect := model_defect(self.model):
            raise ValueError(
                f"{self.path} was resumed to a model that cannot predict ({defect}): "
                "delete the file to start afresh"
            )

    def save_running(self, optimizer: torch.optim.Optimizer, state: TrainState) -> None:
        """Write model, optimizer and state of a fit in progress, from which it can be resumed."""
        self._save(finished=False, optimizer=optimizer.state_dict(), state=vars(state))

    def save_finished(self, history: History) -> None:
        """Write the final model and the learning curve."""
        self._save(finished=True, history=vars(history))

    def _save(self, finished: bool, **content: Any) -> None:
        tree = {"identity": self.identity, "finished": finished, "model": self.model.state_dict(), **content}
        save_checkpoint(self.path, *pack(tree))

    def _refused(self, reason: str) -> ValueError:
        return ValueError(f"{self.path} {reason}: choose another path or delete the file")


def _identity(model: Model, data: Batch, config: TrainConfig, seed: int) -> dict[str, Any]:
    """Model, seed, configuration and a digest of the data: a run is resumed only where all are equal."""
    tensors = {name: value for name, value in vars(data).items() if isinstance(value, Tensor)}
    description = f"{type(model).__name__} {getattr(model, 'config', '')}".strip()
    run = {"model": description, "seed": seed, "data": digest(str(data.size), tensors)}
    return {**run, **dataclasses.asdict(config)}


def _check_state(state: TrainState, initial: TrainState, model: Model, config: TrainConfig) -> None:
    """Raise ValueError unless the tensors of `state` have the shapes of those of `initial` and of the model,
    its history has columns of one length, and no step in it is beyond `state.step`.
    """
    expected_best = model_tensors(model) if state.best else []
    pairs = ((state.ema, initial.ema), (state.best, expected_best), ([state.sums], [initial.sums]))
    for tensors, expected in pairs:
        check_specs(_numbered_specs(tensors), _numbered_specs(expected))
    lengths = {len(column) for column in state.columns.values()}
    last_step = max(state.columns["step"], default=0)
    if len(lengths) != 1 or not max(last_step, state.best_step) <= state.step <= config.steps:
        raise ValueError("its history is not that of its steps")


def _check_optimizer(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError unless `saved`, a state dict, has the optimizer's groups, options and shapes."""
    groups = saved["param_groups"], optimizer.state_dict()["param_groups"]
    if _comparable_options(groups[0]) != _comparable_options(groups[1]):
        raise ValueError("its optimizer has other groups or options")
    order = [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
    if not saved["state"].keys() <= set(range(len(order))):
        raise ValueError("its optimizer has other parameters")
    is_adam = isinstance(optimizer, torch.optim.Adam)
    for index, entries in saved["state"].items():
        parameter, group = order[index]
        moments = {name: value for name, value in entries.items() if value is not None}
        _check_moment_specs(moments, parameter, group, is_adam)
        for name in ("exp_avg_sq", "second", "step"):
            if name in moments and bool((moments[name] < 0).any()):
                raise ValueError(f"its optimizer has a negative {name}")
        if is_adam:
            _check_moment_bound(moments, group)


def _check_moment_specs(
    moments: dict[str, Tensor], parameter: Tensor, group: dict[str, Any], is_adam: bool
) -> None:
    """Raise ValueError for moments of another type or shape than the parameter, or that are missing.

    Adam needs exp_avg, exp_avg_sq and step; other optimizers create what is missing.
    """
    names = ("exp_avg", "exp_avg_sq", "step") if is_adam else moments
    expected = {name: TensorSpec(parameter.dtype, tuple(parameter.shape)) for name in names}
    if "step" in expected:
        dtype = torch.float32 if group.get("fused") else torch.get_default_dtype()
        # parameters whose rows are trained separately have a step count per row
        expected["step"] = TensorSpec(dtype, (len(parameter), 1) if "size" in group else ())
    check_specs(specs_of(moments), expected)


def _check_moment_bound(moments: dict[str, Tensor], group: dict[str, Any]) -> None:
    """Raise ValueError for moments of Adam that no sequence of gradients has: they make steps of any size.

    By the Cauchy-Schwarz inequality |m| <= (1 - β₁) / sqrt((1 - β₂) (1 - β₁² / β₂)) sqrt(v), where m is
    exp_avg and v is exp_avg_sq.
    """
    beta1, beta2 = group["betas"]
    if not beta1**2 < beta2 < 1:
        return
    bound = (1 - beta1) / math.sqrt((1 - beta2) * (1 - beta1**2 / beta2))
    first = moments["exp_avg"].double()
    second = moments["exp_avg_sq"].double()
    if bool((first.abs() > 1.01 * bound * second.sqrt() + 1e-12).any()):
        raise ValueError("its optimizer has a mean of gradients larger than their squares allow")


def _comparable_options(groups: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """The options of an optimizer's parameter groups, to be compared by ==: tensors become a digest.

    The learning rate is left out: it is set at every step.
    """
    options = [{name: value for name, value in group.items() if name != "lr"} for group in groups]
    config, tensors = pack(options)
    return config, digest("", tensors)


def _numbered_specs(tensors: list[Tensor]) -> dict[str, TensorSpec]:
    return specs_of({str(i): tensor for i, tensor in enumerate(tensors)})
