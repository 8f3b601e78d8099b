"""Words and tensors on disk: models as directories, checkpoints as single files.

Every file is complete or absent (temporary name, fsync, rename), carries checksums, and is only ever read as JSON and
safetensors: loading executes nothing. Only regular files of bounded size are opened. A checksum is no validation, for anybody can
make one: what words and tensors must be, `check` says, before the tensors are read.
"""

import hashlib
import json
import math
import os
import reprlib
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensor_bytes
from torch import Tensor

from compound import __version__
from compound.io.atomic import TRIES, place, repair, replace, sweep
from compound.io.paths import is_temporary, temporary
from compound.io.schema import anything, integer, many, mapping, object_of, one_of, text

VERSION = 1  # of the formats below; raised when an older library could not read what is written
MODEL, CHECKPOINT = "compound-model", "compound-checkpoint"
CONFIG, TENSORS, REPORT = "config.json", "tensors.safetensors", "report.html"
PARTS = {CONFIG, TENSORS, REPORT}  # what a model directory may hold; anything else is not ours to delete
WORDS, BYTES = (
    16 * 2**20,
    8 * 2**30,
)  # the largest config.json (or header of tensors), and the largest file of tensors
PAUSE = 0.005  # seconds before a reader whose model was replaced meanwhile looks again
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
FRAME = object_of(
    {"format": text(), "version": integer(1), "library": text(), "config": anything, "tensors": text()}
)
ENTRY = object_of(
    {"dtype": one_of(*DTYPES), "shape": many(integer(), most=20), "data_offsets": many(integer(), 2, 2)}
)


class Bundle(NamedTuple):
    """What is saved: words that fit into JSON, and named tensors."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


class Spec(NamedTuple):
    """What is known of a tensor before it is read."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class Header(NamedTuple):
    """What a safetensors file says of itself."""

    metadata: Any
    layout: dict[str, Spec]


Check = Callable[
    [Any, Mapping[str, Spec]], None
]  # raises ValueError where words or tensors are not as they must be


def save(
    path: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], report: bytes | None = None
) -> None:
    """A model directory, `config.json` and `tensors.safetensors`, put in place as a whole; the last of several savers wins."""
    path = _real(path)
    _refuse_foreign(path)
    data = tensor_bytes(_storable(tensors), {"format": "pt"})
    words = {
        "format": MODEL,
        "version": VERSION,
        "library": __version__,
        "config": config,
        "tensors": hashlib.sha256(data).hexdigest(),
    }
    words = json.loads(_json(words))  # as it will be read: tuples are lists, keys are text
    words["sha256"] = hashlib.sha256(_json(words)).hexdigest()
    shown = json.dumps(words, indent=2).encode() + b"\n"
    if len(shown) > WORDS or len(data) > BYTES:
        raise ValueError(
            f"the model takes {len(shown)} bytes of words and {len(data)} of tensors: at most {WORDS} and {BYTES} can be saved"
        )

    path.parent.mkdir(parents=True, exist_ok=True)
    repair(path)  # before `temporary` takes away what a save that was cut off has left
    with temporary(path, folder=True) as fresh:
        if report is not None:
            _write(fresh / REPORT, report)
        _write(fresh / TENSORS, data)
        _write(fresh / CONFIG, shown)
        _sync_directory(fresh)
        replace(fresh, path)
    _sync_directory(path.parent)
    sweep(path)


def load(path: str | Path, check: Check | None = None) -> Bundle:
    """The content of a model directory; anything but exactly what was saved is refused.

    `check` sees the words, and names, types and shapes of the tensors, before the tensors are read.
    """
    path = _real(path)
    for _ in range(TRIES):
        found = place(path)
        try:
            return _loaded(found.path, check)
        except ValueError:
            if found == place(path):
                raise
        time.sleep(PAUSE)  # another process has put a model in its place meanwhile
    raise ValueError(f"{path} is replaced all the time by another process: wait for it and load again")


def _loaded(path: Path, check: Check | None) -> Bundle:
    with _opened(path / CONFIG, WORDS) as file:
        written = file.read(WORDS + 1)
    try:
        words = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path / CONFIG} is not readable as JSON: restore the file or save the model again"
        ) from error
    _check_format(path / CONFIG, words, MODEL)
    if words.pop("sha256", None) != hashlib.sha256(_json(words)).hexdigest():
        raise ValueError(
            f"{path / CONFIG} was edited or damaged (its checksum differs): restore the file or save the model again"
        )
    FRAME.check(words, str(path / CONFIG))
    with _opened(path / TENSORS, BYTES) as file:
        try:
            layout = _header(file).layout
        except ValueError as error:
            raise ValueError(
                f"{path / TENSORS} is damaged or cut off ({error}): save the model again"
            ) from error
        if check is not None:
            check(words["config"], layout)
        file.seek(0)
        data = file.read()
    if hashlib.sha256(data).hexdigest() != words["tensors"]:
        raise ValueError(
            f"{path / TENSORS} is damaged, cut off or of another save than {CONFIG}: save the model again"
        )
    try:
        return Bundle(words["config"], _tensors(data))
    except (SafetensorError, RuntimeError, LookupError, TypeError, AssertionError) as error:
        raise ValueError(
            f"{path / TENSORS} is not readable as safetensors ({error}): save the model again"
        ) from error


