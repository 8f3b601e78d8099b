"""Atomic replacement of files and directories: a reader sees the old or the new one, also after a crash.

A file is replaced by one rename. A directory needs two: the former one is renamed to `.name.<id>.old`, then
the new one, `.name.<id>.new`, to `name`. Between the two renames both exist with the same id; by that
`locate` finds the former directory.
"""

import errno
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from compound.io.paths import real_path
from compound.io.temporary import ID_LENGTH, SUFFIX, temporary

ATTEMPTS = 100  # to replace a directory, or to read one that other processes replace
FORMER = ".old"


def write_atomic(path: str | Path, data: bytes) -> None:
    """Replace a file, or create it with its folders; at every moment `path` is the old or the new file."""
    path = real_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary(path) as fresh:
        write_synced(fresh, data)
        os.replace(fresh, path)
    sync_directory(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Wait until the entries of a directory are on disk."""
    if os.name != "posix":  # elsewhere directories cannot be opened, and renames are journalled
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_directory(fresh: Path, path: Path) -> None:
    """Rename `fresh`, made by `temporary`, to `path`; a directory at `path` is first renamed to `.old`."""
    former = fresh.with_suffix(FORMER)
    for _ in range(ATTEMPTS):
        try:
            os.rename(fresh, path)
            return
        except OSError as error:  # the former directory, or one of another process, is there
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        shutil.rmtree(former, ignore_errors=True)
        with suppress(FileNotFoundError):  # another process has just renamed it
            os.rename(path, former)
    raise ValueError(f"{path} is replaced all the time by other processes: wait for them and save again")


class Location(NamedTuple):
    """Where a directory is, and numbers that change when it is replaced."""

    path: Path
    identity: tuple[int, ...] | None  # device, inode and times; None where the directory is missing


def locate(path: Path) -> Location:
    """Where the directory is now: at `path`, or at the `.old` name of a replacement that is not complete.

    An `.old` directory without its `.new` one is left over from a complete replacement, and is ignored: a
    model deleted by its owner must not come back.
    """
    interrupted = (old for old in _former_directories(path) if old.with_suffix(SUFFIX).exists())
    for candidate in (path, *interrupted):
        with suppress(OSError):
            status = os.stat(candidate)
            return Location(candidate, (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns))
    return Location(path, None)


def restore_interrupted(path: Path) -> None:
    """Undo a replacement that was interrupted between its two renames: rename the `.old` one to `path`."""
    former = locate(path).path
    if former != path:
        with suppress(OSError):  # another call was faster
            os.rename(former, path)


def remove_former(path: Path) -> None:
    """Delete the `.old` directories of complete replacements: those without a `.new` one of the same id."""
    for old in (*_former_directories(path), path.with_name(f".{path.name}{FORMER}")):
        if not old.with_suffix(SUFFIX).exists():
            shutil.rmtree(old, ignore_errors=True)


def _former_directories(path: Path) -> list[Path]:
    """The `.old` directories of replacements of `path`, complete or not."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{{ID_LENGTH}}}{re.escape(FORMER)}")
    try:
        return sorted(entry for entry in path.parent.iterdir() if pattern.fullmatch(entry.name))
    except OSError:
        return []
