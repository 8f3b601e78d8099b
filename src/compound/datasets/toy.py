"""The two toy data sets of the paper: a noisy cubic, with few points or with more noise for x < 0."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from compound.random import named_generator


class ToySet(NamedTuple):
    """How a toy data set is generated."""

    number: int  # part of the name of its random generator
    rows: int
    noise_left: float  # standard deviation for x < 0
    noise_right: float  # for x >= 0
    view: float  # figures show [-view, view]


TOY_SETS = {"set 1": ToySet(1, 20, 3.0, 3.0, 6.0), "set 2": ToySet(2, 100, 15.0, 3.0, 4.0)}


@dataclass(frozen=True)
class Toy:
    x: Tensor  # (rows, 1)
    y: Tensor  # (rows, 1)


def cubic(name: str, seed: int) -> Toy:
    """Draw the toy set `name` (a key of TOY_SETS): y = x³ + Gaussian noise, x ~ U[-4, 4]."""
    if name not in TOY_SETS:
        raise ValueError(f"toy set is {name!r}: choose {' or '.join(TOY_SETS)}")
    toy_set = TOY_SETS[name]
    generator = named_generator(seed, "toy", toy_set.number)
    shape = (toy_set.rows, 1)
    x = 8 * torch.rand(shape, generator=generator, dtype=torch.float32) - 4
    noise = torch.randn(shape, generator=generator, dtype=torch.float32)
    return Toy(x, true_function(x) + torch.where(x < 0, toy_set.noise_left, toy_set.noise_right) * noise)


def true_function(x: Tensor) -> Tensor:
    """The mean of y given x."""
    return x**3
