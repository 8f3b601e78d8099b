"""Words and tensors on disk: models as directories, checkpoints as single files.

Every file is complete or absent (temporary name, fsync, rename), carries checksums, and is only ever read as JSON and
safetensors: loading executes nothing.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensor_bytes
from torch import Tensor

from compound import __version__
from compound.outputs import is_temporary, temporary

VERSION = 1  # of the formats below; raised when an older library could not read what is written
MODEL, CHECKPOINT = "compound-model", "compound-checkpoint"
CONFIG, TENSORS, REPORT = "config.json", "tensors.safetensors", "report.html"
PARTS = {CONFIG, TENSORS, REPORT}  # what a model directory may hold; anything else is not ours to delete


class Bundle(NamedTuple):
    """What is saved: words that fit into JSON, and named tensors."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


def save(path: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], report: bytes | None = None) -> None:
    """A model directory, `config.json` and `tensors.safetensors`, put in place as a whole."""
    path = Path(path).resolve()
    _refuse_foreign(path)
    data = tensor_bytes(_storable(tensors), {"format": "pt"})
    words = {"format": MODEL, "version": VERSION, "library": __version__, "config": config, "tensors": hashlib.sha256(data).hexdigest()}
    words = json.loads(_json(words))  # as it will be read: tuples are lists, keys are text
    words["sha256"] = hashlib.sha256(_json(words)).hexdigest()

    path.parent.mkdir(parents=True, exist_ok=True)
    fresh, former = _beside(path, "new"), _former(path)
    fresh.mkdir()
    try:
        if report is not None:
            _write(fresh / REPORT, report)
        _write(fresh / TENSORS, data)
        _write(fresh / CONFIG, json.dumps(words, indent=2).encode() + b"\n")
        _sync_directory(fresh)
        if path.exists():  # a directory cannot be replaced in one move; `load` knows about the moment between the two
            shutil.rmtree(former, ignore_errors=True)
            os.rename(path, former)
        os.rename(fresh, path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    _sync_directory(path.parent)
    shutil.rmtree(former, ignore_errors=True)


def load(path: str | Path) -> Bundle:
    """The content of a model directory; anything but exactly what was saved is refused."""
    path = Path(path).resolve()
    if not path.exists() and _former(path).exists():
        path = _former(path)  # a save was cut off between its two moves: the former model is whole
    text = _read(path / CONFIG)
    try:
        words = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path / CONFIG} is not readable as JSON: restore the file or save the model again") from error
    _check_format(path / CONFIG, words, MODEL)
    if words.pop("sha256", None) != hashlib.sha256(_json(words)).hexdigest():
        raise ValueError(f"{path / CONFIG} was edited or damaged (its checksum differs): restore the file or save the model again")
    data = _read(path / TENSORS)
    if hashlib.sha256(data).hexdigest() != words["tensors"]:
        raise ValueError(f"{path / TENSORS} is damaged, cut off or of another save than {CONFIG}: save the model again")
    return Bundle(words["config"], _tensors(data))


