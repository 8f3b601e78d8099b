"""Validation of JSON read from a file: types and ranges, checked before the values are used.

Checksums do not replace it: anybody can compute one for an edited file. The names follow JSON Schema.
`object_of({"rows": integer(1, 100)}).check(config, "config")` raises a ValueError that names the entry, its
value and what was expected.
"""

import reprlib
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_LENGTH = 10_000_000  # entries of any array, characters of any string
MAX_NUMBER = 1e150  # its square is finite in float64


@dataclass(frozen=True)
class Schema:
    """A condition on a value: its description for error messages, and a function that checks it."""

    expected: str
    check: Callable[[Any, str], None]  # (value, its path in the file): raises ValueError


def scalar(expected: str, accepts: Callable[[Any], bool]) -> Schema:
    """A value for which `accepts` returns true; `expected` describes such values in error messages."""

    def check(value: Any, path: str) -> None:
        if not accepts(value):
            raise _mismatch(value, path, expected)

    return Schema(expected, check)


def integer(low: int = 0, high: int = 2**53) -> Schema:
    """An integer in [low, high]; bool, which Python counts as an int, is refused."""
    return scalar(
        f"a whole number from {low} to {high}", lambda value: type(value) is int and low <= value <= high
    )


def number(low: float = -MAX_NUMBER, high: float = MAX_NUMBER) -> Schema:
    """A finite number in [low, high]."""
    return scalar(
        f"a number from {low:g} to {high:g}",
        lambda value: type(value) in (int, float) and low <= value <= high,
    )


def string(max_length: int = MAX_LENGTH) -> Schema:
    """Text of at most `max_length` characters that can be encoded as UTF-8."""
    return scalar(
        "text", lambda value: isinstance(value, str) and len(value) <= max_length and _is_utf8(value)
    )


def enum(*values: Any) -> Schema:
    """One of these values, of the same type."""
    return scalar(
        f"one of {', '.join(map(repr, values))}",
        lambda value: any(type(value) is type(v) and value == v for v in values),
    )


real = scalar("a number", lambda value: type(value) in (int, float))  # NaN and infinity too
boolean = scalar("true or false", lambda value: isinstance(value, bool))
null = scalar("null", lambda value: value is None)
anything = Schema("anything", lambda value, path: None)


def any_of(*schemas: Schema) -> Schema:
    """A value that at least one of the schemas accepts."""
    expected = " or ".join(schema.expected for schema in schemas)

    def check(value: Any, path: str) -> None:
        for schema in schemas:
            try:
                return schema.check(value, path)
            except ValueError:
                pass
        raise _mismatch(value, path, expected)

    return Schema(expected, check)


def array_of(items: Schema, min_items: int = 0, max_items: int = MAX_LENGTH) -> Schema:
    """A list or tuple of `min_items` to `max_items` entries that all fit the schema `items`."""
    expected = f"a list of {min_items} to {max_items} entries, each {items.expected}"

    def check(value: Any, path: str) -> None:
        if not isinstance(value, list | tuple) or not min_items <= len(value) <= max_items:
            raise _mismatch(value, path, expected)
        for i, entry in enumerate(value):
            items.check(entry, f"{path}[{i}]")

    return Schema(expected, check)


def object_of(
    required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None, additional: bool = False
) -> Schema:
    """A dict with all `required` and any of the `optional` entries, each of which fits its schema.

    With `additional`, other entries are ignored, as later versions may add some; without, they are refused.
    """
    properties = {**required, **(optional or {})}

    def check(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise _mismatch(value, path, f"a record of {', '.join(properties)}")
        for name in required:
            if name not in value:
                raise ValueError(f"{path} has no entry {name!r}")
        for name, entry in value.items():
            if name in properties:
                properties[name].check(entry, f"{path}.{name}")
            elif not additional:
                raise ValueError(
                    f"{path} has an entry {reprlib.repr(name)}, which is none of {', '.join(properties)}"
                )

    return Schema("a record", check)


def dict_of(values: Schema) -> Schema:
    """A dict with keys of any type whose values all fit the schema `values`."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise _mismatch(value, path, "a record")
        for name, entry in value.items():
            values.check(entry, f"{path}.{reprlib.repr(name)}")

    return Schema("a record", check)


def mapping_of(values: Schema) -> Schema:
    """A dict with text keys whose values all fit the schema `values`."""
    key = scalar("text as a name", lambda value: isinstance(value, str))

    def check(value: Any, path: str) -> None:
        dict_of(values).check(value, path)
        for name in value:
            key.check(name, path)

    return Schema("a record", check)


def shortened(error: BaseException) -> str:
    """The message of an error, which may quote a long file, in one line of at most 500 characters."""
    return textwrap.shorten(str(error), 500)


def _mismatch(value: Any, path: str, expected: str) -> ValueError:
    return ValueError(f"{path} is {reprlib.repr(value)}, not {expected}")


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate cannot be printed
        return False
    return True
