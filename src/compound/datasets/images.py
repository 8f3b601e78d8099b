"""Grey pictures by name, as rows of numbers between 0 and 1."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from compound.datasets.catalogue import SETS, find
from compound.datasets.idx import read_idx

PREFIX = {"train": "train-", "test": "t10k-", "all": ""}
PARTS = {
    "mnist": ("train", "test"),
    "fashion-mnist": ("train", "test"),
    "notmnist": ("all",),
    "omniglot": ("all",),
}


class Images(NamedTuple):
    x: Tensor  # (rows, 784), 0..1
    y: Tensor  # (rows,)


def load(name: str, part: str, data_dir: Path | None = None) -> Images:
    """MNIST and its relatives: `part` is train, test, or all for the sets that are not divided."""
    if part not in PARTS.get(name, ()):
        known = ", ".join(f"{word} {one}" for word, parts in PARTS.items() for one in parts)
        raise ValueError(f"pictures are {name!r}, part {part!r}: choose one of {known}")
    sums = {file.path: file.sha256 for file in SETS[name].files}
    arrays = []
    for kind in ("images-idx3", "labels-idx1"):
        path = f"{name}/{PREFIX[part]}{kind}-ubyte.gz"
        arrays.append(torch.from_numpy(read_idx(find(path, data_dir), sums[path]).copy()))
    x, y = arrays
    return Images(x.flatten(1).float() / 255, y.long())


def flipped(x: Tensor) -> Tensor:
    """28x28 pictures upside down."""
    return x.view(-1, 28, 28).flip(1).flatten(1)
