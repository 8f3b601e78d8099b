"""Readers of 32 x 32 colour images: npz files of WebP strips, and the binary version of CIFAR-10.

A strip is a lossless WebP image, 32 pixels wide, of images one below the other.
"""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compound.datasets.idx import Bytes

SIDE = 32


def read_strips(path: str | Path) -> tuple[Bytes, Bytes]:
    """Images (n, 32, 32, 3) and labels (n,) of an npz file of WebP strips."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError(f"{path} needs Pillow to be read: pip install 'compound-torch[images]'") from error
    with np.load(path, allow_pickle=False) as file:
        names = sorted(name for name in file.files if name.startswith("webp_"))
        if not names or "labels" not in file.files:
            raise ValueError(f"{path} holds no images: it must have arrays webp_000, ... and labels")
        parts = [np.asarray(Image.open(io.BytesIO(file[name].tobytes())).convert("RGB")) for name in names]
        labels = file["labels"]
    images = np.concatenate(parts).reshape(-1, SIDE, SIDE, 3)
    if len(images) != len(labels):
        raise ValueError(f"{path} holds {len(images)} images but {len(labels)} labels")
    return images, labels


def read_cifar(paths: Sequence[str | Path]) -> tuple[Bytes, Bytes]:
    """Images (n, 32, 32, 3) and labels (n,) of files of the binary version of CIFAR-10.

    An image is stored as one byte for its label, then its red, green and blue planes.
    """
    size = 1 + 3 * SIDE * SIDE
    parts = []
    for path in paths:
        raw = np.frombuffer(Path(path).read_bytes(), np.uint8)
        if len(raw) == 0 or len(raw) % size:
            raise ValueError(
                f"{path} holds {len(raw)} bytes: CIFAR-10's binary version has a multiple of {size}"
            )
        parts.append(raw.reshape(-1, size))
    rows = np.concatenate(parts)
    return rows[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1).copy(), rows[:, 0].copy()
