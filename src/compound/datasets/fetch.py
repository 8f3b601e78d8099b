"""Getting files from their makers: checked, whole or not at all, with a bar that shows how far it is."""

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from compound.datasets.catalogue import SETS, File, folders, present
from compound.datasets.idx import content

CHUNK = 2**16
PATIENCE = 30.0  # seconds without a byte


class State(NamedTuple):
    """Of one data set on this machine."""

    name: str
    words: str
    found: int
    files: int
    where: str  # the folder of the first file found
    fetchable: bool


def listing(data_dir: Path | None) -> list[State]:
    """Every data set, and how much of it is here."""
    states = []
    for name, entry in SETS.items():
        found = [place for file in entry.files if (place := present(file.path, data_dir)) is not None]
        where = str(found[0].parent) if found else ""
        states.append(
            State(
                name,
                entry.words,
                len(found),
                len(entry.files),
                where,
                all(file.address for file in entry.files),
            )
        )
    return states


def fetch(
    name: str, data_dir: Path | None, callback: Callable[[str, int, int], None] | None = None
) -> list[Path]:
    """Get the files of a set that are missing, into the first folder that is looked in; `watch` is told path, bytes, all bytes."""
    if name not in SETS:
        raise ValueError(f"data set is {name!r}: choose one of {', '.join(SETS)}")
    missing = [file for file in SETS[name].files if present(file.path, data_dir) is None]
    for file in missing:
        if not file.address:
            where = folders(data_dir)[0] / file.path
            raise ValueError(
                f"{name} cannot be fetched: put {file.path} at {where} ({SETS[name].note}; sha256 {file.sha256})"
            )
    return [_get(file, folders(data_dir)[0] / file.path, callback) for file in missing]


def _get(file: File, to: Path, callback: Callable[[str, int, int], None] | None) -> Path:
    to.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=to.parent, prefix=f".{to.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            with urllib.request.urlopen(file.address, timeout=PATIENCE) as answer:
                size, done = int(answer.headers.get("Content-Length") or 0), 0
                while part := answer.read(CHUNK):
                    out.write(part)
                    done += len(part)
                    if callback is not None:
                        callback(file.path, done, size)
            out.flush()
            os.fsync(out.fileno())
        if hashlib.sha256(content(temporary)).hexdigest() != file.sha256:
            raise ValueError(
                f"{file.address} gave something else than expected (its checksum differs): put {file.path} at {to} yourself"
            )
        temporary.replace(to)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"{file.address} cannot be reached ({reason}): get it elsewhere and put it at {to}, sha256 {file.sha256}"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return to
