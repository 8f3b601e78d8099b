"""Ways to damage a saved model or checkpoint, with valid checksums.

Every damage is a function that changes an intact copy; `damages(path)` lists all that apply to what is saved
at a path.
"""

import copy
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensor_bytes
from torch import Tensor

from compound.io.bundle import canonical_json, digest
from compound.io.model_directory import CONFIG, TENSORS

REMOVED = object()


class Damage(NamedTuple):
    label: str
    apply: Callable[[Path], None]  # to an intact copy


class Parts(NamedTuple):
    """What is saved: the JSON frame with the configuration, and the tensors."""

    frame: Any
    tensors: dict[str, Tensor]


def damages(path: Path) -> Iterator[Damage]:
    """Every kind of damage to every file, JSON entry and tensor of a model directory or checkpoint."""
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        yield from file_damages(file.relative_to(path) if path.is_dir() else Path())
    parts = take_apart(path)
    for keys in entry_paths(parts.frame):
        for label, change in VALUES.items():
            yield Damage(f"{'.'.join(map(str, keys))} {label}", _in_frame(keys, change))
    for name in parts.tensors:
        for label, alter in TENSOR.items():
            yield Damage(f"{name} {label}", _in_tensors(name, alter))
    for label, edit in HEADERS.items():
        for name in parts.tensors:
            yield Damage(f"{name} header {label}", _in_header(name, edit))


# Files


def file_damages(name: Path) -> Iterator[Damage]:
    """Damages to the file `name` of the copy; empty where the copy is the file itself."""

    def replaced(label: str, write: Callable[[Path], None]) -> Damage:
        def apply(copy: Path) -> None:
            target = copy / name
            target.unlink()
            write(target)

        return Damage(f"{name} {label}", apply)

    def edited(label: str, change: Callable[[bytes], bytes]) -> Damage:
        return Damage(f"{name} {label}", lambda copy: _rewrite(copy / name, change))

    yield replaced("missing", lambda file: None)
    yield replaced("empty", lambda file: file.write_bytes(b""))
    yield replaced("a pipe", os.mkfifo)
    yield replaced("a directory", Path.mkdir)
    yield replaced("a socket", _socket)
    yield replaced("a link to itself", lambda file: file.symlink_to(file))
    yield replaced("a link to nowhere", lambda file: file.symlink_to(file.with_name("nowhere")))
    yield replaced("a link to endless zeros", lambda file: file.symlink_to("/dev/zero"))
    yield replaced("a link to a directory", lambda file: file.symlink_to("/proc"))
    yield replaced("random bytes", lambda file: file.write_bytes(np.random.default_rng(0).bytes(1000)))
    yield replaced("nested without end", lambda file: file.write_bytes(b"[" * 1_000_000))
    yield Damage(f"{name} a terabyte of nothing", lambda copy: os.truncate(copy / name, 2**40))
    yield Damage(f"{name} four gigabytes of nothing", lambda copy: os.truncate(copy / name, 2**32))
    for part in (1, 7, 8, 9, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999, -1, -2):
        yield edited(
            f"cut to {part}",
            lambda data, part=part: data[: int(part * len(data)) if 0 < part < 1 else part],
        )
    for k in range(40):
        yield edited(f"flipped {k}", lambda data, k=k: _flip_bit(data, k))
    yield edited("twice", lambda data: data + data)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        here = os.getcwd()
        os.chdir(path.parent)  # names of sockets must be short
        try:
            end.bind(path.name)
        finally:
            os.chdir(here)


def _rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def _flip_bit(data: bytes, k: int) -> bytes:
    i = int(np.random.default_rng(k).integers(len(data)))
    return data[:i] + bytes([data[i] ^ 1 << k % 8]) + data[i + 1 :]


# JSON


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def negative(value: Any) -> Any:
    return -value if isinstance(value, int | float) and value else -1


