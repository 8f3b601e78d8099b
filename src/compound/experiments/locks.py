"""Advisory file locks: one process at a time works on a run or a fit."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Busy(RuntimeError):
    """Raised where another process holds the lock of a run or of a fit that it needs."""

    def __init__(self, path: Path):
        super().__init__(f"{path} is held by another process")
        self.path = path


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """A context manager that holds an exclusive lock on a file, which is created if needed.

    If another process holds it: wait, or raise `Busy` where `wait` is False. A process that dies releases its
    locks. The file is not removed: another process may just have opened it.
    """
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise Busy(path) from error
        yield


def is_locked(path: Path) -> bool:
    """Whether a process is inside `locked(path)` now."""
    try:
        with path.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
