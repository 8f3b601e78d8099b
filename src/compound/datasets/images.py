"""MNIST, Fashion-MNIST, notMNIST and Omniglot: grey 28 x 28 images as rows of 784 numbers in [0, 1]."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from compound.datasets.catalogue import SETS, require_file
from compound.datasets.idx import read_idx

PREFIX = {"train": "train-", "test": "t10k-", "all": ""}
PARTS = {
    "mnist": ("train", "test"),
    "fashion-mnist": ("train", "test"),
    "notmnist": ("all",),
    "omniglot": ("all",),
}


class Images(NamedTuple):
    x: Tensor  # (rows, 784) in [0, 1]
    y: Tensor  # (rows,) labels


def load(name: str, part: str, data_dir: Path | None = None) -> Images:
    """Load a data set of PARTS: `part` is train or test, or all for sets that are not split."""
    if part not in PARTS.get(name, ()):
        choices = ", ".join(f"{other} {one}" for other, parts in PARTS.items() for one in parts)
        raise ValueError(f"images are {name!r}, part {part!r}: choose one of {choices}")
    checksums = {file.path: file.sha256 for file in SETS[name].files}
    arrays = []
    for kind in ("images-idx3", "labels-idx1"):
        path = f"{name}/{PREFIX[part]}{kind}-ubyte.gz"
        arrays.append(torch.from_numpy(read_idx(require_file(path, data_dir), checksums[path]).copy()))
    x, y = arrays
    return Images(x.flatten(1).float() / 255, y.long())


def flipped(x: Tensor) -> Tensor:
    """The 28 x 28 images x (rows, 784) upside down, in the same shape."""
    return x.view(-1, 28, 28).flip(1).flatten(1)
