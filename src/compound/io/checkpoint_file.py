"""Checkpoint files: one safetensors file, with a configuration and a checksum of all content as metadata.

`pack` and `unpack` convert nested dicts, lists and tuples with tensors, such as the state of an optimizer, to
and from a configuration with named tensors.
"""

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from compound.io import bundle
from compound.io.atomic import write_atomic
from compound.io.bundle import Bundle, canonical_json, digest
from compound.io.paths import open_regular_file

FORMAT = "compound-checkpoint"
METADATA_KEY = "compound"


def save_checkpoint(path: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a checkpoint file atomically."""
    tensors = bundle.storable(tensors)
    text = canonical_json(config).decode()
    frame = {"format": FORMAT, "version": bundle.VERSION, "config": text, "sha256": digest(text, tensors)}
    write_atomic(path, bundle.to_safetensors(tensors, {METADATA_KEY: canonical_json(frame).decode()}))


def load_checkpoint(path: str | Path) -> Bundle:
    """Read a checkpoint file; ValueError for anything but exactly what was saved."""
    path = Path(path)
    with open_regular_file(path, bundle.MAX_TENSOR_BYTES) as file:
        try:
            header = bundle.read_header(file)
            frame = json.loads(header.metadata[METADATA_KEY])
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path} is not a checkpoint of compound, or is damaged: delete it or choose another path"
            ) from error
        bundle.check_format(path, frame, FORMAT)
        file.seek(0)
        data = file.read()
    try:
        tensors = bundle.from_safetensors(data)
        text = str(frame["config"])
        if frame["sha256"] != digest(text, tensors):
            raise ValueError("checksum differs")
        return Bundle(json.loads(text), tensors)
    except (
        ValueError,
        LookupError,
        TypeError,
        RuntimeError,  # nested too deeply
        AssertionError,
        bundle.SafetensorError,
    ) as error:
        raise ValueError(f"{path} is damaged or cut off ({error}): delete it to start afresh") from error


def pack(tree: Any) -> Bundle:
    """Convert a tree of dicts, lists, tuples, tensors and plain values to a bundle; `unpack` inverts it."""
    tensors: dict[str, Tensor] = {}

    def encode(value: Any, name: str) -> Any:
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
            items = ((key, f"{name}/{key}" if name else str(key), entry) for key, entry in value.items())
            return {"dict": [[key, encode(entry, path)] for key, path, entry in items]}
        if isinstance(value, list | tuple):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [encode(entry, f"{name}/{i}") for i, entry in enumerate(value)]}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ValueError(
            f"{name or 'the tree'} is a {type(value).__name__}: "
            "only plain values, lists, dicts and tensors can be saved"
        )

    return Bundle({"tree": encode(tree, "")}, tensors)


def unpack(packed: Bundle) -> Any:
    """The tree from which `pack` made a bundle; ValueError for any other bundle."""

    def decode(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        ((kind, content),) = node.items()
        if kind == "tensor":
            return packed.tensors[content]
        if kind == "dict":
            return {key: decode(entry) for key, entry in content}
        entries = [decode(entry) for entry in content]
        return {"tuple": tuple, "list": list}[kind](entries)

    try:
        return decode(packed.config["tree"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(
            f"the configuration is no tree of dicts, lists and tensors "
            f"({type(error).__name__}: {reprlib.repr(str(error))})"
        ) from error
