"""What words from a file may be: types and ranges, declared once and checked before anything is made of them.

A checksum tells that nothing was changed by accident; anybody can make one that fits.
`object_of({"rows": integer(1, 100)}).check(words, "it")`
raises a ValueError that names the entry, what it is and what it should be.
"""

import reprlib
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LONGEST = 10_000_000  # entries of any list, characters of any text
LARGEST = 1e150  # of any number: its square is one too


@dataclass(frozen=True)
class Rule:
    """What a value must be, in words, and the check that says so."""

    wanted: str
    check: Callable[[Any, str], None]  # value, and where it stands


def leaf(wanted: str, fits: Callable[[Any], bool]) -> Rule:
    def check(value: Any, where: str) -> None:
        if not fits(value):
            raise ValueError(f"{where} is {reprlib.repr(value)}, not {wanted}")

    return Rule(wanted, check)


def integer(low: int = 0, high: int = 2**53) -> Rule:
    """bool is an int to Python, not to us."""
    return leaf(
        f"a whole number from {low} to {high}", lambda value: type(value) is int and low <= value <= high
    )


def number(low: float = -LARGEST, high: float = LARGEST) -> Rule:
    """Finite, and of a size one can count with."""
    return leaf(
        f"a number from {low:g} to {high:g}",
        lambda value: type(value) in (int, float) and low <= value <= high,
    )


def text(most: int = LONGEST) -> Rule:
    return leaf("text", lambda value: isinstance(value, str) and len(value) <= most and _utf8(value))


def one_of(*values: Any) -> Rule:
    return leaf(
        f"one of {', '.join(map(repr, values))}",
        lambda value: any(type(value) is type(v) and value == v for v in values),
    )


real = leaf("a number", lambda value: type(value) in (int, float))  # NaN and infinity too
boolean = leaf("true or false", lambda value: isinstance(value, bool))
nothing = leaf("null", lambda value: value is None)
anything = Rule("anything", lambda value, where: None)


def either(*rules: Rule) -> Rule:
    wanted = " or ".join(rule.wanted for rule in rules)

    def check(value: Any, where: str) -> None:
        for rule in rules:
            try:
                return rule.check(value, where)
            except ValueError:
                pass
        raise ValueError(f"{where} is {reprlib.repr(value)}, not {wanted}")

    return Rule(wanted, check)


def many(rule: Rule, least: int = 0, most: int = LONGEST) -> Rule:
    """A list, or the tuple that a list has been."""
    wanted = f"a list of {least} to {most} entries, each {rule.wanted}"

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list | tuple) or not least <= len(value) <= most:
            raise ValueError(f"{where} is {reprlib.repr(value)}, not {wanted}")
        for i, entry in enumerate(value):
            rule.check(entry, f"{where}[{i}]")

    return Rule(wanted, check)


def object_of(
    fields: Mapping[str, Rule], optional: Mapping[str, Rule] | None = None, more: bool = False
) -> Rule:
    """A dict with these entries; `more`: others are left alone, for later versions may add some."""
    known = {**fields, **(optional or {})}

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {reprlib.repr(value)}, not a record of {', '.join(known)}")
        for name in fields:
            if name not in value:
                raise ValueError(f"{where} has no entry {name!r}")
        for name, entry in value.items():
            if name in known:
                known[name].check(entry, f"{where}.{name}")
            elif not more:
                raise ValueError(
                    f"{where} has an entry {reprlib.repr(name)}, which is none of {', '.join(known)}"
                )

    return Rule("a record", check)


def mapping(rule: Rule) -> Rule:
    """A dict from any text to values of one kind."""
    names = leaf("text as a name", lambda value: isinstance(value, str))

    def check(value: Any, where: str) -> None:
        entries(rule).check(value, where)
        for name in value:
            names.check(name, where)

    return Rule("a record", check)


def entries(rule: Rule) -> Rule:
    """A dict whose values are of one kind."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {reprlib.repr(value)}, not a record")
        for name, entry in value.items():
            rule.check(entry, f"{where}.{reprlib.repr(name)}")

    return Rule("a record", check)


def told(error: BaseException) -> str:
    """What an error says, in one line of bounded length: it may quote the file."""
    return textwrap.shorten(str(error), 500)


def _utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a pair: it could not be printed
        return False
    return True
