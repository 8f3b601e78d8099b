"""Files to be written: whether that is possible, asked before the work, and names to write under until a file is whole.

A name in use is locked, and a lock ends with its process: what a killed one left behind is known by that, and removed by the next call.
"""

import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NEW = ".new"
LETTERS = 8  # of the middle of a temporary name: .report.html.0123abcd.new


def check_writable(path: Path) -> None:
    """Refuse a file that could not be put there."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file")
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"{path} is read-only: choose another name, or allow writing")
    check_folder(path.absolute().parent)


def check_folder(path: Path) -> None:
    """Refuse a folder that is not there and cannot be made, or that takes no files."""
    path = path.absolute()
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written to ({error.strerror}): choose another place, or allow writing"
        ) from error


def is_temporary(name: str, of: str = "") -> bool:
    """Whether a file's name is one that `temporary` gives, for the file `of` where that is said."""
    stem, letters, end = name[: -len(NEW) - LETTERS], name[-len(NEW) - LETTERS : -len(NEW)], name[-len(NEW) :]
    named = stem == f".{of}." if of else stem.startswith(".") and stem.endswith(".")
    return end == NEW and named and all(letter in "0123456789abcdef" for letter in letters)


@contextmanager
def temporary(path: Path, folder: bool = False) -> Iterator[Path]:
    """An empty file (or folder) beside `path`, to be filled and renamed. What is still there at the end is removed."""
    sweep(path)
    fresh, handle = _claimed(path, folder)
    try:
        yield fresh
    finally:
        _remove(fresh)
        os.close(handle)


def sweep(path: Path) -> None:
    """Remove what killed processes left of their attempts at `path`; what a living one writes is locked."""
    with suppress(FileNotFoundError), os.scandir(path.parent) as entries:
        for entry in [entry.path for entry in entries if is_temporary(entry.name, path.name)]:
            with suppress(OSError):  # another call has removed it, or it is not ours to remove
                handle = os.open(entry, os.O_RDONLY | os.O_NONBLOCK)
                try:
                    if _lock(handle, wait=False):
                        _remove(Path(entry))
                finally:
                    os.close(handle)


def _claimed(path: Path, folder: bool) -> tuple[Path, int]:
    """A fresh name and the handle that locks it."""
    while True:
        fresh = path.with_name(
            f".{path.name}.{uuid.uuid4().hex[:LETTERS]}{NEW}"
        )  # tempfile would make it unreadable to others
        fresh.mkdir() if folder else fresh.touch(exist_ok=False)
        with suppress(FileNotFoundError):  # swept before it was locked
            handle = os.open(fresh, os.O_RDONLY)
            _lock(handle, wait=True)  # for one who just tries whether we live
            if fresh.exists():
                return fresh, handle
                return fresh, handle
            os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _lock(handle: int, wait: bool) -> bool:
    """Whether this process now holds the lock; False too where the system or the disk has none."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True
