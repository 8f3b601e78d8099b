"""Provenance of a result: which versions, commit and command made it."""

import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

import compound


def provenance() -> dict[str, Any]:
    """Versions of compound, torch and Python, the commit and the command line of this process."""
    versions = {"version": compound.__version__, "commit": _commit(), "torch": torch.__version__}
    return {**versions, "python": platform.python_version(), "command": command(sys.argv)}


def command(arguments: Sequence[str]) -> str:
    """The command line as text. Paths are shortened to their last component, since results are published."""
    return shlex.join(_without_folder(argument) for argument in arguments)


def _without_folder(argument: str) -> str:
    """An argument, or --option=argument, with a path shortened to its last component."""
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    if "/" in value or "\\" in value:
        value = Path(value.replace("\\", "/")).name
    return option + equals + value


@cache
def _commit() -> str | None:
    """The commit of the git repository of this file, with "-dirty" if it has changes; None without one."""
    file = Path(__file__)
    for arguments in (
        ["ls-files", "--error-unmatch", file.name],
        ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
    ):
        try:
            process = subprocess.run(
                ["git", *arguments], cwd=file.parent, capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
    return process.stdout.strip() or None