VALUES: dict[str, Callable[[Any], Any]] = {
    "removed": lambda value: REMOVED,
    "null": lambda value: None,
    "true": lambda value: True,
    "text": lambda value: "text",
    "no text": lambda value: "",
    "half a letter": lambda value: "\ud800",
    "list": lambda value: [1, 2],
    "empty list": lambda value: [],
    "record": lambda value: {"a": 1},
    "empty record": lambda value: {},
    "NaN": lambda value: float("nan"),
    "infinite": lambda value: float("inf"),
    "negative": negative,
    "0": lambda value: 0,
    "0.5": lambda value: 0.5,
    "1": lambda value: 1,
    "20000": lambda value: 20_000,
    "1e9": lambda value: 10**9,
    "1e18": lambda value: 10**18,
    "1e400": lambda value: 10**400,
    "tiny": lambda value: 1e-300,
    "large": lambda value: 1e38,
    "huge": lambda value: 1e300,
    "nested": lambda value: nested(200),
    "nested deeply": lambda value: nested(900),
    "in a list": lambda value: [value],
    "twice": lambda value: value + value if isinstance(value, list | str) else value,
    "wide": lambda value: [20_000, 20_000],
    "long": lambda value: [1] * 100_000,
    "long text": lambda value: "a" * 1_000_000,
    "a million members": lambda value: {str(k): k for k in range(100_000)},
}


