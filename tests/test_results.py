"""Pages hold the numbers of results/, and the plan of `make results` knows every file there."""

import re
import shlex
import sys
from pathlib import Path

import page_numbers
import pytest
import regenerate
from regenerate import RESULTS, ROOT, Step

from compound.cli.app import main

PLAN = regenerate.tomllib.loads(regenerate.PLAN.read_text())
MEASURED = re.compile(r"\d\.\d{2,}|\d(?:\.\d+)?%")  # such as 0.977 or 98.6%


def test_pages_hold_the_numbers_of_the_committed_results():
    stale = [path.name for path, text in page_numbers.pages().items() if path.read_text() != text]
    assert not stale, "run python tests/page_numbers.py"


def test_a_changed_number_in_readme_is_noticed():
    readme = (ROOT / "README.md").read_text()
    changed = readme.replace("| `vb-cdn` | 98.1%", "| `vb-cdn` | 98.9%")
    assert changed != readme
    assert page_numbers.filled(changed) == readme


def test_no_number_of_readme_is_typed_by_hand():
    text = re.sub(r"^```.*?^```", "", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!-- ([\w-]+): begin -->.*?<!-- \1: end -->", "", text, flags=re.DOTALL)
    assert not MEASURED.findall(text.replace("Python 3.11", ""))


def test_numbers_are_means_over_the_seeds_of_the_file():
    runs = [r for r in page_numbers.results(["ood-mnist-paper.json"]) if r.run.method == "ml-cdn"]
    values = [r.metrics["far"]["omniglot"]["auroc"] for r in runs if not r.run.variant]
    (line,) = (line for line in page_numbers.ood_table().splitlines() if line.startswith("| `ml-cdn` |"))
    assert line.split("|")[8].strip() == f"{sum(values) / len(values):.3f}"


def test_every_file_of_results_has_one_owner():
    owners = dict.fromkeys([*PLAN["prose"]["pages"], *PLAN["former"]["files"]], "by hand")
    owners |= {"plan.toml": "by hand", "claims.toml": "by hand", "claims.md": "page_numbers.py"}
    pages = {step.page: step.name for step in regenerate.steps() if step.page}
    assert not set(owners) & set(pages)
    prefixes = tuple(s.prefix for s in regenerate.steps() if s.experiment and not s.picture)
    writes = {name for s in regenerate.steps() for name in (*s.writes, s.prints)}
    for path in RESULTS.rglob("*.*"):
        name = str(path.relative_to(RESULTS))
        known = name in owners or name in pages or name in writes
        assert known or (name.startswith(prefixes) and path.suffix in regenerate.KINDS), name


@pytest.mark.parametrize("step", regenerate.steps(), ids=lambda step: step.name)
def test_steps_can_be_started(step: Step, tmp_path: Path):
    words = step.words(tmp_path, tmp_path / "data", 2)
    if words[1:3] == ["-m", "compound"]:
        command = main.commands[words[3]]
        command.make_context(words[3], words[4:])  # parses, does not run
    else:
        assert (ROOT / words[1]).is_file()
    assert step.minutes >= 0
    if step.page:
        page = (RESULTS / step.page).read_text()
        assert regenerate.between(page, "measured", "x") != page
    assert not {"DATA", "OUT", "RUNS"} & {word.split("/")[0] for word in words}


def test_finished_steps_are_not_repeated_and_failed_ones_are_named(tmp_path: Path, monkeypatch, capsys):
    script = tmp_path / "script.py"
    lines = (
        "import pathlib, sys",
        "p = pathlib.Path(sys.argv[1])",
        "p.write_text(p.read_text() + 'x' if p.exists() else 'x')",
        "print('measured')",
        "sys.exit(int(sys.argv[2]))",
    )
    script.write_text("\n".join(lines))
    good = Step("good", 1, command=f"python {shlex.quote(str(script))} OUT/count 0", prints="good.txt")
    bad = Step("bad", 1, command=f"python {shlex.quote(str(script))} OUT/count 1")
    monkeypatch.setattr(regenerate, "ROOT", tmp_path)
    monkeypatch.setattr(regenerate, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(regenerate, "commit", lambda: "f" * 40)
    monkeypatch.setattr(regenerate, "chosen_steps", lambda names: [good, bad] if not names else [good])
    monkeypatch.setattr(regenerate.sys, "executable", sys.executable)
    folder = tmp_path / "build" / "results" / ("f" * 12) / "steps"
    assert regenerate.main(["--data", str(tmp_path)]) == 1
    assert regenerate.main(["--data", str(tmp_path)]) == 1
    assert (folder / "good" / "count").read_text() == "x"
    assert (folder / "bad" / "count").read_text() == "xx"
    assert "bad failed" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()
    assert regenerate.publish(good, folder.parent, "f" * 40) == [tmp_path / "results" / "good.txt"]
    assert (tmp_path / "results" / "good.txt").read_text() == "measured\n"


def test_text_between_markers_is_replaced_and_nothing_else():
    page = "a <!-- measured: begin -->old<!-- measured: end --> b"
    assert regenerate.between(page, "measured", "new") == page.replace("old", "new")
    with pytest.raises(ValueError, match="must stand once"):
        regenerate.between(page + page, "measured", "new")
