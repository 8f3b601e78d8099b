"""scikit-learn's 8 x 8 digits, and three kinds of pictures that are no digits: patches of photographs, noise, digits upside down."""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import train_test_split
from torch import Tensor

from compound.random import derive_seed, named_generator

SIDE = 8
REDUCTION = (
    4  # photographs are shrunk this much first, so that a patch shows things and not one smooth surface
)


@dataclass(frozen=True)
class Digits:
    x_train: Tensor  # (rows, 64) in [0, 1]
    y_train: Tensor  # (rows,)
    x_test: Tensor
    y_test: Tensor


def digits(seed: int) -> Digits:
    """All 1797 digits, 70 % to learn from and 30 % to test, each class in the same proportion."""
    x, y = load_digits(return_X_y=True)
    parts = train_test_split(
        x / 16, y, test_size=0.3, stratify=y, random_state=derive_seed(seed, "digits") % 2**32
    )
    x_train, x_test, y_train, y_test = (torch.tensor(part) for part in parts)
    return Digits(x_train.float(), y_train.long(), x_test.float(), y_test.long())


def photographs(rows: int, seed: int) -> Tensor:  # (rows, 64) in [0, 1]
    """Random grey patches of scikit-learn's two sample photographs."""
    pictures = [_shrunk(picture) for picture in load_sample_images().images]
    generator = named_generator(seed, "photographs")
    patches = []
    for row in range(rows):
        picture = pictures[row % len(pictures)]
        top, left = (
            int(torch.randint(extent - SIDE + 1, (), generator=generator)) for extent in picture.shape
        )
        patches.append(picture[top : top + SIDE, left : left + SIDE].flatten())
    return torch.stack(patches)


def _shrunk(picture: np.ndarray) -> Tensor:  # (height, width) in [0, 1]
    grey = torch.tensor(picture).float().mean(-1) / 255
    height, width = (extent // REDUCTION * REDUCTION for extent in grey.shape)
    tiles = grey[:height, :width].unflatten(0, (-1, REDUCTION)).unflatten(2, (-1, REDUCTION))  # (h, 4, w, 4)
    return tiles.mean((1, 3))


def noise(rows: int, seed: int) -> Tensor:
    """Every pixel uniform in [0, 1]."""
    return torch.rand(
        (rows, SIDE * SIDE), generator=named_generator(seed, "uniform noise"), dtype=torch.float32
    )


def mirrored(x: Tensor) -> Tensor:
    """The same pictures, top to bottom."""
    return x.unflatten(1, (SIDE, SIDE)).flip(1).flatten(1)
