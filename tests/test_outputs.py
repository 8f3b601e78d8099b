"""Written files: checked before the work, complete or absent after it, and no temporary files left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compound.io.atomic import write_atomic
from compound.io.paths import check_folder, check_writable
from compound.io.temporary import is_temporary, remove_stale, temporary

NOWHERE = Path("/proc/nothing")  # not even root can write there


@pytest.mark.skipif(
    not Path("/proc").is_dir(), reason="needs a folder that nobody can write to, such as /proc"
)
def test_paths_that_cannot_be_written_are_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for path in (NOWHERE / "a.json", tmp_path / "file" / "a.json", tmp_path):
        with pytest.raises(ValueError, match=r"cannot be written to|is a folder"):
            check_writable(path)
    for path in (NOWHERE, tmp_path / "file", tmp_path / "file" / "deep"):
        with pytest.raises(ValueError, match="cannot be written to"):
            check_folder(path)
    check_writable(tmp_path / "new" / "folder" / "a.json")
    check_writable(tmp_path / "file")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]  # nothing was created


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to files that are read-only")
def test_a_read_only_file_is_refused(tmp_path: Path):
    (tmp_path / "a").touch(mode=0o444)
    with pytest.raises(ValueError, match="read-only"):
        check_writable(tmp_path / "a")


def test_temporary_names_are_recognised():
    assert is_temporary(".report.html.0123abcd.new") and is_temporary(
        ".report.html.0123abcd.new", "report.html"
    )
    for name in (
        "report.html",
        ".report.html.new",
        ".report.html.0123abcx.new",
        "report.html.0123abcd.new",
        ".x.0123abcd.old",
    ):
        assert not is_temporary(name)
    assert not is_temporary(".other.html.0123abcd.new", "report.html")


@pytest.mark.parametrize("folder", [False, True])
def test_stale_temporary_files_are_removed_and_locked_ones_are_not(tmp_path: Path, folder: bool):
    path = tmp_path / "a.csv"
    stale = tmp_path / ".a.csv.0123abcd.new"
    stale.mkdir() if folder else stale.write_text("half")
    others = [tmp_path / name for name in (".b.csv.0123abcd.new", ".a.csv.old", ".a.csv.backup.new")]
    for other in others:
        other.write_text("not a leftover of this file")
    with temporary(path, folder) as fresh:
        assert not stale.exists() and fresh.exists()
        with temporary(path, folder) as another:
            assert fresh.exists() and another != fresh
        remove_stale(path)
        assert fresh.exists() and not another.exists()
    assert sorted(tmp_path.iterdir()) == sorted(others)


WAITING = """
import sys, time
from pathlib import Path
from compound.io.temporary import temporary
with temporary(Path(sys.argv[1])) as fresh:
    print(fresh, flush=True)
    time.sleep(60)
"""


def test_the_next_write_removes_files_of_a_killed_process(tmp_path: Path):
    path = tmp_path / "a.json"
    process = subprocess.Popen([sys.executable, "-c", WAITING, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    fresh = Path(process.stdout.readline().strip())
    write_atomic(path, b"1")
    assert fresh.exists()  # its process is alive
    process.kill()
    process.wait()
    process.stdout.close()
    assert fresh.exists()
    write_atomic(path, b"2")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"] and path.read_bytes() == b"2"


WRITER = """
import os, sys
from pathlib import Path
from compound.io.temporary import temporary
for i in range(300):
    with temporary(Path(sys.argv[1])) as fresh:
        fresh.write_text("x" * 100)
        os.replace(fresh, sys.argv[1])
"""


def test_concurrent_writers_of_one_file_all_succeed(tmp_path: Path):
    """Each removes stale files while others create theirs: one removed before it was locked is replaced."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, tmp_path / "a"], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for writer in writers:
        assert writer.communicate()[1] == "" and writer.returncode == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"] and (
        tmp_path / "a"
    ).read_bytes() == b"x" * 100


TERMINATED = """
import sys, time
from pathlib import Path
import click
from compound.cli.app import main
from compound.io.temporary import temporary

@main.command()
@click.argument("path", type=Path)
def work(path):
    with temporary(path) as fresh:
        print("begun", flush=True)
        time.sleep(60)

main(["work", sys.argv[1]])
"""


def test_sigterm_ends_a_command_as_ctrl_c_does(tmp_path: Path):
    for number in (signal.SIGTERM, signal.SIGINT):
        command = [sys.executable, "-c", TERMINATED, tmp_path / "a.csv"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        time.sleep(0.05)
        process.send_signal(number)
        process.send_signal(
            number
        ) if number == signal.SIGTERM else None  # a group's signal reaches a process twice
        assert process.communicate(timeout=30)[1].strip() == "stopped"
        assert process.returncode == 128 + number
        assert not list(tmp_path.iterdir())
