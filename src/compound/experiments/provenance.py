"""Provenance of a result: versions, commit, command."""

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
    return {
        "version": compound.__version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": command(sys.argv),
    }


def command(arguments: Sequence[str]) -> str:
    """The command line with the last component of every path: results are public, folders are not."""
    return shlex.join(_without_folder(argument) for argument in arguments)


def _without_folder(argument: str) -> str:
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    if "/" in value or "\\" in value:
        value = Path(value.replace("\\", "/")).name
    return option + equals + value


@cache
def _commit() -> str | None:
    """The commit of this file, with "-dirty" where the tree has changes; None outside a repository."""
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
