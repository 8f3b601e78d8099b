"""Directories put in place of others: a reader finds the old one or the new one, also while savers compete or are cut off."""

import errno
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TRIES = 100  # to replace, or to read what others replace


def marked(path: Path, word: str) -> list[Path]:
    """What saves of this path, running or cut off, have left beside it."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.{word}")
    try:
        return sorted(entry for entry in path.parent.iterdir() if pattern.fullmatch(entry.name))
    except OSError:
        return []


def replace(fresh: Path, path: Path) -> None:
    """A directory cannot be replaced in one move: the former one goes aside, and until `fresh` has left its own name `place` finds it."""
    former = fresh.with_suffix(".old")
    for _ in range(TRIES):
        try:
            os.rename(fresh, path)
            return
        except OSError as error:  # somebody is there: the former model, or another saver's
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        shutil.rmtree(former, ignore_errors=True)
        with suppress(FileNotFoundError):  # another saver has just moved it
            os.rename(path, former)
    raise ValueError(f"{path} is replaced all the time by other processes: wait for them and save again")


class Place(NamedTuple):
    """Where a directory is, and a mark that changes when it is replaced; None where there is none."""

    path: Path
    mark: tuple[int, ...] | None


def place(path: Path) -> Place:
    """Where the model is.

    Where a save stands or was cut off between its two moves the former model is whole, and the new one still beside it. A former one
    alone is rubbish, left over from a save that was cut off later: whoever has deleted the model since does not want it back.
    """
    for where in (path, *(old for old in marked(path, "old") if old.with_suffix(".new").exists())):
        with suppress(OSError):
            found = os.stat(where)
            return Place(where, (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns))
    return Place(path, None)


def repair(path: Path) -> None:
    """Put a former model back that a save, cut off between its two moves, has left aside."""
    former = place(path).path
    if former != path:
        with suppress(OSError):  # another call was faster
            os.rename(former, path)


def sweep(path: Path) -> None:
    """Delete former models of saves that are over; those of running ones still have the new one beside them."""
    for old in (*marked(path, "old"), path.with_name(f".{path.name}.old")):
        if not old.with_suffix(".new").exists():
            shutil.rmtree(old, ignore_errors=True)
