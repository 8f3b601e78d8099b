"""What the pages promise works: every Python block is executed, every shell command is one the command knows."""

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
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = [
    page for page in PAGES if page.stem != "tables"
]  # that one needs real tables: test_tutorial.py runs it
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> str:
    """All blocks of a page in one language, one after the other."""
    return "\n".join(code for kind, code in BLOCK.findall(page.read_text()) if kind == language)


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch):
    """The methods, for a test that adds to them."""
    monkeypatch.setattr(models, "METHODS", kept := dict(models.METHODS))
    monkeypatch.setattr(test_laws, "METHODS", kept)
    return kept


def execute(page: Path) -> dict:
    words = {"__name__": "__main__", "network": limits.network}
    exec(compile(blocks(page, "python"), str(page), "exec"), words)
    return words


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, methods):
    monkeypatch.chdir(tmp_path)
    execute(page)


def test_worked_example_obeys_every_law(monkeypatch: pytest.MonkeyPatch, methods, tmp_path: Path):
    name = "gaussian-dropout"
    words = execute(ROOT / "docs" / "adding-a-method.md")
    (line,) = re.findall(
        rf'"{name}": (Row.*),$', (ROOT / "docs" / "adding-a-method.md").read_text(), re.MULTILINE
    )
    row = eval(line, {"Row": test_laws.Row})
    monkeypatch.setitem(test_laws.TABLE, name, row)
    monkeypatch.setattr(limits, "gaussian_dropout", words["gaussian_dropout"], raising=False)
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
def test_shell_blocks_name_real_commands_and_options(page: Path):
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in blocks(page, "sh").splitlines():
        program, *words = shlex.split(line, comments=True) or [""]
        if program == "make":
            assert set(words) <= targets
        elif program == "compound":
            command = main.commands[words[0]]
            command.make_context(words[0], words[1:])  # parses, does not run
