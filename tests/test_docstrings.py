"""Public names have numpydoc docstrings: every parameter, what is returned, and an example that runs."""

import doctest
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import compound
import compound.nn
import compound.ood

ESTIMATORS = (compound.CompoundRegressor, compound.CompoundClassifier)
HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \w+)*)(?: : .+)?$", re.MULTILINE)


def public_names() -> Iterator[tuple[str, Any]]:
    for name in compound.__all__:
        yield f"compound.{name}", getattr(compound, name)
    for module in (compound.nn, compound.ood):
        for name, value in vars(module).items():
            if callable(value) and value.__module__.startswith("compound."):
                yield f"{module.__name__}.{name}", value


def public_methods() -> Iterator[tuple[str, Any]]:
    """Methods and properties of the estimators that this package defines."""
    for estimator in ESTIMATORS:
        for name in dir(estimator):
            value = inspect.getattr_static(estimator, name)
            function = value.fget if isinstance(value, property) else inspect.unwrap(getattr(estimator, name))
            if not name.startswith("_") and getattr(function, "__module__", "").startswith("compound."):
                yield f"compound.{estimator.__name__}.{name}", value


def sections(docstring: str) -> dict[str, str]:
    """The sections of a numpydoc docstring by heading; the summary has the heading ""."""
    parts = HEADING.split(inspect.cleandoc(docstring))
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def documented_parameters(section: str) -> list[str]:
    return [name for names in ENTRY.findall(section) for name in names.lstrip("*").split(", ")]


def expected_parameters(value: Any) -> list[str]:
    return [name for name in inspect.signature(value).parameters if name not in ("self", "cls")]


def returns_something(function: Callable[..., Any]) -> bool:
    return inspect.signature(function).return_annotation not in (None, "None")


def defects(value: Any, needs_example: bool) -> list[str]:
    """What the docstring of a class, function or method lacks."""
    parts = sections(value.__doc__ or "")
    found = []
    if not parts[""].strip():
        found.append("no summary")
    if isinstance(value, property):
        return found
    function = value.__func__ if isinstance(value, classmethod) else value
    documented = documented_parameters(parts.get("Parameters", ""))
    if documented != expected_parameters(function):
        found.append(f"parameters {documented}, the signature has {expected_parameters(function)}")
    if not inspect.isclass(function) and returns_something(function) and not parts.get("Returns", "").strip():
        found.append("no Returns")
    if needs_example and ">>>" not in parts.get("Examples", ""):
        found.append("no Examples")
    return found


NAMES = [pytest.param(name, value, id=name) for name, value in public_names()]
METHODS = [pytest.param(name, value, id=name) for name, value in public_methods()]


@pytest.mark.parametrize("name, value", NAMES)
def test_public_names_document_parameters_returns_and_an_example(name, value):
    assert defects(value, needs_example=True) == [], name


@pytest.mark.parametrize("name, method", METHODS)
def test_methods_of_estimators_document_parameters_and_returns(name, method):
    assert defects(method, needs_example=False) == [], name


@pytest.mark.parametrize("name, value", NAMES)
def test_examples_of_public_names_run(name, value):
    example = doctest.DocTestParser().get_doctest(inspect.cleandoc(value.__doc__), {}, name, None, None)
    output: list[str] = []
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.DocTestRunner(optionflags=options).run(example, out=output.append)
    assert result.attempted > 0 and result.failed == 0, "".join(output)


def test_the_check_notices_what_is_missing():
    def summary_only(x, y=1) -> int:
        """Add two numbers."""

    def complete(x, y=1) -> int:
        """Add two numbers.

        Parameters
        ----------
        x, y : int
            The numbers.

        Returns
        -------
        int
            Their sum.

        Examples
        --------
        >>> 1 + 1
        2
        """

    assert len(defects(summary_only, needs_example=True)) == 3
    assert defects(complete, needs_example=True) == []
