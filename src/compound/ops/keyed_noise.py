"""Standard normal numbers as a function of a key and a number: what one pass through a network draws.

The key is a tensor, so that a compiled or exported network takes it as an input: `torch.compile` sees one
operation that it does not look into, and draws what the eager network draws.
"""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from compound.ops.gaussian_noise import draw_key, standard_normal

MASK = 2**64 - 1


def pass_key(generator: Generator) -> Tensor:  # () int64, on the CPU
    """The key of a pass; it takes one number from the generator."""
    return torch.tensor(draw_key(generator), dtype=torch.int64)


def keyed_normal(key: Tensor, number: int, shape: Sequence[int], like: Tensor) -> Tensor:
    """Standard normal numbers of this shape, dtype and device: equal for equal keys and numbers.

    Other numbers give independent draws.
    """
    if torch.compiler.is_compiling():
        return _keyed_normal(key, number, list(shape), like.dtype, like.device)
    return _draw(key, number, shape, like)


def _draw(key: Tensor, number: int, shape: Sequence[int], like: Tensor) -> Tensor:
    return standard_normal(Generator().manual_seed(_mixed(int(key), number)), shape, like)


def _mixed(key: int, number: int) -> int:
    """A 63-bit seed: SplitMix64 (Steele, Lea and Flood, 2014) at position `number` of the stream `key`."""
    z = (key + (number + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return (z ^ (z >> 31)) >> 1


@torch.library.custom_op("compound::keyed_normal", mutates_args=())
def _keyed_normal(
    key: Tensor, number: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    return _draw(key, number, shape, torch.empty(0, dtype=dtype, device=device))


@_keyed_normal.register_fake
def _(key: Tensor, number: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(list(shape), dtype=dtype, device=device)
