"""Model directories: `config.json`, `tensors.safetensors` and sometimes `report.html`, with checksums.

Checksums detect accidental damage only. Whether configuration and tensors are valid is decided by a function
`check` of the caller, before the tensors are read.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from compound import __version__
from compound.io import bundle
from compound.io.atomic import (
    ATTEMPTS,
    locate,
    remove_former,
    replace_directory,
    restore_interrupted,
    sync_directory,
    write_synced,
)
from compound.io.bundle import MAX_JSON_BYTES, MAX_TENSOR_BYTES, Bundle
from compound.io.paths import open_regular_file, real_path
from compound.io.schema import anything, integer, object_of, string
from compound.io.temporary import is_temporary, temporary
from compound.io.tensor_specs import TensorSpec

FORMAT = "compound-model"
CONFIG = "config.json"
TENSORS = "tensors.safetensors"
REPORT = "report.html"
FILES = {CONFIG, TENSORS, REPORT}  # a directory with any other file is never replaced
RETRY_SECONDS = 0.005  # before a directory that was replaced while it was read is read again
FRAME = object_of(
    {"format": string(), "version": integer(1), "library": string(), "config": anything, "tensors": string()}
)

Check = Callable[[Any, Mapping[str, TensorSpec]], None]  # (configuration, tensors): raises ValueError


def save_directory(
    path: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], report: bytes | None = None
) -> None:
    """Write a model directory with an optional report.html; a model at `path` is replaced as a whole.

    Of several processes that write at once, the last one's model remains. ValueError for a directory that
    holds other files, and for a model that is too large.
    """
    path = real_path(path)
    _refuse_foreign(path)
    data = bundle.to_safetensors(bundle.storable(tensors), {"format": "pt"})
    text = _config_text(config, data)
    if len(text) > MAX_JSON_BYTES or len(data) > MAX_TENSOR_BYTES:
        raise ValueError(
            f"the model takes {len(text)} bytes of configuration and {len(data)} of tensors: "
            f"at most {MAX_JSON_BYTES} and {MAX_TENSOR_BYTES} can be saved"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    restore_interrupted(path)  # before `temporary` removes what an interrupted save has left
    with temporary(path, folder=True) as fresh:
        if report is not None:
            write_synced(fresh / REPORT, report)
        write_synced(fresh / TENSORS, data)
        write_synced(fresh / CONFIG, text)
        sync_directory(fresh)
        replace_directory(fresh, path)
    sync_directory(path.parent)
    remove_former(path)


def load_directory(path: str | Path, check: Check | None = None) -> Bundle:
    """Read a model directory; ValueError for anything but exactly what was saved.

    `check` is called with the configuration and the specs of the tensors before the tensors are read.
    """
    path = real_path(path)
    for _ in range(ATTEMPTS):
        location = locate(path)
        try:
            return _read(location.path, check)
        except ValueError:
            if location == locate(path):
                raise
        time.sleep(RETRY_SECONDS)  # another process has replaced the directory meanwhile
    raise ValueError(f"{path} is replaced all the time by another process: wait for it and load again")


def foreign_files(names: Iterable[str]) -> list[str]:
    """Those names in a directory that are neither part of a model nor a temporary file of one."""
    own = (n for n in names if n in FILES or any(is_temporary(n, file) for file in FILES))
    return sorted(set(names).difference(own))


def _config_text(config: Mapping[str, Any], data: bytes) -> bytes:
    """The content of config.json: format, versions, configuration, and checksums of itself and of `data`.

    `data` is the content of tensors.safetensors.
    """
    frame = {"format": FORMAT, "version": bundle.VERSION, "library": __version__}
    frame |= {"config": config, "tensors": hashlib.sha256(data).hexdigest()}
    frame = json.loads(bundle.canonical_json(frame))  # as it will be read: tuples are lists, keys are text
    frame["sha256"] = hashlib.sha256(bundle.canonical_json(frame)).hexdigest()
    return json.dumps(frame, indent=2).encode() + b"\n"


def _read(path: Path, check: Check | None) -> Bundle:
    """Read and check a model directory; ValueError also where another process replaces it meanwhile."""
    frame = _read_config(path / CONFIG)
    file_path = path / TENSORS
    with open_regular_file(file_path, MAX_TENSOR_BYTES) as file:
        try:
            specs = bundle.read_header(file).specs
        except ValueError as error:
            raise ValueError(f"{file_path} is damaged or cut off ({error}): save the model again") from error
        if check is not None:
            check(frame["config"], specs)
        file.seek(0)
        data = file.read()
    if hashlib.sha256(data).hexdigest() != frame["tensors"]:
        raise ValueError(
            f"{file_path} is damaged, cut off or of another save than {CONFIG}: save the model again"
        )
    try:
        return Bundle(frame["config"], bundle.from_safetensors(data))
    except (bundle.SafetensorError, RuntimeError, LookupError, TypeError, AssertionError) as error:
        raise ValueError(
            f"{file_path} is not readable as safetensors ({error}): save the model again"
        ) from error


def _read_config(path: Path) -> dict[str, Any]:
    """The validated content of config.json, without its own checksum."""
    with open_regular_file(path, MAX_JSON_BYTES) as file:
        text = file.read(MAX_JSON_BYTES + 1)
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not readable as JSON: restore the file or save the model again"
        ) from error
    bundle.check_format(path, frame, FORMAT)
    if frame.pop("sha256", None) != hashlib.sha256(bundle.canonical_json(frame)).hexdigest():
        raise ValueError(
            f"{path} was edited or damaged (its checksum differs): restore the file or save the model again"
        )
    FRAME.check(frame, str(path))
    return frame


def _refuse_foreign(path: Path) -> None:
    """Raise ValueError for a file, or a directory with files not of a model: replacing would delete them."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise ValueError(f"{path} is a file: a model is saved as a directory, choose another path") from error
    if others := foreign_files(names):
        raise ValueError(
            f"{path} holds {others[0]!r}, which is not part of a model: "
            "choose another path or empty the directory"
        )
