"""Where `compound tune` looks for settings: an interval or a list of values for each name.

lam=1e-8..1e-2        numbers between the two; on a logarithmic scale where they differ by a factor of 100
members=1..5          whole numbers
lam=1e-5,1e-4,1e-3    these values; where all names have lists, every combination is tried once
widths=[64],[128,64]  also lists, as the option takes them
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from compound.models import METHODS, Method

PARAMETERS = ("lr", "batch_size", "max_epochs", "validation_fraction")  # of the estimators, to be searched
LOG_RATIO = 100  # between the ends of an interval, from which it is logarithmic
LR = (3e-4, 3e-2)  # default interval
LAM = (1e-8, 1e-2)


class Interval(NamedTuple):
    """Numbers between two."""

    low: float
    high: float
    log: bool
    integer: bool


class Choices(NamedTuple):
    """One of some values, as JSON text: the search takes no lists."""

    values: tuple[str, ...]


Axis = Interval | Choices
Space = dict[str, Axis]


def default_space(method: Method) -> Space:
    """The learning rate, and λ where the method has it."""
    space: Space = {"lr": Interval(*LR, log=True, integer=False)}
    return {"lam": Interval(*LAM, log=True, integer=False), **space} if "lam" in _options(method) else space


def parse_space(texts: Sequence[str], method: Method) -> Space:
    """The space of arguments NAME=LOW..HIGH or NAME=A,B,C; ValueError for unknown names or wrong values."""
    space: Space = {}
    known = (*_options(method), *PARAMETERS)
    for text in texts:
        name, sign, values = text.partition("=")
        if not sign or not values:
            raise ValueError(
                f"--search is {text!r}: write NAME=LOW..HIGH or NAME=A,B,C, such as lam=1e-8..1e-2"
            )
        if name not in known:
            raise ValueError(f"--search {name}: {method.name} has {', '.join(known)}")
        if name in space:
            raise ValueError(f"--search {name} is given twice: leave one out")
        space[name] = _interval(text, *values.split("..", 1)) if ".." in values else _choices(text, values)
    return space or default_space(method)


def combinations(space: Space) -> list[dict[str, str]] | None:
    """All combinations of the values of a space of lists; None where it has an interval."""
    axes = [axis.values for axis in space.values() if isinstance(axis, Choices)]
    if len(axes) < len(space):
        return None
    return [dict(zip(space, values, strict=True)) for values in product(*axes)]


def distributions(space: Space) -> dict[str, Any]:
    """The space as Optuna takes it."""
    from optuna import distributions as d

    return {
        name: d.CategoricalDistribution(axis.values)
        if isinstance(axis, Choices)
        else d.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
        if axis.integer
        else d.FloatDistribution(axis.low, axis.high, log=axis.log)
        for name, axis in space.items()
    }


def settings(space: Space, drawn: dict[str, Any]) -> dict[str, Any]:
    """The values of a trial as methods and estimators take them: JSON text parsed, lists as tuples."""
    values = {
        name: json.loads(value) if isinstance(space[name], Choices) else value
        for name, value in drawn.items()
    }
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _options(method: Method) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(METHODS[method.name].Config))


def _interval(text: str, low: str, high: str) -> Interval:
    try:
        ends = float(low), float(high)
    except ValueError as error:
        raise ValueError(f"--search is {text!r}: LOW and HIGH are numbers, such as lam=1e-8..1e-2") from error
    if not (all(map(math.isfinite, ends)) and ends[0] < ends[1]):
        raise ValueError(f"--search is {text!r}: LOW must be smaller than HIGH, and both finite")
    integer = low.lstrip("+-").isdecimal() and high.lstrip("+-").isdecimal()
    return Interval(*ends, ends[0] > 0 and ends[1] / ends[0] >= LOG_RATIO, integer)


def _choices(text: str, values: str) -> Choices:
    try:
        parsed = json.loads(f"[{values}]")
    except ValueError:
        parsed = values.split(",")
    return Choices(tuple(json.dumps(value) for value in parsed))
