"""Pictures in colour by name, as bytes."""

import hashlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from compound.datasets.catalogue import SETS, find
from compound.datasets.strips import read_strips

FILES = {
    ("cifar10", "train"): "cifar10/train20k.npz",
    ("cifar10", "test"): "cifar10/test.npz",
    ("svhn", "all"): "svhn/test5k.npz",
    ("gtsrb", "all"): "gtsrb/gtsrb32.npz",
}


class Pictures(NamedTuple):
    x: Tensor  # (rows, 3, 32, 32), 0..255
    y: Tensor  # (rows,)


def load(name: str, part: str, data_dir: Path | None = None) -> Pictures:
    """CIFAR-10 and what it is compared with: `part` is train, test, or all for the sets that are not divided."""
    if (name, part) not in FILES:
        known = ", ".join(f"{word} {one}" for word, one in FILES)
        raise ValueError(f"pictures are {name!r}, part {part!r}: choose one of {known}")
    path = FILES[name, part]
    place = find(path, data_dir)
    if hashlib.sha256(place.read_bytes()).hexdigest() not in {file.sha256 for file in SETS[name].files}:
        raise ValueError(
            f"{place} is not the file it should be (its checksum differs): put the right one there"
        )
    images, labels = read_strips(place)
    return Pictures(
        torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels).long()
    )


def pixels(x: Tensor) -> Tensor:
    """Bytes as numbers in [0, 1]."""
    return x.float() / 255
