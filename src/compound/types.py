"""The types that all modules share: what is predicted, and a batch of rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

TARGET_TYPES = {
    "classification": "integer labels 0..size-1, shape (rows,)",
    "regression": "numbers, shape (rows, size)",
}
COUNTS = ("poisson", "negative-binomial")
TIMES = ("log-normal", "weibull")  # positive numbers; times until an event may be censored
FAMILIES = {"classification": ("ordinal",), "regression": ("student-t", *TIMES, *COUNTS)}


@dataclass(frozen=True)
class Task:
    """What is predicted: one of `size` classes, or `size` real targets.

    Parameters
    ----------
    kind : {'classification', 'regression'}
    size : int
        Number of classes (at least 2) or of targets (at least 1).
    family : str, optional
        The distribution of y given the network: "ordinal" for ordered classes, "student-t", "log-normal",
        "weibull", "poisson" or "negative-binomial" for targets. None: softmax for classes, Gaussian for
        targets.

    Raises
    ------
    ValueError
        If the kind or the family is unknown or the size too small.

    Examples
    --------
    >>> from compound import Task
    >>> Task("classification", 10)
    Task(kind='classification', size=10)
    """

    kind: Literal["classification", "regression"]
    size: int
    family: str | None = None

    def __repr__(self) -> str:
        family = "" if self.family is None else f", family={self.family!r}"
        return f"Task(kind={self.kind!r}, size={self.size}{family})"

    def __post_init__(self) -> None:
        if self.kind not in TARGET_TYPES:
            raise ValueError(f"task kind is {self.kind!r}: use 'classification' or 'regression'")
        if self.size < (2 if self.kind == "classification" else 1):
            raise ValueError(f"task size is {self.size}: classes need at least 2, targets at least 1")
        if self.family is not None and self.family not in FAMILIES[self.kind]:
            known = ", ".join(FAMILIES[self.kind])
            raise ValueError(f"task family is {self.family!r}: for {self.kind} use None, {known}")


class RowWeights(NamedTuple):
    """Weights of the rows of a batch, and what a sum over them is divided by to be their mean."""

    values: Tensor | None  # (rows,) or (members, rows); None: all 1
    total: Tensor | float  # (members,), () or a number


def _alone(values: Tensor) -> Tensor:
    """The mean over parts where there are no others."""
    return values


@dataclass(frozen=True)
class Share:
    """What sums over a part of a batch are divided by: the mean over parts is then the mean of the batch."""

    rows: Tensor | float  # weight of the batch's rows, (members,), () or a number, by the number of parts
    ood: float  # number of its out-of-distribution rows, by the number of parts
    average: Callable[[Tensor], Tensor]  # the mean over parts of numbers without gradient


@dataclass(frozen=True)
class Batch:
    """Rows with all that a loss needs; `make_dataset` makes a checked one of a training set.

    Parameters
    ----------
    x : Tensor of shape (rows, features)
    y : Tensor of shape (rows,) or (rows, targets)
        Labels, or targets; times of which some are censored are followed by as many columns with 1 where the
        event was observed, 0 where it had not happened by then.
    size : float or Tensor of shape (members,)
        N, the sum of the training weights.
    index : Tensor of shape (rows,)
        Row numbers in the training set.
    weight : Tensor of shape (rows,) or (members, rows), optional
        0 for rows that are held out (by that member).
    x_ood : Tensor of shape (rows', features), optional
        Out-of-distribution rows.
    progress : float, default=1.0
        Part of training that is done, for options that change over training.
    share : Share, optional
        Where the rows are those of one of several processes.

    importance : Tensor of shape (rows,), optional
        How much each row counts where it is held out; 1 by default.

    Examples
    --------
    >>> import torch
    >>> from compound import Task, make_dataset
    >>> batch = make_dataset(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]), Task("classification", 2))
    >>> len(batch.take(torch.tensor([1, 3])))
    2
    """

    x: Tensor
    y: Tensor
    size: Tensor | float
    index: Tensor
    weight: Tensor | None = None
    x_ood: Tensor | None = None
    progress: float = 1.0
    share: Share | None = None
    importance: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Tensor) -> "Batch":
        """The rows with these indices; `size` and `x_ood` stay as they are."""
        weight = None if self.weight is None else self.weight[..., rows]
        importance = None if self.importance is None else self.importance[rows]
        rows_of: dict[str, Any] = {"x": self.x[rows], "y": self.y[rows], "index": self.index[rows]}
        return replace(self, **rows_of, weight=weight, importance=importance)

    def part(self, index: int, parts: int, average: Callable[[Tensor], Tensor] = _alone) -> "Batch":
        """The rows of one of `parts` processes, with `share`: its mean losses average to the batch's."""
        weight, ood = self.weight, self.x_ood
        rows = part_rows(len(self), index, parts)
        total: Tensor | float = len(self) if weight is None else weight.sum(-1)
        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            index=self.index[rows],
            weight=None if weight is None else weight[..., rows],
            x_ood=None if ood is None else ood[part_rows(len(ood), index, parts)],
            importance=None if self.importance is None else self.importance[rows],
            share=Share(total / parts, 0.0 if ood is None else len(ood) / parts, average),
        )

    @property
    def row_weights(self) -> "Tensor | RowWeights | None":
        """What a loss gives to `weighted_row_mean`: the weights, in a part with the batch's total."""
        return self.weight if self.share is None else RowWeights(self.weight, self.share.rows)

    def average(self, values: Tensor) -> Tensor:
        """Means over the rows of this part, by `row_weights`, as means over the whole batch; no gradient."""
        return values if self.share is None else self.share.average(values)

    @property
    def ood_weights(self) -> RowWeights | None:
        """The same for the rows of `x_ood`, which have weight 1."""
        return None if self.share is None else RowWeights(None, self.share.ood)


