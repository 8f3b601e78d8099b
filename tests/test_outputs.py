"""Files to be written: asked about before the work, whole or absent after it, and nothing left beside them."""

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

NOWHERE = Path("/proc/nothing")  # where not even root can write


@pytest.mark.skipif(
    not Path("/proc").is_dir(), reason="needs a folder that nobody can write to, such as /proc"
)
def test_what_cannot_be_written_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for path in (NOWHERE / "a.json", tmp_path / "file" / "a.json", tmp_path):
        with pytest.raises(ValueError, match=r"cannot be written to|is a folder"):
            check_writable(path)
    for path in (NOWHERE, tmp_path / "file", tmp_path / "file" / "deep"):
        with pytest.raises(ValueError, match="cannot be written to"):
            check_folder(path)
    check_writable(tmp_path / "new" / "folder" / "a.json")
    check_writable(tmp_path / "file")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]  # nothing was made


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to files that are read-only")
def test_a_read_only_file_is_refused(tmp_path: Path):
    (tmp_path / "a").touch(mode=0o444)
    with pytest.raises(ValueError, match="read-only"):
        check_writable(tmp_path / "a")


def test_temporary_names_are_known():
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
def test_what_the_dead_left_is_removed_and_what_the_living_write_is_not(tmp_path: Path, folder: bool):
    path = tmp_path / "a.csv"
    dead = tmp_path / ".a.csv.0123abcd.new"
    dead.mkdir() if folder else dead.write_text("half")
    others = [tmp_path / name for name in (".b.csv.0123abcd.new", ".a.csv.old", ".a.csv.backup.new")]
    for other in others:
        other.write_text("not a leftover of this file")
    with temporary(path, folder) as mine:
        assert not dead.exists() and mine.exists()
        with temporary(path, folder) as another:
            assert mine.exists() and another != mine
        remove_stale(path)
        assert mine.exists() and not another.exists()
    assert sorted(tmp_path.iterdir()) == sorted(others)


LIVING = """
import sys, time
from pathlib import Path
from compound.io.temporary import temporary
with temporary(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    time.sleep(60)
"""


def test_the_next_call_cleans_up_after_a_kill(tmp_path: Path):
    path = tmp_path / "a.json"
    process = subprocess.Popen([sys.executable, "-c", LIVING, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    mine = Path(process.stdout.readline().strip())
    write_atomic(path, b"1")
    assert mine.exists()  # its process lives
    process.kill()
    process.wait()
    process.stdout.close()
    assert mine.exists()
    write_atomic(path, b"2")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"] and path.read_bytes() == b"2"


WRITER = """
import os, sys
from pathlib import Path
from compound.io.temporary import temporary
for i in range(300):
    with temporary(Path(sys.argv[1])) as mine:
        mine.write_text("x" * 100)
        os.replace(mine, sys.argv[1])
"""


def test_many_writers_of_one_file_do_not_hinder_each_other(tmp_path: Path):
    """Each sweeps while the others begin: a name that was swept before it was locked is given up for another."""
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
    with temporary(path) as mine:
        print("begun", flush=True)
        time.sleep(60)

main(["work", sys.argv[1]])
"""


def test_sigterm_ends_a_command_as_ctrl_c_does(tmp_path: Path):
    for number in (signal.SIGTERM, signal.SIGINT):
        words = [sys.executable, "-c", TERMINATED, tmp_path / "a.csv"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        time.sleep(0.05)
        process.send_signal(number)
        process.send_signal(
            number
        ) if number == signal.SIGTERM else None  # a group's signal reaches a process twice
        assert process.communicate(timeout=30)[1].strip() == "stopped"
        assert process.returncode == 128 + number
        assert not list(tmp_path.iterdir())
