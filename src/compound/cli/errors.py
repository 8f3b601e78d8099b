"""How the command line reports errors: one sentence on stderr and an exit code, without a traceback."""

import errno
import io
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

REPEAT_SECONDS = 1.0  # a second SIGTERM within this time is ignored


class InvalidInput(click.ClickException):
    """Input that cannot be used: one sentence, exit code 2."""

    exit_code = 2


class Terminated(KeyboardInterrupt):
    """SIGTERM, sent by containers and schedulers: handled as Ctrl-C."""


class Commands(click.Group):
    """The command group; turns exceptions into one sentence and an exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line; characters that the terminal cannot show are escaped."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # λ must not raise on an ASCII terminal
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an expected exception becomes `InvalidInput`, an interrupt its exit code."""
        try:
            with _sigterm_raises(), _warnings_on_stderr():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            click.echo("stopped", err=True)
            raise click.exceptions.Exit(exit_code(error)) from None
        except Exception as error:
            message = _message(error)
            if message is None:
                raise
            raise InvalidInput(message) from error


def _message(error: Exception) -> str | None:
    """The sentence for an expected error; None for one that should keep its traceback."""
    if isinstance(error, ValueError):
        return str(error)
    if isinstance(error, ImportError):
        return _import_message(error)
    if isinstance(error, MemoryError):
        return _memory_message(str(error))
    if isinstance(error, OSError) and error.errno != errno.EPIPE:  # click exits quietly on a closed pipe
        return _os_message(error)
    size = re.search(r"can't allocate memory: you tried to allocate (\d+) bytes", str(error))
    if isinstance(error, RuntimeError) and size:  # of torch
        return _memory_message(f"{int(size[1]) / 1e9:.1f} GB more were needed")
    return None


def _os_message(error: OSError) -> str:
    """The sentence for a file that cannot be used, or for a library that cannot be loaded."""
    # an OSError while a module is imported is a shared library that cannot be loaded
    if any(frame.f_code.co_name == "<module>" for frame, _ in traceback.walk_tb(error.__traceback__)):
        return _import_message(error)
    if error.errno == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error):  # pyarrow has no errno
        place = f" for {error.filename}" if error.filename else ""
        return f"{os.strerror(errno.ENOSPC)}{place}: free some space, and give the same command again"
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)


def _import_message(error: Exception) -> str:
    return f"a library cannot be loaded ({error}): reinstall compound-torch and its dependencies"


def _memory_message(detail: str) -> str:
    detail = f" ({detail})" if detail else ""
    return f"out of memory{detail}: give fewer rows or columns, or free some memory"


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Context in which SIGTERM raises `Terminated`, so that temporary files are removed."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        yield
        return
    last = -1.0

    def stop(*_: Any) -> None:
        nonlocal last
        # often sent twice, to a process and to its group: the second must not interrupt the cleanup
        if last < 0 or time.monotonic() > last + REPEAT_SECONDS:
            last = time.monotonic()
            raise Terminated

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        restored = (previous or signal.SIG_DFL) if last < 0 else signal.SIG_IGN  # ignored while exiting
        signal.signal(signal.SIGTERM, restored)


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Context in which a warning is one line on stderr."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"note: {message}", err=True)
        yield


def exit_code(error: KeyboardInterrupt) -> int:
    """The exit code after SIGINT or SIGTERM: 128 plus the number of the signal, as in shells."""
    return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
