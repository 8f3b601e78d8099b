"""The guide to tables: every block runs, in order, on real tables."""

import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from compound.cli.app import main

PAGE = Path(__file__).parents[1] / "docs" / "tables.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_every_block_runs(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if not (data_dir / "tables" / "diamonds.csv.gz").is_file():
        pytest.skip("no data: COMPOUND_DATA has no folder tables")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPOUND_DATA", str(data_dir))
    namespace: dict = {"__name__": "__main__"}
    count = {"sh": 0, "python": 0, "text": 0}
    for language, code in BLOCK.findall(PAGE.read_text()):
        count[language] += 1
        if language == "python":
            exec(compile(code, str(PAGE), "exec"), namespace)
        for line in code.splitlines() if language == "sh" else ():
            program, *arguments = shlex.split(os.path.expandvars(line))
            assert program == "compound"
            result = CliRunner().invoke(main, arguments)
            assert result.exit_code == 0, f"{line}\n{result.output}"
    assert min(count.values()) > 0
    for name in ("penguin.html", "titanic.html", "penguins.model/report.html"):
        assert Path(name).read_text().startswith("<!doctype html>")
