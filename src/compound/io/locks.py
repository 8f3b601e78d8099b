"""A lock on a file that ends with its process: one process at a time works on it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def one_process(path: Path) -> Iterator[None]:
    """A context manager that holds the lock of a file; ValueError if another process holds it.

    The lock is that of a file beside it, `.name.lock`. Where the system has no such locks, nothing is locked.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with path.with_name(f".{path.name}.lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"{path} is used by another process: wait for it, or choose another file"
            ) from error
        yield
