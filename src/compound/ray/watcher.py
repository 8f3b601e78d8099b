"""A process that ends the processes of a local Ray cluster when the command that started it has ended.

    python watcher.py NAME=VALUE    # at the end of its input, ends all with this in their environment

Ray ends its processes with the command, as long as that is not killed: then agents of the raylet may go on
for a minute or more. The pipe to this process closes however the command ends.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAME = "COMPOUND_RAY_CLUSTER"  # environment variable
QUIET_SECONDS = 0.5  # without a process: a dying one may have started another
LIMIT_SECONDS = 30.0  # for processes that do not die


@contextmanager
def watched() -> Iterator[None]:
    """Context in which a cluster is started and stopped; its processes end with it, or with this process."""
    if not Path("/proc/self/environ").exists():  # not Linux
        yield
        return
    value = uuid.uuid4().hex
    watcher = subprocess.Popen(
        [sys.executable, __file__, f"{NAME}={value}"], stdin=subprocess.PIPE, start_new_session=True
    )
    os.environ[NAME] = value  # inherited by what Ray starts
    try:
        yield
    finally:
        os.environ.pop(NAME, None)
        assert watcher.stdin is not None
        watcher.stdin.close()
        watcher.wait()


def marked(mark: bytes) -> list[int]:
    """Ids of the processes, besides this one, that were started with `mark` in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if mark in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def main(mark: bytes) -> None:
    """Wait for the end of standard input, then end all marked processes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent to all processes of a container that stops
    while sys.stdin.buffer.read(1):
        pass
    limit = time.monotonic() + LIMIT_SECONDS
    quiet = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < min(quiet, limit):
        for pid in marked(mark):
            quiet = time.monotonic() + QUIET_SECONDS
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1].encode())
