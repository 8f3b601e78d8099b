"""Which code gave a result: versions, commit, command."""

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
    return {
        "version": compound.__version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": command(sys.argv),
    }


def command(words: Sequence[str]) -> str:
    """The command line, of paths only the last name: results are shown to others, folders of a machine are nobody's business."""
    return shlex.join(_last_name(word) for word in words)


def _last_name(word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    if "/" in value or "\\" in value:
        value = Path(value.replace("\\", "/")).name
    return option + equals + value


@cache
def _commit() -> str | None:
    """The commit of this very file, as it was first asked for, with "-dirty" where the tree has changes; None outside a repository."""
    here = Path(__file__)
    for words in (
        ["ls-files", "--error-unmatch", here.name],
        ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
    ):
        try:
            answer = subprocess.run(
                ["git", *words], cwd=here.parent, capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
    return answer.stdout.strip() or None
