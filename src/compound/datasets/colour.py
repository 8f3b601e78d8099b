"""Colour images by name, as bytes."""

import hashlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from compound.datasets.catalogue import SETS, require_file
from compound.datasets.strips import read_strips

FILES = {
    ("cifar10", "train"): "cifar10/train20k.npz",
    ("cifar10", "test"): "cifar10/test.npz",
    ("svhn", "all"): "svhn/test5k.npz",
    ("gtsrb", "all"): "gtsrb/gtsrb32.npz",
}


class ColourImages(NamedTuple):
    x: Tensor  # (rows, 3, 32, 32), 0..255
    y: Tensor  # (rows,)


def load(name: str, part: str, data_dir: Path | None = None) -> ColourImages:
    """CIFAR-10 and its out-of-distribution sets: `part` is train, test, or all where there are no parts."""
    if (name, part) not in FILES:
        choices = ", ".join(" ".join(choice) for choice in FILES)
        raise ValueError(f"images are {name!r}, part {part!r}: choose one of {choices}")
    path = require_file(FILES[name, part], data_dir)
    if hashlib.sha256(path.read_bytes()).hexdigest() not in {file.sha256 for file in SETS[name].files}:
        raise ValueError(f"{path} is not the right file (its checksum differs): replace it")
    images, labels = read_strips(path)
    x = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    return ColourImages(x, torch.from_numpy(labels).long())


def to_unit_range(x: Tensor) -> Tensor:
    """Bytes as numbers in [0, 1]."""
    return x.float() / 255
