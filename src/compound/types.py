"""The few words every room shares: what is predicted, a batch of rows, and named streams of random numbers."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

type_of = {
    "classification": "integer labels 0..size-1, shape (rows,)",
    "regression": "numbers, shape (rows, size)",
}


@dataclass(frozen=True)
class Task:
    """What is predicted: one of `size` classes, or `size` real targets."""

    kind: Literal["classification", "regression"]
    size: int

    def __post_init__(self) -> None:
        if self.kind not in type_of:
            raise ValueError(f"task kind is {self.kind!r}: use 'classification' or 'regression'")
        if self.size < (2 if self.kind == "classification" else 1):
            raise ValueError(f"task size is {self.size}: classes need at least 2, targets at least 1")


@dataclass(frozen=True)
class Batch:
    """Rows with what a loss needs to know about them."""

    x: Tensor  # (rows, features)
    y: Tensor  # (rows,) labels, or (rows, targets)
    size: Tensor | float  # N, the sum of the training weights; (members,) where the weights are
    index: Tensor  # (rows,) row numbers in the training set
    weight: Tensor | None = None  # (rows,) or (members, rows); 0 = held out (by that member)
    x_ood: Tensor | None = None  # (rows', features) inputs known to be out of the domain
    progress: float = 1.0  # how far training has come, 0..1: paths of λ read it

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Tensor) -> "Batch":
        """The same data, only these rows; `size` stays that of the whole."""
        weight = None if self.weight is None else self.weight[..., rows]
        return replace(self, x=self.x[rows], y=self.y[rows], index=self.index[rows], weight=weight)


def make_dataset(
    x: Tensor, y: Tensor, task: Task, weight: Tensor | None = None, x_ood: Tensor | None = None
) -> Batch:
    """All rows as one batch, checked: the one place where bad input is refused before any work."""
    check_inputs(x)
    if x_ood is not None:
        check_inputs(x_ood, x.shape[1], "x_ood")
        if len(x_ood) == 0:
            raise ValueError("x_ood has no rows: give at least one, or None")
    if len(x) == 0:
        raise ValueError(f"x has no rows (shape {tuple(x.shape)}): give at least one")
    shape = (len(x),) if task.kind == "classification" else (len(x), task.size)
    if tuple(y.shape) != shape:
        raise ValueError(
            f"y has shape {tuple(y.shape)}: for {task.kind} of size {task.size} it must be {shape}, {type_of[task.kind]}"
        )
    if task.kind == "classification":
        if y.is_floating_point() or y.dtype == torch.bool:
            raise ValueError(f"y has dtype {y.dtype}: labels must be integers, use y.long()")
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= task.size:
            raise ValueError(
                f"y holds label {low if low < 0 else high}: labels must lie in 0..{task.size - 1}"
            )
    elif not bool(torch.isfinite(y).all()):
        raise ValueError(f"y holds {_first_bad(y)}: drop or fill such rows before fitting")
    if weight is None:
        size: Tensor | float = float(len(x))
    else:
        if weight.ndim > 2 or weight.shape[-1] != len(x):
            raise ValueError(
                f"weight has shape {tuple(weight.shape)}: it must be ({len(x)},) or (members, {len(x)})"
            )
        if not bool(torch.isfinite(weight).all()) or bool((weight < 0).any()):
            raise ValueError("weight holds a negative or non-finite number: weights must be >= 0")
        size = weight.sum(-1)
        if bool((size <= 0).any()):
            raise ValueError("weight is 0 for every row: nothing is left to train on")
    return Batch(x, y, size, torch.arange(len(x)), weight, x_ood)


def check_inputs(x: Tensor, features: int | None = None, name: str = "x") -> None:
    """Refuse what no model can answer: wrong shape, NaN, infinity."""
    if x.ndim != 2 or x.shape[1] == 0 or features not in (None, x.shape[1]):
        wanted = "features >= 1" if features is None else f"{features}"
        raise ValueError(f"{name} has shape {tuple(x.shape)}: it must be (rows, {wanted})")
    if not x.is_floating_point():
        raise ValueError(f"{name} has dtype {x.dtype}: give floating-point numbers, use {name}.float()")
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"{name} holds {_first_bad(x)}: drop or fill such values first")


def _first_bad(values: Tensor) -> str:
    place = (~torch.isfinite(values)).nonzero()[0].tolist()
    return f"{values[tuple(place)].item()} at row {place[0]}" + (
        f", column {place[1]}" if len(place) > 1 else ""
    )