def save_file(path: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """A checkpoint: one safetensors file whose metadata holds the words and a checksum over words and tensors."""
    tensors = _storable(tensors)
    text = _json(config).decode()
    words = {"format": CHECKPOINT, "version": VERSION, "config": text, "sha256": digest(text, tensors)}
    write_atomic(path, tensor_bytes(tensors, {"compound": _json(words).decode()}))


def load_file(path: str | Path) -> Bundle:
    """The content of a checkpoint; anything but exactly what was saved is refused."""
    path = Path(path)
    with _opened(path, BYTES) as file:
        try:
            header = _header(file)
            words = json.loads(header.metadata["compound"])
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path} is not a checkpoint of compound, or is damaged: delete it or choose another path"
            ) from error
        _check_format(path, words, CHECKPOINT)
        file.seek(0)
        data = file.read()
    try:
        tensors = _tensors(data)
        text = str(words["config"])
        if words["sha256"] != digest(text, tensors):
            raise ValueError("checksum differs")
        return Bundle(json.loads(text), tensors)
    except (
        ValueError,
        LookupError,
        TypeError,
        RuntimeError,
        AssertionError,
        SafetensorError,
    ) as error:  # RuntimeError: nested too deep
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
                    raise ValueError(
                        f"{name or 'the tree'} has the key {key!r}: only text and whole numbers can be saved"
                    )
            return {
                "dict": [
                    [key, words(entry, f"{name}/{key}" if name else str(key))] for key, entry in value.items()
                ]
            }
        if isinstance(value, list | tuple):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [words(entry, f"{name}/{i}") for i, entry in enumerate(value)]}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ValueError(
            f"{name or 'the tree'} is a {type(value).__name__}: only plain values, lists, dicts and tensors can be saved"
        )

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
        return {"tuple": tuple, "list": list}[kind](entries)

    try:
        return value(bundle.config["tree"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(
            f"the words are no tree of dicts, lists and tensors ({type(error).__name__}: {reprlib.repr(str(error))})"
        ) from error


def write_atomic(path: str | Path, data: bytes) -> None:
    """The file is the old one or the new one at every moment, also through a power cut."""
    path = _real(path)
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


def _real(path: str | Path) -> Path:
    """Links followed; `Path.resolve` fails on those that lead to themselves."""
    return Path(os.path.realpath(path))


@contextmanager
def _opened(path: Path, most: int) -> Iterator[BinaryIO]:
    """A regular file of at most so many bytes. It is looked at first: to open a pipe may wait for ever, to open a device may act."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError(
                f"{path} is missing or not a file: it is a directory, pipe or device, check the path"
            )
        file = os.fdopen(
            os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb"
        )
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"{path} is missing or not a file: check the path") from error
    except OSError as error:  # no permission, a link to itself, a name too long
        raise ValueError(
            f"{path} cannot be read ({error.strerror}): check the path and its permissions"
        ) from error
    with file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > most:
            raise ValueError(f"{path} has {found.st_size} bytes: a file of at most {most} is expected there")
        yield file


def _header(file: BinaryIO) -> Header:
    """Of a safetensors file, which must be exactly as long as its tensors need."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(WORDS, size - 8):
        raise ValueError("its header is longer than the file")
    try:
        entries = json.loads(file.read(length))
    except RecursionError as error:
        raise ValueError("its header is nested too deeply") from error
    mapping(anything).check(entries, "its header")
    metadata, layout, total = entries.pop("__metadata__", None), {}, 8 + length
    for name, entry in entries.items():
        ENTRY.check(entry, f"the tensor {reprlib.repr(name)}")
        layout[name] = Spec(DTYPES[entry["dtype"]], tuple(entry["shape"]))
        total += math.prod(entry["shape"]) * layout[name].dtype.itemsize
    if total != size:
        raise ValueError(f"its tensors need {total} bytes, it has {size}")
    return Header(metadata, layout)


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


def _refuse_foreign(path: Path) -> None:
    """Replacing deletes, so only what is a model directory and nothing more is replaced."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise ValueError(f"{path} is a file: a model is saved as a directory, choose another path") from error
    others = foreign(names)
    if others:
        raise ValueError(
            f"{path} holds {others[0]!r}, which is not part of a model: choose another path or empty the directory"
        )


def foreign(names: Iterable[str]) -> list[str]:
    """Which names in a directory are neither part of a model nor left of writing one."""
    return sorted(
        name for name in names if name not in PARTS and not any(is_temporary(name, part) for part in PARTS)
    )


def _check_format(path: Path, words: Any, wanted: str) -> None:
    if not isinstance(words, dict) or words.get("format") != wanted or type(words.get("version")) is not int:
        raise ValueError(f"{path} is not a {wanted.replace('-', ' ')}: choose another path")
    if words["version"] > VERSION:
        raise ValueError(
            f"{path} has format version {words['version']}, this library reads up to {VERSION}: install a newer compound"
        )


def _json(words: Any) -> bytes:
    try:
        return json.dumps(words, sort_keys=True, separators=(",", ":")).encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(
            f"the configuration does not fit into JSON ({error}): use numbers, text, lists and dicts"
        ) from error


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
