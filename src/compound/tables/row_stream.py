"""Mini-batches of a table larger than memory: blocks of rows in random order, shuffled in a buffer.

In every epoch the blocks of all files are permuted; as many as the buffer holds are read, encoded and
shuffled together, and cut into batches, the incomplete last one dropped. The batch of a step depends on the
seed and the step alone, so an interrupted fit goes on at once from any step.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from compound.random import named_generator
from compound.tables.frames import ColumnType, cast_frame
from compound.tables.model_inputs import check_finite, check_not_missing
from compound.tables.parquet_rows import Block, ParquetRows, read_block
from compound.tables.row_split import RowSplit
from compound.types import Batch

Array = NDArray[Any]
BUFFER_BYTES = 64 * 2**20  # of encoded rows in the buffer
BUFFER_ROWS = 1 << 18  # at most
BLOCKS = 8  # that fill the buffer: so many places of the table meet in it
MIN_BLOCK = 512  # rows


class Encoded(NamedTuple):
    """Rows as the model takes them."""

    x: Tensor  # (rows, width)
    y: Tensor  # (rows,) or (rows, targets)
    rows: Array  # (rows,) their numbers


Encode = Callable[[pd.DataFrame], tuple[Tensor, Tensor]]  # x and y of some rows


class RowStream:
    """Batches of the training rows of parquet files.

    `dtypes` are those of the columns to read, `encode` maps them to inputs and targets, `size` is N of
    `Batch`, by member where members hold out other rows.
    """

    def __init__(
        self,
        table: ParquetRows,
        dtypes: Mapping[str, ColumnType],
        split: RowSplit,
        encode: Encode,
        width: int,
        size: Tensor | float,
        batch_size: int,
        steps: int,
        seed: int,
    ):
        self.dtypes, self.split, self.encode = dtypes, split, encode
        self.size, self.batch_size, self.steps, self.seed = size, batch_size, steps, seed
        buffer = max(min(BUFFER_ROWS, BUFFER_BYTES // (4 * width)), 8 * batch_size)
        self.blocks = table.blocks(max(MIN_BLOCK, buffer // BLOCKS))
        # (blocks,) training rows of each
        self.counts = np.array([int(split.is_trained(_numbers(block)).sum()) for block in self.blocks])
        if self.counts.sum() < batch_size:
            raise ValueError(
                f"{table.path} has {int(self.counts.sum())} training rows, fewer than a batch of "
                f"{batch_size}: leave out --stream"
            )
        self._epoch = -1
        self._first = 0  # step with which the epoch begins
        self._loads: list[list[int]] = []  # blocks that are in the buffer together
        self._ends = np.zeros(0, dtype=np.int64)  # (loads,) batches of the epoch up to the end of each
        self._loaded = (-1, -1)
        self._buffer: Encoded | None = None

    def __call__(self, step: int) -> Batch:
        """The batch of a step."""
        if step < self._first:
            self._epoch, self._first, self._ends = -1, 0, self._ends[:0]
        while step >= self._first + (int(self._ends[-1]) if len(self._ends) else 0):
            self._first += int(self._ends[-1]) if len(self._ends) else 0
            self._epoch += 1
            self._plan(self._epoch)
        number = step - self._first  # in the epoch
        load = int(np.searchsorted(self._ends, number, side="right"))
        buffer = self._fill(load)
        start = (number - (int(self._ends[load - 1]) if load else 0)) * self.batch_size
        part = slice(start, start + self.batch_size)
        rows = buffer.rows[part]
        weight = self.split.weights(rows)
        index = torch.from_numpy(rows)
        return Batch(buffer.x[part], buffer.y[part], self.size, index, weight, None, step / self.steps)

    def _plan(self, epoch: int) -> None:
        """Permute the blocks for an epoch, and group them by what the buffer holds."""
        order = torch.randperm(
            len(self.blocks), generator=named_generator(self.seed, "blocks", epoch)
        ).tolist()
        self._loads = [order[start : start + BLOCKS] for start in range(0, len(order), BLOCKS)]
        while len(self._loads) > 1 and self.counts[self._loads[-1]].sum() < self.batch_size:
            last = self._loads.pop()
            self._loads[-1] = self._loads[-1] + last
        batches = [int(self.counts[load].sum()) // self.batch_size for load in self._loads]
        self._ends = np.cumsum(batches)

    def _fill(self, load: int) -> Encoded:
        """Read and shuffle the rows of a load, unless they are in the buffer."""
        if self._loaded == (self._epoch, load) and self._buffer is not None:
            return self._buffer
        self._buffer = None  # free the memory first
        parts = [self._read(self.blocks[i]) for i in self._loads[load]]
        generator = named_generator(self.seed, "order", self._epoch, load)
        order = torch.randperm(sum(len(part.rows) for part in parts), generator=generator)
        rows = np.concatenate([part.rows for part in parts])[order.numpy()]
        y = torch.cat([part.y for part in parts])[order]
        x = torch.cat([part.x for part in parts])
        parts.clear()
        self._buffer = Encoded(x[order], y, rows)
        self._loaded = (self._epoch, load)
        return self._buffer

    def _read(self, block: Block) -> Encoded:
        """The training rows of a block."""
        numbers = _numbers(block)
        trained = self.split.is_trained(numbers)
        frame = read_frame(block, self.dtypes)[trained]
        return Encoded(*self.encode(frame), numbers[trained])


def read_frame(block: Block, dtypes: Mapping[str, ColumnType], table: Any = None) -> pd.DataFrame:
    """The columns of a block with these types, checked; `table` holds them where they have been read."""
    table = read_block(block, [*dtypes]) if table is None else table
    frame = cast_frame(block.path, table, dtypes, block.in_file)
    check_finite(block.path, frame, block.in_file)
    return frame


def check_target(block: Block, frame: pd.DataFrame, target: str) -> None:
    """Raise ValueError at a row without target."""
    if frame[target].isna().any():
        check_not_missing(block.path, frame[target], target, block.in_file)


def _numbers(block: Block) -> Array:
    return np.arange(block.first, block.first + block.rows, dtype=np.int64)
