"""Every method with its components, reference and options, as the command `compound methods` prints it."""

import dataclasses
import inspect
import re
from typing import Any, NamedTuple

from compound.models import METHODS
from compound.models.base import Model


class Option(NamedTuple):
    """One option of a method."""

    name: str
    default: Any
    description: str  # from the docstring of the Config


class Entry(NamedTuple):
    """One method."""

    name: str
    description: str  # the first line of its class's docstring
    components: tuple[str, ...]
    reference: str
    options: list[Option]


def entries() -> list[Entry]:
    """All methods, in the order of METHODS."""
    return [_entry(name, model) for name, model in METHODS.items()]


def entry(name: str) -> Entry:
    """One method; ValueError for an unknown name."""
    if name not in METHODS:
        raise ValueError(f"method is {name!r}: choose one of {', '.join(METHODS)}")
    return _entry(name, METHODS[name])


def _entry(name: str, model: type[Model]) -> Entry:
    description = (inspect.getdoc(model) or "").splitlines()[0]
    documented: dict[str, str] = {}
    for ancestor in reversed(model.Config.__mro__[:-1]):
        documented |= parameters(ancestor.__doc__ or "")
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(model.Config)
    options = [Option(field.name, field.default, documented.get(field.name, "")) for field in fields]
    return Entry(name, description, model.components, model.reference, options)


def parameters(docstring: str) -> dict[str, str]:
    """Descriptions of the parameters in a numpydoc docstring, by name."""
    _, _, section = inspect.cleandoc(docstring).partition("Parameters\n----------\n")
    entries = re.findall(r"^(\w+) : .*\n((?:    .*(?:\n|$))+)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
