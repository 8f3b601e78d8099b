"""What an option of a method may be: its `Config` says so by its annotations, and a value of another kind is refused by name."""

import math
import types
import typing
from numbers import Integral, Real
from typing import Any, Literal

LARGEST = 100_000  # whole number: more units, members or draws than any machine has room for


def refuse_misfit(name: str, value: Any, hint: Any) -> None:
    """`hint` is the annotation of the option `name`."""
    if not fits(value, hint):
        shown = repr(value) if len(repr(value)) < 80 else repr(value)[:80] + "..."
        raise ValueError(f"{name} is {shown}: give {spelt(hint)}")


def fits(value: Any, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, part) for part in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        parts = inner[:1] * len(value) if inner[-1] is Ellipsis and isinstance(value, tuple | list) else inner
        if not (isinstance(value, tuple | list) and len(value) == len(parts) and all(map(fits, value, parts))):
            return False
        return min(value, default=1) >= 1 if inner[0] is int else len(value) > 0  # no layers, or layers of at least one unit
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:  # True is an int to Python, not to us
        return isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) <= LARGEST
    if hint is float:
        exact = isinstance(value, Integral) and abs(int(value)) > 2**53  # of more digits than a float has
        return isinstance(value, Real) and not isinstance(value, bool) and not exact and math.isfinite(value)
    return value is None if hint is type(None) else isinstance(value, hint)


def spelt(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(spelt(part) for part in inner if part is not type(None))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is tuple:
        many = "whole numbers above 0, such as [50,50]" if inner[0] is int else "finite numbers"
        return f"a list of {many}" if inner[-1] is Ellipsis else f"a list of {len(inner)} numbers"
    return {int: f"a whole number up to {LARGEST:,}", float: "a finite number", bool: "true or false"}.get(hint, "text")
