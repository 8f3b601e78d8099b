"""What an option of a method may be: its `Config` says so by its annotations, and a value of another kind is refused by name."""

import math
import types
import typing
from numbers import Integral, Real
from typing import Any, Literal

SIZES = 1e-30, 1e15  # of a number other than 0: float32 has the smallest, and the square of the largest
LARGEST = 10_000_000  # whole number: more units, members or draws than any machine has room for


def fitted(name: str, value: Any, hint: Any) -> Any:
    """The value of an option, a whole number as a float where its annotation asks for that; one that does not fit is refused."""
    if not fits(value, hint):
        shown = repr(value) if len(repr(value)) < 80 else repr(value)[:80] + "..."
        raise ValueError(f"{name} is {shown}: give {spelt(hint)}")
    return (
        float(value)
        if isinstance(value, Integral) and not isinstance(value, bool) and not fits(value, _whole(hint))
        else value
    )


def fits(value: Any, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, part) for part in inner)
    if origin is Literal:
        return isinstance(value, str)  # which words, the method itself says best
    if origin is tuple:
        parts = inner[:1] * len(value) if inner[-1] is Ellipsis and isinstance(value, tuple | list) else inner
        if not (
            isinstance(value, tuple | list) and len(value) == len(parts) and all(map(fits, value, parts))
        ):
            return False
        return (
            min(value, default=1) >= 1 if inner[0] is int else len(value) > 0
        )  # no layers, or layers of at least one unit
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:  # True is an int to Python, not to us
        return isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) <= LARGEST
    if hint is float:
        size: Any = abs(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
        return bool(size == 0 or SIZES[0] <= size <= SIZES[1])
    return value is None if hint is type(None) else isinstance(value, hint)


def _whole(hint: Any) -> Any:
    """int where the annotation allows whole numbers, else nothing that a number fits."""
    return int if hint is int or int in typing.get_args(hint) else type(None)


def spelt(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(spelt(part) for part in inner if part is not type(None))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is tuple:
        many = "whole numbers above 0, such as [50,50]" if inner[0] is int else "finite numbers"
        return f"a list of {many}" if inner[-1] is Ellipsis else f"a list of {len(inner)} numbers"
    return {
        int: f"a whole number up to {LARGEST:,}",
        float: f"a number up to {SIZES[1]:g}",
        bool: "true or false",
    }.get(hint, "text")
