"""The two toy sets of the paper: a cubic, seen through few points or through noise that changes sides."""

from dataclasses import dataclass

import torch
from torch import Tensor

from compound.random import named_generator

VIEW = {1: 6.0, 2: 4.0}  # the figure looks at [-VIEW, VIEW]; the inputs lie in [-4, 4]


@dataclass(frozen=True)
class Toy:
    x: Tensor  # (rows, 1)
    y: Tensor  # (rows, 1)


def cubic(which: int, seed: int) -> Toy:
    """y = x³ + noise, x ~ U[-4, 4]. Set 1: 20 points, sd 3. Set 2: 100 points, sd 15 left of 0 and 3 right of it."""
    if which not in VIEW:
        raise ValueError(f"toy set is {which!r}: choose 1 or 2")
    generator = named_generator(seed, "toy", which)
    rows = 20 if which == 1 else 100
    x = 8 * torch.rand((rows, 1), generator=generator, dtype=torch.float32) - 4
    noise = torch.randn((rows, 1), generator=generator, dtype=torch.float32)
    return Toy(x, true_function(x) + noise_std(x, which) * noise)


def true_function(x: Tensor) -> Tensor:
    return x**3


def noise_std(x: Tensor, which: int) -> Tensor:
    return torch.where((x < 0) & (which == 2), 15.0, 3.0)
