"""Distance from the nearest training rows themselves, in the units of the inputs, without whitening.

    d(x) = mean of the NEIGHBOURS smallest Euclidean distances |x - x_i|,    x_i in a sample of training rows

It follows groups of rows of any shape, which few cluster centres cannot.
"""

import torch
from torch import Generator, Tensor

from compound.ops.nearest_rows import RowIndex, nearest_distances

NEIGHBOURS = 5
MAX_ROWS = 10_000  # of the sample
MAX_NUMBERS = 2**21  # of the sample, rows times features: it is saved with the model
BLOCK = 512  # rows measured together


def sample_rows(x: Tensor, generator: Generator) -> Tensor:  # (sampled,)
    """Numbers of randomly chosen rows of x (rows, features), as many as a sample may hold."""
    limit = max(2 * NEIGHBOURS, min(MAX_ROWS, MAX_NUMBERS // x.shape[1]))
    return torch.randperm(len(x), generator=generator)[:limit]


def neighbour_distance(x: Tensor, sample: Tensor, index: RowIndex | None = None) -> Tensor:  # (rows,)
    """The distance of rows x (rows, features) from a sample (sampled, features); `index` finds it sooner."""
    return nearest_distances(x, sample, index, min(NEIGHBOURS, len(sample))).mean(-1)


def leave_one_out(sample: Tensor, rows: int, index: RowIndex | None = None) -> Tensor:  # (rows,)
    """The distances of the first rows of a sample from all others of it: 0 where there are none."""
    if len(sample) < 2:
        return sample.new_zeros(rows)
    count = min(NEIGHBOURS + 1, len(sample))
    parts = [nearest_distances(part, sample, index, count) for part in sample[:rows].split(BLOCK)]
    return torch.cat(parts)[:, 1:].mean(-1)  # the smallest, 0, is that from the row itself