def entry_paths(node: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of keys to change: every entry of every dict, the first two and the last of every list."""
    if keys:
        yield keys
    if isinstance(node, dict):
        for name, value in node.items():
            yield from entry_paths(value, (*keys, name))
    elif isinstance(node, list):
        for i in sorted({0, 1, len(node) - 1} & set(range(len(node)))):
            yield from entry_paths(node[i], (*keys, i))


def _in_frame(keys: tuple[Any, ...], change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        parts = take_apart(path)
        holder = parts.frame
        for key in keys[:-1]:
            holder = holder[key]
        value = change(copy.deepcopy(holder[keys[-1]]))
        if value is REMOVED:
            del holder[keys[-1]]
        else:
            holder[keys[-1]] = value
        put_together(path, parts)

    return apply


# Tensors


def shorter(t: Tensor) -> Tensor:
    return t[:-1] if t.ndim else t.reshape(1)


def longer(t: Tensor) -> Tensor:
    return torch.cat([t, t[-1:]]) if t.ndim and len(t) else t.new_ones(2, *t.shape[1:])


def narrower(t: Tensor) -> Tensor:
    return t[..., :-1] if t.ndim else t.reshape(1, 1)


def filled(value: float) -> Callable[[Tensor], Tensor]:
    return lambda t: torch.full_like(t, value if t.is_floating_point() else 1)


def one_entry(value: float) -> Callable[[Tensor], Tensor]:
    """Change one entry only."""

    def change(t: Tensor) -> Tensor:
        t = t.clone()
        if t.is_floating_point() and t.numel():
            t.view(-1)[t.numel() // 2] = value
        return t

    return change


# A new name, or a new tensor, or None for no tensor at all.
TENSOR: dict[str, Callable[[Tensor], Tensor | str | None]] = {
    "missing": lambda t: None,
    "renamed": lambda t: "another.name",
    **{
        str(dtype).removeprefix("torch."): lambda t, dtype=dtype: t.to(dtype)
        for dtype in (
            torch.float8_e4m3fn,
            torch.float8_e5m2,
            torch.float16,
            torch.bfloat16,
            torch.float32,
            torch.float64,
            torch.int8,
            torch.uint8,
            torch.int32,
            torch.int64,
            torch.bool,
        )
    },
    "flat": lambda t: t.reshape(-1) if t.ndim != 1 else t.reshape(1, -1),
    "deeper": lambda t: t.unsqueeze(0),
    "deeper at the end": lambda t: t.unsqueeze(-1),
    "shorter": shorter,
    "longer": longer,
    "narrower": narrower,
    "transposed": lambda t: t.flip(0).mT if t.ndim > 1 else t,
    "empty": lambda t: t.new_zeros(0),
    "of no rows": lambda t: t[:0] if t.ndim else t.new_zeros(0),
    "a single number": lambda t: t.new_ones(()),
    "zeros": lambda t: torch.zeros_like(t),
    "NaN": filled(torch.nan),
    "one NaN": one_entry(torch.nan),
    "infinite": filled(torch.inf),
    "one infinite": one_entry(-torch.inf),
    "negative": lambda t: -t.abs() - 1 if t.is_floating_point() else -t.long().abs() - 1,
    "huge": filled(3e38),
    "one huge": one_entry(-3e38),
    "large": filled(1e20),
    "tiny": filled(1e-40),
}


def _in_tensors(name: str, alter: Callable[[Tensor], Tensor | str | None]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        parts = take_apart(path)
        changed = alter(parts.tensors[name])
        tensor = parts.tensors.pop(name)
        if isinstance(changed, Tensor):
            parts.tensors[name] = changed.contiguous()
        elif changed is not None:
            parts.tensors[changed] = tensor
        put_together(path, parts)

    return apply


HEADERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "unknown type": lambda entry: entry.update(dtype="F4"),
    "type is a list": lambda entry: entry.update(dtype=["F32"]),
    "float16": lambda entry: entry.update(dtype="F16"),
    "negative size": lambda entry: entry.update(shape=[-1]),
    "huge size": lambda entry: entry.update(shape=[2**40, 2**40]),
    "no shape": lambda entry: entry.pop("shape"),
    "offsets from 0": lambda entry: entry.update(data_offsets=[0, 4]),
    "offsets beyond": lambda entry: entry.update(data_offsets=[2**62, 2**62 + 4]),
    "offsets backwards": lambda entry: entry.update(data_offsets=[8, 0]),
}


def _in_header(name: str, edit: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def change(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        edit(header[name])
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + length :]

    def apply(path: Path) -> None:
        if path.is_dir():
            _rewrite(path / TENSORS, change)
            write_config(path, json.loads((path / CONFIG).read_text()))
        else:
            _rewrite(path, change)

    return apply


# Reading and writing


def take_apart(path: Path) -> Parts:
    data = (path / TENSORS if path.is_dir() else path).read_bytes()
    tensors = read_tensors(data)
    if path.is_dir():
        return Parts(json.loads((path / CONFIG).read_text()), tensors)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    frame = json.loads(header["__metadata__"]["compound"])
    return Parts({**frame, "config": json.loads(frame["config"])}, tensors)


def put_together(path: Path, parts: Parts) -> None:
    """Write the parts as `compound.io` would have, with valid checksums."""
    if path.is_dir():
        (path / TENSORS).write_bytes(tensor_bytes(parts.tensors, {"format": "pt"}))
        write_config(path, parts.frame)
        return
    frame = parts.frame
    if isinstance(frame, dict) and "config" in frame:
        frame["config"] = canonical_json(frame["config"]).decode()
        frame["sha256"] = digest(frame["config"], parts.tensors) if "sha256" in frame else None
    path.write_bytes(tensor_bytes(parts.tensors, {"compound": json.dumps(frame)}))


def write_config(path: Path, frame: Any) -> None:
    """Write config.json with valid checksums, unless they were removed."""
    if isinstance(frame, dict) and "tensors" in frame:
        frame["tensors"] = (
            hashlib.sha256((path / TENSORS).read_bytes()).hexdigest()
            if isinstance(frame["tensors"], str)
            else frame["tensors"]
        )
    if isinstance(frame, dict) and frame.pop("sha256", None) is not None:
        text = json.dumps(frame, sort_keys=True, separators=(",", ":"))
        frame["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (path / CONFIG).write_text(json.dumps(frame))


def fresh_copy(path: Path, to: Path) -> Path:
    """An intact copy, in place of whatever is there."""
    if to.is_dir() and not to.is_symlink():
        shutil.rmtree(to)
    else:
        to.unlink(missing_ok=True)
    return Path(shutil.copytree(path, to) if path.is_dir() else shutil.copy(path, to))
