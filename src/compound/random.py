"""Random number generators named by purpose: equal seeds and names give equal numbers on every run."""

import hashlib
from collections.abc import Sequence

from torch import Generator

Generators = Generator | Sequence[Generator]  # one generator, or one per ensemble member


class PartGenerator(Generator):
    """A generator for a part of a batch: its rows get the noise that they would have in the whole batch.

    All processes that share a batch seed theirs alike; noise of rows is drawn for the whole batch
    (`compound.ops.gaussian_noise.row_normal`), other noise is the same in all parts.
    """

    rows = slice(0, 1)  # of the batch that this part has
    total = 1  # rows of the whole batch

    def take(self, rows: slice, total: int) -> None:
        """Set the rows of this part, and how many the batch has."""
        self.rows = rows
        self.total = total


def named_generator(seed: int, *path: str | int) -> Generator:
    """A generator that depends on a seed and on a name for its purpose.

    Parameters
    ----------
    seed : int
    *path : str or int
        What the numbers are for, such as "noise", 3. Other names give independent numbers.

    Returns
    -------
    torch.Generator

    Examples
    --------
    >>> import torch
    >>> from compound import named_generator
    >>> a, b = (torch.rand(2, generator=named_generator(7, "noise", 3)) for _ in range(2))
    >>> bool((a == b).all())
    True
    """
    return Generator().manual_seed(derive_seed(seed, *path))


def derive_seed(seed: int, *path: str | int) -> int:
    """The 63-bit seed behind `named_generator`, for libraries that take a number."""
    digest = hashlib.sha256(repr((seed, *path)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def member_seed(seed: int, k: int) -> int:
    """The seed of ensemble member k; member 0 has the ensemble's own seed."""
    return seed if k == 0 else derive_seed(seed, "member", k)


def only_generator(generator: Generators) -> Generator:
    """The generator, or the single one of a sequence, for a method without members; ValueError for more."""
    if isinstance(generator, Generator):
        return generator
    if len(generator) != 1:
        raise ValueError(f"{len(generator)} generators for a method without members: give one")
    return generator[0]
