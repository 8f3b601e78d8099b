"""What the pages promise works: every Python block is executed, every shell command is one the command knows."""

import re
import shlex
from pathlib import Path

import pytest

from compound.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list:
    found = [
        (page, number, code) for page in PAGES for number, (kind, code) in enumerate(BLOCK.findall(page.read_text())) if kind == language
    ]
    return [pytest.param(page, code, id=f"{page.stem}-{number}") for page, number, code in found]


@pytest.mark.parametrize("page,code", blocks("python"))
def test_python_block_runs(page: Path, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page,code", blocks("sh"))
def test_shell_block_names_real_commands_and_options(page: Path, code: str):
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in code.splitlines():
        program, *words = shlex.split(line, comments=True) or [""]
        if program == "make":
            assert set(words) <= targets
        elif program == "compound":
            command = main.commands[words[0]]
            command.make_context(words[0], words[1:])  # parses, does not run
