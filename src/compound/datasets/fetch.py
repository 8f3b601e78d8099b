"""Download of data sets from their publishers: checksums are verified, and no partial file is left."""

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from compound.datasets.catalogue import SETS, File, find_file, folders
from compound.datasets.idx import read_content

CHUNK = 2**16  # bytes
TIMEOUT = 30.0  # seconds without data after which a download fails
Callback = Callable[[str, int, int], None]  # path, bytes so far, bytes in all


class DataSetState(NamedTuple):
    """Which files of a data set are on this machine."""

    name: str
    description: str
    n_found: int
    n_files: int
    folder: str  # of the first file found; "" if none
    fetchable: bool  # whether all its files can be downloaded


def listing(data_dir: Path | None) -> list[DataSetState]:
    """Every data set, and how many of its files are present."""
    states = []
    for name, entry in SETS.items():
        paths = [path for file in entry.files if (path := find_file(file.path, data_dir)) is not None]
        folder = str(paths[0].parent) if paths else ""
        fetchable = all(file.url for file in entry.files)
        states.append(DataSetState(name, entry.description, len(paths), len(entry.files), folder, fetchable))
    return states


def fetch(name: str, data_dir: Path | None, callback: Callback | None = None) -> list[Path]:
    """Download the missing files of a data set into the first of `folders(data_dir)`; return their paths."""
    if name not in SETS:
        raise ValueError(f"data set is {name!r}: choose one of {', '.join(SETS)}")
    missing = [file for file in SETS[name].files if find_file(file.path, data_dir) is None]
    for file in missing:
        if not file.url:
            target = folders(data_dir)[0] / file.path
            raise ValueError(
                f"{name} cannot be fetched: put {file.path} at {target} ({SETS[name].note}; sha256 "
                f"{file.sha256})"
            )
    return [_download(file, folders(data_dir)[0] / file.path, callback) for file in missing]


def _download(file: File, target: Path, callback: Callback | None) -> Path:
    """Download a file, verify its checksum, and move it to `target`, which is returned."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    try:
        _copy_url(file, handle, callback)
        if hashlib.sha256(read_content(temporary)).hexdigest() != file.sha256:
            raise ValueError(
                f"the content of {file.url} is not as expected (its checksum differs): put {file.path} at "
                f"{target} yourself"
            )
        temporary.replace(target)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"{file.url} cannot be reached ({reason}): get it elsewhere and put it at {target}, sha256 "
            f"{file.sha256}"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _copy_url(file: File, handle: int, callback: Callback | None) -> None:
    """Download `file.url` to the open file descriptor `handle`, flush it to disk and close it."""
    with os.fdopen(handle, "wb") as out:
        with urllib.request.urlopen(file.url, timeout=TIMEOUT) as response:
            size = int(response.headers.get("Content-Length") or 0)
            done = 0
            while chunk := response.read(CHUNK):
                out.write(chunk)
                done += len(chunk)
                if callback is not None:
                    callback(file.path, done, size)
        out.flush()
        os.fsync(out.fileno())
