"""What there is to choose from: every method with its tasks, source and options, as the command prints it."""

import dataclasses
import inspect
import re
from typing import Any, NamedTuple

from compound.models import METHODS
from compound.models.base import Model


class Option(NamedTuple):
    name: str
    default: Any
    words: str  # the comment beside the field


class Entry(NamedTuple):
    """One method."""

    name: str
    words: str  # the first line of its class
    components: tuple[str, ...]
    source: str
    options: list[Option]


def entries() -> list[Entry]:
    """All methods, in the order of METHODS."""
    return [_entry(name, kind) for name, kind in METHODS.items()]


def entry(name: str) -> Entry:
    if name not in METHODS:
        raise ValueError(f"method is {name!r}: choose one of {', '.join(METHODS)}")
    return _entry(name, METHODS[name])


def _entry(name: str, kind: type[Model]) -> Entry:
    words = (inspect.getdoc(kind) or "").splitlines()[0]
    comments: dict[str, str] = {}
    for ancestor in reversed(kind.Config.__mro__[:-1]):
        comments |= dict(re.findall(r"^    (\w+):[^#]*#\s*(.*)$", inspect.getsource(ancestor), re.MULTILINE))
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(kind.Config)
    return Entry(
        name,
        words,
        kind.components,
        kind.source,
        [Option(f.name, f.default, comments.get(f.name, "")) for f in fields],
    )
