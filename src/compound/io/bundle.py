"""Bundles: a JSON configuration and named tensors, as model directories and checkpoints store them.

Only JSON and safetensors are read, so loading executes no code. Sizes are bounded, and the header of a
safetensors file is validated before its tensors are read.
"""

import hashlib
import json
import math
import os
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from safetensors import SafetensorError as SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensor_bytes
from torch import Tensor

from compound.io.schema import anything, array_of, enum, integer, mapping_of, object_of
from compound.io.tensor_specs import TensorSpec

VERSION = 1  # of the file formats; increased when an older library could not read what is written
MAX_JSON_BYTES = 16 * 2**20  # of config.json, and of a safetensors header
MAX_TENSOR_BYTES = 8 * 2**30
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
HEADER_ENTRY = object_of(
    {
        "dtype": enum(*DTYPES),
        "shape": array_of(integer(), max_items=20),
        "data_offsets": array_of(integer(), 2, 2),
    }
)


class Bundle(NamedTuple):
    """What is saved: a configuration that fits into JSON, and named tensors."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


class Header(NamedTuple):
    """The header of a safetensors file."""

    metadata: Any  # of "__metadata__", not validated; None without one
    specs: dict[str, TensorSpec]


def canonical_json(config: Any) -> bytes:
    """JSON with sorted keys and without spaces, so that equal content gives equal bytes."""
    try:
        return json.dumps(config, sort_keys=True, separators=(",", ":")).encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(
            f"the configuration does not fit into JSON ({error}): use numbers, text, lists and dicts"
        ) from error


def digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over a text and the names, types, shapes and bytes of tensors."""
    total = hashlib.sha256(f"{len(text)}\n{text}".encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"\n{name!r} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def to_safetensors(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> bytes:
    """The bytes of a safetensors file; `tensors` must come from `storable`."""
    return tensor_bytes(dict(tensors), metadata)


def from_safetensors(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name.

    They are copied to memory that torch allocates: another alignment may change the last bit of products.
    """
    return {name: tensor.clone() for name, tensor in read_tensors(data).items()}


def storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as safetensors accepts them: contiguous, on the CPU, and without shared memory."""
    pointers: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        pointer = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if pointer in pointers else tensor
        pointers.add(pointer)
    return result


def read_header(file: BinaryIO) -> Header:
    """Read the header of a safetensors file; ValueError if it is invalid, or the file is not of its size."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(MAX_JSON_BYTES, size - 8):
        raise ValueError("its header is longer than the file")
    try:
        entries = json.loads(file.read(length))
    except RecursionError as error:
        raise ValueError("its header is nested too deeply") from error
    mapping_of(anything).check(entries, "its header")
    metadata = entries.pop("__metadata__", None)
    specs = {}
    expected_size = 8 + length
    for name, entry in entries.items():
        HEADER_ENTRY.check(entry, f"the tensor {reprlib.repr(name)}")
        specs[name] = TensorSpec(DTYPES[entry["dtype"]], tuple(entry["shape"]))
        expected_size += math.prod(entry["shape"]) * specs[name].dtype.itemsize
    if expected_size != size:
        raise ValueError(f"its tensors need {expected_size} bytes, it has {size}")
    return Header(metadata, specs)


def check_format(path: Path, frame: Any, expected: str) -> None:
    """Raise ValueError for a file of another format than `expected`, or of a later version.

    `frame` is the JSON value of the file that must hold `format` and `version`; `path` is for the message.
    """
    if (
        not isinstance(frame, dict)
        or frame.get("format") != expected
        or type(frame.get("version")) is not int
    ):
        raise ValueError(f"{path} is not a {expected.replace('-', ' ')}: choose another path")
    if frame["version"] > VERSION:
        raise ValueError(
            f"{path} has format version {frame['version']}, this library reads up to {VERSION}: "
            "install a newer compound"
        )
