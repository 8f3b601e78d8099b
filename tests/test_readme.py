"""Documentation pages: every Python block runs, every shell block uses existing commands and options."""

import re
import shlex
from inspect import signature
from itertools import product
from pathlib import Path

import limits
import pytest
from models import test_laws

from compound import models
from compound.cli.app import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NEED_TABLES = ("tables", "targets-tables")  # real ones: test_tutorial.py runs them
EXECUTED = [page for page in PAGES if page.stem not in NEED_TABLES]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> str:
    """All blocks of a page in one language, one after the other."""
    return "\n".join(code for kind, code in BLOCK.findall(page.read_text()) if kind == language)


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch):
    """A copy of METHODS, for a test that adds to it."""
    monkeypatch.setattr(models, "METHODS", copy := dict(models.METHODS))
    monkeypatch.setattr(test_laws, "METHODS", copy)
    return copy


def execute(page: Path) -> dict:
    """The namespace after all Python blocks of a page have run."""
    namespace = {"__name__": "__main__", "network": limits.network}
    exec(compile(blocks(page, "python"), str(page), "exec"), namespace)
    return namespace


@pytest.mark.parametrize(
    "page", [page for page in EXECUTED if blocks(page, "python")], ids=lambda page: page.stem
)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, methods):
    monkeypatch.chdir(tmp_path)
    execute(page)


def test_worked_example_obeys_every_law(monkeypatch: pytest.MonkeyPatch, methods, tmp_path: Path):
    name = "gaussian-dropout"
    page = ROOT / "docs" / "adding-a-method.md"
    namespace = execute(page)
    (line,) = re.findall(rf'"{name}": (Row.*),$', page.read_text(), re.MULTILINE)
    row = eval(line, {"Row": test_laws.Row})
    monkeypatch.setitem(test_laws.TABLE, name, row)
    monkeypatch.setattr(limits, "gaussian_dropout", namespace["gaussian_dropout"], raising=False)
    laws = [law for law in vars(test_laws.TestLaws) if law.startswith("test_")]
    assert len(laws) >= 12
    for number, (law, options, task) in enumerate(
        product(laws, row.cases, (test_laws.CLASSES, test_laws.TARGETS))
    ):
        test = getattr(test_laws.TestLaws(), law)
        folder = tmp_path / str(number)
        folder.mkdir()
        test(name, options, task, *([folder] if "tmp_path" in signature(test).parameters else []))
    test_laws.test_learns_a_separable_problem(name)
    test_laws.test_learns_a_curve_and_its_noise(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_shell_blocks_use_existing_commands_and_options(page: Path):
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in blocks(page, "sh").splitlines():
        program, *arguments = shlex.split(line, comments=True) or [""]
        if program == "make":
            assert set(arguments) <= targets
        elif program == "compound":
            command = main.commands[arguments[0]]
            command.make_context(arguments[0], arguments[1:])  # parses, does not run