def save_file(path: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """A checkpoint: one safetensors file whose metadata holds the words and a checksum over words and tensors."""
    tensors = _storable(tensors)
    text = _json(config).decode()
    words = {"format": CHECKPOINT, "version": VERSION, "config": text, "sha256": digest(text, tensors)}
    write_atomic(path, tensor_bytes(tensors, {"compound": _json(words).decode()}))


def load_file(path: str | Path) -> Bundle:
    """The content of a checkpoint; anything but exactly what was saved is refused."""
    path = Path(path)
    data = _read(path)
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        words = json.loads(header["__metadata__"]["compound"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a checkpoint of compound, or is damaged: delete it or choose another path") from error
    _check_format(path, words, CHECKPOINT)
    try:
        tensors = _tensors(data)
        text = str(words["config"])
        if words["sha256"] != digest(text, tensors):
            raise ValueError("checksum differs")
        return Bundle(json.loads(text), tensors)
    except (ValueError, LookupError, TypeError, RuntimeError, AssertionError, SafetensorError) as error:
        raise ValueError(f"{path} is damaged or cut off ({error}): delete it to start afresh") from error


def pack(tree: Any) -> Bundle:
    """Nested dicts, lists, tuples, tensors and plain values as words and tensors; `unpack` gives the same tree back."""
    tensors: dict[str, Tensor] = {}

    def words(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            while name in tensors:
                name += "'"  # {"a/b": ...} beside {"a": {"b": ...}}
            tensors[name] = value
            return {"tensor": name}
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str | int):
                    raise ValueError(f"{name or 'the tree'} has the key {key!r}: only text and whole numbers can be saved")
            return {"dict": [[key, words(entry, f"{name}/{key}" if name else str(key))] for key, entry in value.items()]}
        if isinstance(value, list | tuple):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [words(entry, f"{name}/{i}") for i, entry in enumerate(value)]}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ValueError(f"{name or 'the tree'} is a {type(value).__name__}: only plain values, lists, dicts and tensors can be saved")

    return Bundle({"tree": words(tree, "")}, tensors)


def unpack(bundle: Bundle) -> Any:
    """The tree that `pack` took apart."""

    def value(words: Any) -> Any:
        if not isinstance(words, dict):
            return words
        ((kind, content),) = words.items()
        if kind == "tensor":
            return bundle.tensors[content]
        if kind == "dict":
            return {key: value(entry) for key, entry in content}
        entries = [value(entry) for entry in content]
        return tuple(entries) if kind == "tuple" else entries

    return value(bundle.config["tree"])


def write_atomic(path: str | Path, data: bytes) -> None:
    """The file is the old one or the new one at every moment, also through a power cut."""
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary(path) as fresh:
        _write(fresh, data)
        os.replace(fresh, path)
    _sync_directory(path.parent)


def digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """sha256 over a text and the names, types, shapes and bytes of tensors."""
    total = hashlib.sha256(f"{len(text)}\n{text}".encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"\n{name!r} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ValueError(f"{path} is missing or not a file: check the path") from error


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    if os.name != "posix":  # elsewhere directories cannot be opened, and renames are journalled
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _beside(path: Path, word: str) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.{word}")  # tempfile would make it unreadable to others


def _former(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _refuse_foreign(path: Path) -> None:
    """Replacing deletes, so only what is a model directory and nothing more is replaced."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"{path} is a file: a model is saved as a directory, choose another path")
    others = foreign(path)
    if others:
        raise ValueError(f"{path} holds {others[0]!r}, which is not part of a model: choose another path or empty the directory")


def foreign(path: Path) -> list[str]:
    """What a directory holds that is neither part of a model nor left of writing one."""
    names = sorted(entry.name for entry in path.iterdir())
    return [name for name in names if name not in PARTS and not any(is_temporary(name, part) for part in PARTS)]


def _check_format(path: Path, words: Any, wanted: str) -> None:
    if not isinstance(words, dict) or words.get("format") != wanted or not isinstance(words.get("version"), int):
        raise ValueError(f"{path} is not a {wanted.replace('-', ' ')}: choose another path")
    if words["version"] > VERSION:
        raise ValueError(f"{path} has format version {words['version']}, this library reads up to {VERSION}: install a newer compound")


def _json(words: Any) -> bytes:
    try:
        return json.dumps(words, sort_keys=True, separators=(",", ":")).encode()
    except TypeError as error:
        raise ValueError(f"the configuration does not fit into JSON ({error}): use numbers, text, lists and dicts") from error


def _tensors(data: bytes) -> dict[str, Tensor]:
    """Tensors in memory of torch's own: aligned as before, for products on other alignments may differ in the last bit."""
    return {name: tensor.clone() for name, tensor in read_tensors(data).items()}


def _storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, each with memory of its own: safetensors refuses shared memory."""
    seen: set[int] = set()
    stored = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        stored[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return stored
