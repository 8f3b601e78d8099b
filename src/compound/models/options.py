"""Checks of the options of methods against the annotations of their `Config`."""

import reprlib
import types
import typing
from numbers import Integral, Real
from typing import Any, Literal

from compound.io.schema import Schema, any_of, array_of, boolean, integer, null, scalar, string

SIZES = (1e-30, 1e15)  # bounds of |number| other than 0: float32 can represent 1e-30, and 1e15 squared
LARGEST = 10_000_000  # bound of integers: no machine has memory for as many units, members or draws

INTEGER = Schema(f"a whole number up to {LARGEST:,}", integer(-LARGEST, LARGEST).check)
NUMBER = scalar(
    f"a number up to {SIZES[1]:g}",
    lambda value: type(value) in (int, float) and (value == 0 or SIZES[0] <= abs(value) <= SIZES[1]),
)
WIDTHS = Schema("a list of whole numbers above 0, such as [50,50]", array_of(integer(1, LARGEST)).check)


def check_option(name: str, value: Any, hint: Any) -> Any:
    """The value of the option `name`, checked against its annotation `hint`.

    NumPy numbers become Python numbers, lists become tuples, and integers floats where `hint` has no int.

    Raises
    ------
    ValueError
        If the value does not fit the annotation; the message says what would.
    """
    value = _python_number(value)
    schema = schema_of(hint)
    try:
        schema.check(value, name)
    except ValueError:
        raise ValueError(f"{name} is {reprlib.repr(value)}: give {schema.expected}") from None
    return float(value) if type(value) is int and int not in (hint, *typing.get_args(hint)) else value


def _python_number(value: Any) -> Any:
    """NumPy numbers as Python numbers, lists as tuples of such; anything else unchanged."""
    if isinstance(value, tuple | list):
        return tuple(map(_python_number, value))
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def schema_of(hint: Any) -> Schema:
    """The schema of an annotation such as `float | None`, `tuple[int, ...]` or a `Literal`."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        expected = " or ".join(schema_of(part).expected for part in inner if part is not type(None))
        return Schema(expected, any_of(*map(schema_of, inner)).check)
    if origin is Literal:  # the method itself checks the value: it may depend on the task
        return Schema(" or ".join(map(repr, inner)), string(100).check)
    if origin is tuple and inner[-1] is Ellipsis:
        return WIDTHS if inner[0] is int else Schema("a list of finite numbers", array_of(NUMBER, 1).check)
    if origin is tuple:
        return Schema(f"a list of {len(inner)} numbers", array_of(NUMBER, len(inner), len(inner)).check)
    return {int: INTEGER, float: NUMBER, bool: boolean, type(None): null}[hint]
