"""Reader of idx files, the format of MNIST and Fashion-MNIST, gzipped or not."""

import gzip
import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def read_idx(path: str | Path, sha256: str = "") -> Bytes:
    """The array of unsigned bytes in an idx file, in the shape that its header gives.

    ValueError if `sha256` is given and is not that of the uncompressed content.
    """
    raw = read_content(path)
    if sha256 and hashlib.sha256(raw).hexdigest() != sha256:
        raise ValueError(f"{path} is not the right file (its checksum differs): delete it and fetch it again")
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an idx file of bytes: it must begin with 00 00 08")
    start = 4 + 4 * raw[3]
    shape = [int.from_bytes(raw[i : i + 4], "big") for i in range(4, start, 4)]
    if len(raw) != start + math.prod(shape):
        raise ValueError(
            f"{path} holds {len(raw) - start} bytes, but its header says {shape}: fetch it again"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_content(path: str | Path) -> bytes:
    """The uncompressed bytes of a file, gzip or plain."""
    raw = Path(path).read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError) as error:
        raise ValueError(f"{path} is a damaged gzip file ({error}): fetch it again") from error
