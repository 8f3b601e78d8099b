"""The guides to tables and to kinds of targets: every block runs, in order, on real tables."""

import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from compound.cli.app import main

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "tables.md"
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


@pytest.mark.slow
def test_every_kind_of_target_runs_on_a_real_table(data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    if not (data_dir / "tables2" / "storms.csv.gz").is_file():
        pytest.skip("no data: COMPOUND_DATA has no folder tables2")
    monkeypatch.setenv("COMPOUND_DATA", str(data_dir))
    namespace: dict = {"__name__": "__main__"}
    shown = []
    for language, code in BLOCK.findall((DOCS / "targets-tables.md").read_text()):
        if language == "python":
            exec(compile(code, "targets-tables.md", "exec"), namespace)
            shown.append(capsys.readouterr().out)
    coverage = [
        float(number) for text in shown for number in re.findall(r"(?:covered|hold|box) (\d\.\d\d)", text)
    ]
    assert len(coverage) >= 7 and min(coverage) > 0.8 and max(coverage) < 0.97, shown
