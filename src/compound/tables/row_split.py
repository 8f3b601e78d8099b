"""Which rows are for what, decided row by row from a hash of the row's number: nothing needs to be stored.

The parts have the meaning of those of a table in memory: test rows, rows that all members hold out, and rows
that one member holds out. Only their numbers are random: a part of fraction p has n p rows up to a few
sqrt(n p).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compound.estimators.member_holdout import common_count
from compound.random import derive_seed

Array = NDArray[Any]


def uniform(rows: Array, seed: int, purpose: str) -> Array:  # (rows,) float64 in [0, 1)
    """A number for every row number, the same at every call: SplitMix64 (Steele, Lea and Flood 2014)."""
    key = np.uint64(derive_seed(seed, purpose))
    with np.errstate(over="ignore"):
        z = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + key
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) / 2.0**64


@dataclass(frozen=True)
class RowSplit:
    """The parts of a table, from fractions of its rows."""

    seed: int
    test: float  # of all rows
    common: float  # of the others: held out by all members
    own: float  # of the rest: held out by each member
    members: int

    @classmethod
    def of(cls, rows: int, test: float, held_out: float, members: int, differ: bool, seed: int) -> "RowSplit":
        """As for a table in memory: members hold out `held_out` of the rows, others if they `differ`."""
        if not differ or members == 1:
            return cls(seed, test, held_out, 0.0, members)
        common = min(held_out, common_count(rows) / rows)
        return cls(seed, test, common, (held_out - common) / (1 - common), members)

    def is_test(self, rows: Array) -> Array:  # (rows,) bool
        """Which of these row numbers are test rows."""
        return uniform(rows, self.seed, "test rows") < self.test

    def is_common(self, rows: Array) -> Array:  # (rows,) bool
        """Which of these row numbers all members hold out."""
        return uniform(rows, self.seed, "hold out in common") < self.common

    def weights(self, rows: Array) -> Tensor:  # (members, rows), or (rows,) where members hold out the same
        """Training weights: 1, or 0 for rows that a member holds out."""
        weight = torch.from_numpy((~self.is_common(rows)).astype(np.float32))
        if not self.own:
            return weight
        position = torch.from_numpy(uniform(rows, self.seed, "hold out"))
        start = (torch.arange(self.members, dtype=torch.float64) * self.own).unsqueeze(1)
        return weight * ((position - start) % 1.0 >= self.own)

    def is_trained(self, rows: Array) -> Array:  # (rows,) bool
        """Which of these row numbers some member trains on."""
        weight = self.weights(rows)
        return (weight.reshape(-1, len(rows)) > 0).any(0).numpy() & ~self.is_test(rows)
