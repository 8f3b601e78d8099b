"""CIFAR-10 and its out-of-distribution sets SVHN and GTSRB, as tensors of bytes."""

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
    x: Tensor  # (rows, 3, 32, 32), uint8
    y: Tensor  # (rows,) labels


def load(name: str, part: str, data_dir: Path | None = None) -> ColourImages:
    """Load cifar10 (`part` train or test), svhn or gtsrb (`part` all), and verify the checksum."""
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
    """Pixels in 0..255 as float32 in [0, 1], in the same shape."""
    return x.float() / 255
