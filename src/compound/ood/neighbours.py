"""Distance from the nearest training rows themselves, in the units of the inputs, without whitening.

    d(x) = mean of the NEIGHBOURS smallest Euclidean distances |x - x_i|,    x_i in a sample of training rows

It follows groups of rows of any shape, which few cluster centres cannot.
"""

import torch
from torch import Generator, Tensor

NEIGHBOURS = 5
MAX_ROWS = 10_000  # of the sample
MAX_NUMBERS = 2**21  # of the sample, rows times features: it is saved with the model
BLOCK = 128  # rows measured together: products of other shapes round differently


def sample_rows(x: Tensor, generator: Generator) -> Tensor:  # (sampled,)
    """Numbers of randomly chosen rows of x (rows, features), as many as a sample may hold."""
    limit = max(2 * NEIGHBOURS, min(MAX_ROWS, MAX_NUMBERS // x.shape[1]))
    return torch.randperm(len(x), generator=generator)[:limit]


def neighbour_distance(x: Tensor, sample: Tensor) -> Tensor:  # (rows,)
    """The distance of rows x (rows, features) from a sample (sampled, features)."""
    return _smallest(x, sample, min(NEIGHBOURS, len(sample))).mean(-1)


def leave_one_out(sample: Tensor, rows: int) -> Tensor:  # (rows,)
    """The distances of the first rows of a sample from all others of it: 0 where there are none."""
    if len(sample) < 2:
        return sample.new_zeros(rows)
    count = min(NEIGHBOURS + 1, len(sample))
    parts = []
    for start in range(0, rows, BLOCK):
        block = torch.arange(start, min(start + BLOCK, rows))
        squares = _squares(sample[block], sample)
        squares[torch.arange(len(block)), block] = torch.inf  # the row itself
        index = squares.topk(count - 1, largest=False).indices
        parts.append(_exact(sample[block], sample[index]).mean(-1))
    return torch.cat(parts)


def _smallest(x: Tensor, sample: Tensor, count: int) -> Tensor:  # (rows, count)
    """The `count` smallest distances of rows x (rows, features) from a sample (sampled, features)."""
    return _exact(x, sample[_squares(x, sample).topk(count, largest=False).indices])


def _squares(x: Tensor, sample: Tensor) -> Tensor:  # (rows, sampled)
    """Squared distances less |x|², in one product: exact enough to find neighbours."""
    return torch.addmm(sample.square().sum(-1), x, sample.T, alpha=-2)


def _exact(x: Tensor, near: Tensor) -> Tensor:  # (rows, count)
    """Distances of rows x (rows, features) from rows near (rows, count, features), without cancellation."""
    return (x.unsqueeze(1) - near).square().sum(-1).sqrt()
