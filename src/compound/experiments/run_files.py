"""The files of a run directory: written atomically, verified by checksums when read.

config.json                the fields of the run (identity.py)
metrics.json, arrays.npz   the result, with checksums; a run with metrics.json, written last, is finished
history.csv                losses of training
progress.json              steps and seconds so far, while the run is not finished
failure.json               why the last attempt failed
"""

import hashlib
import io
import json
import math
import time
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from compound.experiments.provenance import provenance
from compound.io.atomic import write_atomic

Arrays = dict[str, np.ndarray[Any, Any]]
CONFIG = "config.json"
METRICS = "metrics.json"
ARRAYS = "arrays.npz"
FAILURE = "failure.json"
# exceptions of numpy for a damaged archive
UNREADABLE = (
    *(OSError, ValueError, EOFError, TypeError, AttributeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error),
)


class Damaged(ValueError):
    """Raised where the files of a finished run are missing, unreadable or differ from their checksums."""

    def __init__(self, directory: Path, reason: object):
        super().__init__(
            f"{directory} is damaged ({reason}): delete that folder and repeat the command to compute it "
            "again"
        )


def write_result(
    directory: Path, metrics: Mapping[str, Any], arrays: Arrays, seconds: Mapping[str, float]
) -> None:
    """Write arrays.npz, then metrics.json with the checksums of both, the provenance and `seconds`."""
    packed = _to_npz(arrays)
    write_atomic(directory / ARRAYS, packed)
    sha256, record = hashlib.sha256(packed).hexdigest(), {**provenance(), **seconds}
    content = {"metrics": _non_finite_to_none(metrics), "record": record, "arrays": sha256}
    content = json.loads(to_json(content))
    write_atomic(directory / METRICS, to_json({**content, "sha256": _sha256(content)}))


def read_metrics(directory: Path) -> dict[str, Any]:
    """The content of metrics.json; raises `Damaged` where it is unreadable or its checksum differs.

    Files of earlier versions have no checksums: only their structure is checked.
    """
    try:
        content = json.loads((directory / METRICS).read_text())
        is_dict = isinstance(content, dict)
        sections = [content.get(name) for name in ("metrics", "record")] if is_dict else [None]
        if not all(isinstance(section, dict) for section in sections):
            raise Damaged(directory, f"{METRICS} holds no result")
        if content.pop("sha256", None) not in (None, _sha256(content)):
            raise Damaged(directory, f"the checksum of {METRICS} differs")
    except Damaged:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(directory, f"{METRICS}: {error_line(error)}") from error
    return content


def read_arrays(directory: Path, sha256: str | None) -> Arrays:
    """The content of arrays.npz; raises `Damaged` where it is unreadable or its checksum is not `sha256`.

    None for `sha256` (files of earlier versions): the checksum is not compared.
    """
    try:
        packed = (directory / ARRAYS).read_bytes()
        if sha256 not in (None, hashlib.sha256(packed).hexdigest()):
            raise Damaged(directory, f"the checksum of {ARRAYS} differs")
        with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
            return dict(arrays)
    except Damaged:
        raise
    except UNREADABLE as error:
        raise Damaged(directory, f"{ARRAYS}: {error_line(error)}") from error


def write_failure(directory: Path, reason: str, traceback: str = "") -> None:
    """Write failure.json: why an attempt at a run failed. It does not prevent another attempt."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    lines = traceback.splitlines()
    content = {"reason": reason, "traceback": lines, "time": now, "record": provenance()}
    write_atomic(directory / FAILURE, to_json(content))


def remove_temporary_files(directory: Path) -> None:
    """Remove half-written files of killed processes. The caller must hold the lock of the directory."""
    for path in directory.glob(".*.new"):
        path.unlink(missing_ok=True)


def error_line(error: BaseException) -> str:
    """An exception in one line: its type, and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def canonical_json(value: Any) -> str:
    """JSON text that is the same for equal values, for hashing: sorted keys, no spaces.

    ValueError for NaN, infinity, and types that JSON does not have.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"a run holds a value that JSON cannot represent ({error}): use numbers, strings, lists"
        ) from error


def to_json(value: Any) -> bytes:
    """The content of a JSON file, indented for readers."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _sha256(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def _non_finite_to_none(value: Any) -> Any:
    """A copy of nested dictionaries and lists with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _non_finite_to_none(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_non_finite_to_none(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _to_npz(arrays: Arrays) -> bytes:
    """The content of an .npz file; ValueError for arrays of Python objects."""
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"array {name!r} holds Python objects, which would be pickled: give numbers")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
