"""Checks of paths: whether a file can be written there, and whether one is safe to open and read."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def check_writable(path: Path) -> None:
    """Raise ValueError where a file could not be written to `path`; its folder need not exist yet."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file")
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"{path} is read-only: choose another name, or allow writing")
    check_folder(path.absolute().parent)


def check_folder(path: Path) -> None:
    """Raise ValueError for a folder in which no file can be created, or that itself cannot be created."""
    path = path.absolute()
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written to ({error.strerror}): choose another path, or allow writing"
        ) from error


def real_path(path: str | Path) -> Path:
    """The path with symbolic links resolved; `Path.resolve` fails on links that lead to themselves."""
    return Path(os.path.realpath(path))


@contextmanager
def open_regular_file(path: Path, max_bytes: int) -> Iterator[BinaryIO]:
    """Open a file for reading; ValueError unless it is a regular file of at most `max_bytes`.

    Its type is checked before it is opened: a pipe may block for ever, and a device may act on opening.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError(
                f"{path} is missing or not a file: it is a directory, pipe or device, check the path"
            )
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        file = os.fdopen(os.open(path, flags), "rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"{path} is missing or not a file: check the path") from error
    except OSError as error:  # no permission, a link to itself, a name too long
        raise ValueError(
            f"{path} cannot be read ({error.strerror}): check the path and its permissions"
        ) from error
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            raise ValueError(
                f"{path} has {status.st_size} bytes: a file of at most {max_bytes} is expected there"
            )
        yield file
