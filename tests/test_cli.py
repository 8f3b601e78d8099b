"""The command line: help, rejected input with exit code 2, and one small experiment from end to end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from compound.cli.app import main
from compound.experiments import digits, toy


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COMPOUND_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments)

    return call


COMMANDS = [(name,) for name in main.commands] + [("data", name) for name in main.commands["data"].commands]


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_every_command_shows_an_example(command, name: tuple[str, ...]):
    result = command(*name, "--help")
    assert result.exit_code == 0
    assert f"Example: compound {' '.join(name)}" in result.output


@pytest.mark.parametrize(
    "arguments,expected",
    [
        (["run", "nothing"], "choose one of toy, digits"),
        (["run", "toy", "--preset", "huge"], "toy has quick, paper"),
        (["run", "toy", "--methods", "ml-cdn,nonsense"], "method is 'nonsense': toy has ml-cdn, vb-cdn"),
        (["run", "toy", "--seeds", "0"], "ask for at least 1"),
        (
            ["run", "uci", "--data-dir", "empty"],
            "data set uci is missing: put uci/bostonHousing.npz at empty",
        ),
        (["run", "fgsm-mnist", "--data-dir", "empty"], "data set mnist is missing"),
        (["run"], "Missing argument"),
        (["nonsense"], "No such command"),
    ],
)
def test_invalid_arguments_are_rejected_in_one_sentence(command, arguments: list[str], expected: str):
    result = command(*arguments)
    assert result.exit_code == 2
    assert expected in result.output
    assert "Traceback" not in result.output
    assert not Path("runs").exists()


def test_unwritable_output_is_rejected(command):
    Path("file").write_text("")
    result = command("run", "toy", "--runs", "file/runs")
    assert result.exit_code == 2
    assert "file" in result.output
    assert "Traceback" not in result.output


def test_toy_from_end_to_end(command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(toy, "STEPS", {"quick": 30, "paper": 30})
    arguments = ("run", "toy", "--seeds", "1", "--jobs", "1", "--json", "numbers/toy.json")
    first = command(*arguments)
    assert first.exit_code == 0, first.output
    numbers = json.loads(Path("numbers/toy.json").read_text())
    assert len(numbers["runs"]) == 8  # two sets, two methods, two forms
    assert [bar["held"] for bar in numbers["bars"]] == [
        line.startswith("ok") for line in first.stdout.splitlines() if "(at" in line
    ]
    page = Path("report/toy/index.html").read_text()
    for claim in (bar["claim"] for bar in numbers["bars"]):
        assert claim in page
    assert "0.356" in page  # the paper's value is shown beside ours
    assert Path("report/toy/toy.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in Path("runs").iterdir()} == {
        "fits",
        *(run["key"] for run in numbers["runs"]),
    }

    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("metrics.json")}
    assert command(*arguments).exit_code == 0
    assert before == {
        path: path.stat().st_mtime_ns for path in Path("runs").rglob("metrics.json")
    }  # no run was repeated
    assert json.loads(Path("numbers/toy.json").read_text()) == numbers


def test_digits_page_from_a_short_run(command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(digits, "STEPS", {"quick": 60, "paper": 60})
    result = command(
        "run", "digits", "--seeds", "1", "--methods", "ml-cdn", "--jobs", "1", "--json", "digits.json"
    )
    assert result.exit_code == 0, result.output
    metrics = json.loads(Path("digits.json").read_text())["runs"][0]["metrics"]
    assert metrics["accuracy"] > 0.5  # sixty steps are far better than chance
    assert "ml-cdn: accuracy" in Path("report/digits/index.html").read_text()


def test_failed_run_exits_with_one_and_shows_its_reason(command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(toy, "STEPS", {"quick": 5, "paper": 6})
    work = toy.ToyExperiment.work

    def failing_work(self, run, context):
        if run.data == "set 2":
            raise ArithmeticError("bad luck")
        return work(self, run, context)

    monkeypatch.setattr(toy.ToyExperiment, "work", failing_work)
    arguments = ("run", "toy", "--seeds", "1", "--methods", "map", "--jobs", "1", "--json", "toy.json")
    result = command(*arguments)
    assert (
        result.exit_code == 1
        and "failed: toy · set 2 · map · seed 0: ArithmeticError: bad luck" in result.output
    )
    assert "page: report/toy/index.html" in result.output
    numbers = json.loads(Path("toy.json").read_text())
    assert [run["config"]["data"] for run in numbers["runs"]] == ["set 1"]
    assert [failure["reason"] for failure in numbers["failures"]] == ["ArithmeticError: bad luck"]
    assert "ArithmeticError: bad luck" in Path("report/toy/index.html").read_text()
    state = command("status", "toy", "--seeds", "1", "--methods", "map")
    assert "1 done, 0 running, 1 failed, 0 waiting" in state.output and "bad luck" in state.output
    assert "1 done, 0 running, 1 failed, 0 waiting" in command("status").output
    overview = command("report", "--out", "overview")
    assert overview.exit_code == 0 and "(1 runs)" in overview.output
    assert "ArithmeticError: bad luck" in Path("overview/index.html").read_text()
    assert Path("overview/quick-toy.csv").exists()
    monkeypatch.setattr(toy.ToyExperiment, "work", work)
    assert command(*arguments).exit_code == 0 and json.loads(Path("toy.json").read_text())["failures"] == []


def test_report_without_runs_is_rejected(command):
    for arguments in (("status",), ("report",)):
        result = command(*arguments)
        assert result.exit_code == 2 and "holds no runs" in result.output


def test_ctrl_c_says_how_to_resume(command, monkeypatch: pytest.MonkeyPatch):
    def interrupted(self, run, context):
        raise KeyboardInterrupt

    monkeypatch.setattr(toy.ToyExperiment, "work", interrupted)
    result = command("run", "toy", "--seeds", "1", "--methods", "map", "--jobs", "1")
    assert result.exit_code == 130 and "the same command resumes" in result.output


def test_select_is_rejected_without_candidates(command):
    result = command("run", "toy", "--select")
    assert result.exit_code == 2 and "leave --select out" in result.output


# errors


@pytest.mark.parametrize(
    "arguments", [("run", "toy", "--seeds", "1"), ("demo",), ("report",), ("bench", "--quick")]
)
def test_unwritable_outputs_are_rejected_before_any_work(
    command, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    from compound import experiments
    from compound.bench import speed
    from compound.experiments import overview

    def work(*_, **__):
        raise AssertionError("started before the check")

    for module, name in ((experiments, "run_grid"), (overview, "overview"), (speed, "main")):
        monkeypatch.setattr(module, name, work)
    Path("file").write_text("")
    unwritable = ("--json", "file/a.json") if arguments[0] == "bench" else ("--out", "file/report")
    result = command(*arguments, *unwritable)
    assert result.exit_code == 2 and "cannot be written to" in result.output
    if arguments[0] == "run":
        assert "cannot be written to" in command(*arguments, "--json", "file/a.json").output
    assert [path.name for path in Path().iterdir()] == ["file"]


@pytest.mark.parametrize(
    "error,expected",
    [
        (MemoryError(), "Error: out of memory: give fewer rows"),
        (MemoryError("Unable to allocate 7.28 TiB"), "out of memory (Unable to allocate 7.28 TiB)"),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000 bytes."
            ),
            "(4.0 GB more were needed)",
        ),
        (
            ImportError("libx.so: cannot open shared object file"),
            "a library cannot be loaded (libx.so: cannot open",
        ),
        (OSError(28, "No space left on device"), "Error: No space left on device: free some space, and"),
        (
            OSError("Error writing bytes. Detail: [errno 28] No space left on device"),
            "Error: No space left on",
        ),
        (OSError(13, "Permission denied", "a.csv"), "Error: a.csv: Permission denied"),
    ],
)
def test_system_errors_end_in_one_sentence(
    command, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: str
):
    from compound.experiments import status

    def found(root):
        raise error

    monkeypatch.setattr(status, "find_runs", found)
    result = command("status")
    assert result.exit_code == 2 and expected in result.output


def test_out_of_memory_in_torch_ends_in_one_sentence(command, monkeypatch: pytest.MonkeyPatch):
    from compound.experiments import status

    monkeypatch.setattr(status, "find_runs", lambda root: torch.empty(2**60))
    result = command("status")
    assert result.exit_code == 2 and "out of memory" in result.output  # torch's message may change


def test_unloadable_library_is_named(command, monkeypatch: pytest.MonkeyPatch):
    Path("broken.py").write_text("import ctypes\nctypes.CDLL('libnothing.so')\n")
    monkeypatch.syspath_prepend(".")
    monkeypatch.setattr("compound.experiments.status.find_runs", lambda root: __import__("broken"))
    result = command("status")
    assert result.exit_code == 2 and "a library cannot be loaded (libnothing.so" in result.output


def test_warnings_are_printed_as_notes(command, monkeypatch: pytest.MonkeyPatch):
    import warnings

    def found(root):
        warnings.simplefilter("default")
        warnings.warn("something is odd", stacklevel=1)
        raise ValueError("no runs")

    monkeypatch.setattr("compound.experiments.status.find_runs", found)
    assert command("status").output == "note: something is odd\nError: no runs\n"


TABLE = r"""
from compound.cli.app import main

@main.command()
def show():
    from rich.console import Console
    from rich.table import Table
    Console().print(Table("\u03bb", title="caf\u00e9"))

main(["show"])
"""


def test_ascii_terminals_get_ascii():
    """click escapes by itself, rich does not."""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    out = subprocess.run([sys.executable, "-c", TABLE], capture_output=True, env=environment)
    assert (out.returncode, out.stderr) == (0, b"")
    assert b"\\u03bb" in out.stdout and b"caf\\xe9" in out.stdout
