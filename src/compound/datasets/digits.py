"""The 8 x 8 digits of scikit-learn, and three sets of out-of-distribution images."""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import train_test_split
from torch import Tensor

from compound.random import derive_seed, named_generator

SIDE = 8
REDUCTION = 4  # photographs are downsampled by this factor, so that a patch shows structure


@dataclass(frozen=True)
class Digits:
    x_train: Tensor  # (rows, 64) in [0, 1]
    y_train: Tensor  # (rows,)
    x_test: Tensor  # (test rows, 64)
    y_test: Tensor  # (test rows,)


def digits(seed: int) -> Digits:
    """All 1797 digits, 70 % for training and 30 % for testing, stratified by class."""
    x, y = load_digits(return_X_y=True)
    state = derive_seed(seed, "digits") % 2**32
    parts = train_test_split(x / 16, y, test_size=0.3, stratify=y, random_state=state)
    x_train, x_test, y_train, y_test = (torch.tensor(part) for part in parts)
    return Digits(x_train.float(), y_train.long(), x_test.float(), y_test.long())


def photographs(rows: int, seed: int) -> Tensor:  # (rows, 64) in [0, 1]
    """Random 8 x 8 grey patches of the two sample photographs of scikit-learn, as OOD images."""
    photographs = [_downsample(image) for image in load_sample_images().images]
    generator = named_generator(seed, "photographs")
    patches = []
    for row in range(rows):
        image = photographs[row % len(photographs)]
        top, left = (int(torch.randint(extent - SIDE + 1, (), generator=generator)) for extent in image.shape)
        patches.append(image[top : top + SIDE, left : left + SIDE].flatten())
    return torch.stack(patches)


def _downsample(image: np.ndarray) -> Tensor:  # (height, width) in [0, 1]
    """Grey values of an image (height, width, 3), averaged over tiles of REDUCTION x REDUCTION pixels."""
    grey = torch.tensor(image).float().mean(-1) / 255
    height, width = (extent // REDUCTION * REDUCTION for extent in grey.shape)
    tiles = grey[:height, :width].unflatten(0, (-1, REDUCTION)).unflatten(2, (-1, REDUCTION))  # (h, 4, w, 4)
    return tiles.mean((1, 3))


def noise(rows: int, seed: int) -> Tensor:  # (rows, 64)
    """OOD images of which every pixel is uniform in [0, 1]."""
    generator = named_generator(seed, "uniform noise")
    return torch.rand((rows, SIDE * SIDE), generator=generator, dtype=torch.float32)


def mirrored(x: Tensor) -> Tensor:  # (rows, 64)
    """The 8 x 8 images x (rows, 64) upside down, as OOD images."""
    return x.unflatten(1, (SIDE, SIDE)).flip(1).flatten(1)