def part_rows(rows: int, index: int, parts: int) -> slice:
    """The rows that one of `parts` processes takes: contiguous, equally many up to one."""
    return slice(rows * index // parts, rows * (index + 1) // parts)


def make_dataset(
    x: Tensor, y: Tensor, task: Task, weight: Tensor | None = None, x_ood: Tensor | None = None
) -> Batch:
    """A training set as one batch, checked.

    Parameters
    ----------
    x : Tensor of shape (rows, features)
        Finite floating-point numbers.
    y : Tensor of shape (rows,) or (rows, targets)
        Integer labels 0..size-1, or finite numbers.
    task : Task
    weight : Tensor of shape (rows,) or (members, rows), optional
        0 for rows that are held out (by that member); 1 by default.
    x_ood : Tensor of shape (rows', features), optional
        Out-of-distribution rows, for methods that train with them.

    Returns
    -------
    Batch

    Raises
    ------
    ValueError
        If shapes, types or values do not fit; the message names the argument.

    Examples
    --------
    >>> import torch
    >>> from compound import Task, make_dataset
    >>> data = make_dataset(torch.zeros(4, 2), torch.ones(4, 1), Task("regression", 1))
    >>> len(data), data.size
    (4, 4.0)
    """
    check_inputs(x)
    if x_ood is not None:
        check_inputs(x_ood, x.shape[1], "x_ood")
        if len(x_ood) == 0:
            raise ValueError("x_ood has no rows: give at least one, or None")
    if len(x) == 0:
        raise ValueError(f"x has no rows (shape {tuple(x.shape)}): give at least one")
    _check_targets(y, task, len(x))
    if weight is None:
        return Batch(x, y, float(len(x)), torch.arange(len(x)), None, x_ood)
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


def _check_targets(y: Tensor, task: Task, rows: int) -> None:
    """Raise ValueError for targets of a wrong shape, type or value."""
    shape = (rows,) if task.kind == "classification" else (rows, task.size)
    with_events = task.family in TIMES and tuple(y.shape) == (rows, 2 * task.size)
    if tuple(y.shape) != shape and not with_events:
        raise ValueError(
            f"y has shape {tuple(y.shape)}: for {task.kind} of size {task.size} it must be {shape}, "
            f"{TARGET_TYPES[task.kind]}"
        )
    if task.kind == "regression":
        if not bool(torch.isfinite(y).all()):
            raise ValueError(f"y holds {_first_non_finite(y)}: drop or fill such rows before fitting")
        _check_family(y[:, : task.size], task.family)
        return
    if y.is_floating_point() or y.dtype == torch.bool:
        raise ValueError(f"y has dtype {y.dtype}: labels must be integers, use y.long()")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= task.size:
        raise ValueError(f"y holds label {low if low < 0 else high}: labels must lie in 0..{task.size - 1}")


def _check_family(y: Tensor, family: str | None) -> None:
    """Raise ValueError for targets that a family cannot have."""
    if family in TIMES and not bool((y > 0).all()):
        raise ValueError(f"y holds {y[y <= 0][0].item():g}: {family} targets are above 0")
    if family in COUNTS and not bool(((y >= 0) & (y == y.round())).all()):
        wrong = y[(y < 0) | (y != y.round())][0].item()
        raise ValueError(f"y holds {wrong:g}: {family} targets are whole numbers, 0 or more")


def check_inputs(x: Tensor, features: int | None = None, name: str = "x") -> None:
    """Raise ValueError for inputs of a wrong shape or type, or with NaN or infinity."""
    if x.ndim != 2 or x.shape[1] == 0 or features not in (None, x.shape[1]):
        wanted = "features >= 1" if features is None else f"{features}"
        raise ValueError(f"{name} has shape {tuple(x.shape)}: it must be (rows, {wanted})")
    if not x.is_floating_point():
        raise ValueError(f"{name} has dtype {x.dtype}: give floating-point numbers, use {name}.float()")
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"{name} holds {_first_non_finite(x)}: drop or fill such values first")


def _first_non_finite(values: Tensor) -> str:
    """The first NaN or infinity and where it is, such as "nan at row 3, column 1"."""
    index = (~torch.isfinite(values)).nonzero()[0].tolist()
    column = f", column {index[1]}" if len(index) > 1 else ""
    return f"{values[tuple(index)].item()} at row {index[0]}{column}"
