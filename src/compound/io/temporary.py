"""Temporary files and folders beside the final one, for what is renamed once it is complete.

A temporary file is locked while it is in use, and a lock ends with its process. So one without a lock is left
over from a killed process, and the next call removes it.
"""

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SUFFIX = ".new"
ID_LENGTH = 8  # hexadecimal digits of a temporary name: .report.html.0123abcd.new


def is_temporary(name: str, target: str = "") -> bool:
    """Whether a file name is of the form that `temporary` gives to any file, or to the file `target`."""
    stem = name[: -len(SUFFIX) - ID_LENGTH]
    identifier = name[-len(SUFFIX) - ID_LENGTH : -len(SUFFIX)]
    matches = stem == f".{target}." if target else stem.startswith(".") and stem.endswith(".")
    return name.endswith(SUFFIX) and matches and all(digit in "0123456789abcdef" for digit in identifier)


@contextmanager
def temporary(path: Path, folder: bool = False) -> Iterator[Path]:
    """Create an empty file (or folder) beside `path`, to be written and renamed within the `with` block.

    If it has not been renamed at the end of the block, it is removed.
    """
    remove_stale(path)
    fresh, handle = _create_locked(path, folder)
    try:
        yield fresh
    finally:
        _remove(fresh)
        os.close(handle)


def remove_stale(path: Path) -> None:
    """Remove temporary files for `path` whose processes were killed; those of living processes are locked."""
    with suppress(FileNotFoundError), os.scandir(path.parent) as entries:
        for entry in [entry.path for entry in entries if is_temporary(entry.name, path.name)]:
            with suppress(OSError):  # another call has removed it, or we may not
                handle = os.open(entry, os.O_RDONLY | os.O_NONBLOCK)
                try:
                    if _lock(handle, wait=False):
                        _remove(Path(entry))
                finally:
                    os.close(handle)


def _create_locked(path: Path, folder: bool) -> tuple[Path, int]:
    """Create a temporary file or folder for `path`; return it with the file descriptor that locks it."""
    while True:
        # not by tempfile, which would make it unreadable for other users
        fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex[:ID_LENGTH]}{SUFFIX}")
        fresh.mkdir() if folder else fresh.touch(exist_ok=False)
        with suppress(FileNotFoundError):  # removed by another process before it was locked
            handle = os.open(fresh, os.O_RDONLY)
            _lock(handle, wait=True)  # another process may hold it for a moment in `remove_stale`
            if fresh.exists():
                return fresh, handle
            os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _lock(handle: int, wait: bool) -> bool:
    """Lock a file descriptor, and return whether this process holds the lock.

    Without `wait`, False while another process holds it. False also where the system has no locks.
    """
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True
