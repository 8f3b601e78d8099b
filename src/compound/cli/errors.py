"""How a command ends: whatever goes wrong, in one sentence and with an exit code."""

import errno
import io
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


class Refused(click.ClickException):
    """Input that cannot be worked with: one sentence, exit code 2."""

    exit_code = 2


class Terminated(KeyboardInterrupt):
    """SIGTERM, what containers and schedulers send: a command ends as it does after Ctrl-C."""


class Commands(click.Group):
    """Whatever goes wrong ends in one sentence."""

    def main(self, *args: Any, **extra: Any) -> Any:
        for stream in (
            sys.stdout,
            sys.stderr,
        ):  # a λ must not end a command on a terminal that knows ASCII only
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _terminable(), _notes():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            click.echo("stopped", err=True)
            raise click.exceptions.Exit(exit_code(error)) from None
        except ValueError as error:
            raise Refused(str(error)) from error
        except ImportError as error:
            raise Refused(_not_loaded(error)) from error
        except MemoryError as error:
            raise Refused(_no_memory(str(error))) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # click ends quietly where nobody reads on
                raise
            raise Refused(_trouble(error)) from error
        except RuntimeError as error:
            asked = re.search(r"can't allocate memory: you tried to allocate (\d+) bytes", str(error))
            if asked is None:
                raise
            raise Refused(_no_memory(f"{int(asked[1]) / 1e9:.1f} GB more were asked for")) from error


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises `Terminated`, so that temporary files are removed on the way out."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    ):
        yield
        return
    last = -1.0

    def stop(*_: Any) -> None:
        nonlocal last
        if (
            last < 0 or time.monotonic() > last + 1
        ):  # it often comes twice, to a process and to its group: the second must not stop the cleaning
            last = time.monotonic()
            raise Terminated

    former = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(
            signal.SIGTERM, (former or signal.SIG_DFL) if last < 0 else signal.SIG_IGN
        )  # on its way out already


@contextmanager
def _notes() -> Iterator[None]:
    """Warnings as sentences on stderr."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"note: {message}", err=True)
        yield


def exit_code(error: KeyboardInterrupt) -> int:
    """128 plus the number of the signal, as a shell has it."""
    return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)


def _trouble(error: OSError) -> str:
    # a module's own lines run while it is imported: what the system refused there is a library
    if any(frame.f_code.co_name == "<module>" for frame, _ in traceback.walk_tb(error.__traceback__)):
        return _not_loaded(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)


def _not_loaded(error: Exception) -> str:
    return f"a library cannot be loaded ({error}): install compound-torch and what it needs again"


def _no_memory(words: str) -> str:
    return f"memory ran out{f' ({words})' if words else ''}: give fewer rows or columns, or free some memory"
