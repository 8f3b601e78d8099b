"""Random number generators named by purpose: equal seeds and names give equal numbers on every run."""

import hashlib
from collections.abc import Sequence

from torch import Generator

Generators = Generator | Sequence[Generator]  # one generator, or one per ensemble member


def named_generator(seed: int, *path: str | int) -> Generator:
    """A stream of random numbers named by its purpose: named_generator(7, "noise", step) is the same on every run."""
    return Generator().manual_seed(derive_seed(seed, *path))


def derive_seed(seed: int, *path: str | int) -> int:
    """The 63-bit seed behind `named_generator`, for libraries that take a number."""
    digest = hashlib.sha256(repr((seed, *path)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def member_seed(seed: int, k: int) -> int:
    """The seed of member k; member 0 keeps the seed of the whole, so one member alone is the first of five."""
    return seed if k == 0 else derive_seed(seed, "member", k)


def only_generator(generator: Generators) -> Generator:
    """The one stream of a method without members."""
    if isinstance(generator, Generator):
        return generator
    if len(generator) != 1:
        raise ValueError(f"{len(generator)} streams for a method without members: give one")
    return generator[0]
