"""Piecewise-linear encoding of numeric inputs, in front of a network.

    x_j  ->  x_j / sqrt(1 + (x_j / CLIP)²),   clamp((x_j - e_t) / (e_{t+1} - e_t), 0, 1) - 1/2   for bins t

The edges e_t are quantiles of the training rows (Gorishniy, Rubachev and Babenko 2022, "On embeddings for
numerical features in tabular deep learning"), or all distinct values where there are few. A value that many
rows share counts for one bin's rows only, so that the others have bins too. So a network sees each column at
several scales, its tails compressed: beyond the outermost edges only the first number changes, and it stays
within ±CLIP. Columns that were constant in training are left out.
"""

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from compound.ops.encoded_rows import Bins

Array = np.ndarray[Any, Any]
CLIP = 4.0  # in standard deviations
MAX_BINS = {"regression": 48, "classification": 64}  # of one column
MAX_TOTAL = {"regression": 256, "classification": 512}  # of all columns together
BIN_SCALES = (1.0, 32.0)  # of the first and the last member: a geometric sequence
MAX_SCALE = 4.0
SCALE_ROWS = 4000  # more rows allow rougher functions: scales grow with their square root, at most 4 times
MIN_BINS = 4  # fewer are not worth their width, unless the column has so few values
ROWS_PER_BIN = 20


class PiecewiseLinearEncoding(nn.Module):
    """Encodes standardised inputs as soft-clipped numbers and piecewise-linear bins; nothing is learnt in it.

    Parameters
    ----------
    inputs : int
        Columns of x.
    kept : int, optional
        Columns that are not constant; all by default. `fit` chooses them, and the bins.
    bins : int, default=0
        Bins of all columns together.
    groups : int, optional
        Groups of outputs that follow each other: the numbers of one source column, or its bins. By default
        every output is one.

    Examples
    --------
    >>> import torch
    >>> from compound.nn import PiecewiseLinearEncoding
    >>> x = torch.linspace(-1, 1, 100).unsqueeze(1)
    >>> encoding = PiecewiseLinearEncoding.fit(x)
    >>> encoding.outputs, encoding(torch.tensor([[0.0], [1e6]])).shape
    (6, torch.Size([2, 6]))
    """

    kept: Tensor  # (kept,) the inputs that are not constant
    column: Tensor  # (bins,) the input of each bin
    left: Tensor  # (bins,) its lower edge
    slope: Tensor  # (bins,) one over its width
    unit: Tensor  # (bins,) one over the square root of the number of bins of its input
    counts: Tensor  # (groups,) outputs of each group
    sharpness: Tensor  # () factor on the scales of bins for many rows, from 1 to 4

    def __init__(self, inputs: int, kept: int | None = None, bins: int = 0, groups: int | None = None):
        super().__init__()
        self.inputs = inputs
        kept = inputs if kept is None else kept
        self.register_buffer("kept", torch.arange(kept, dtype=torch.int64))
        counts = torch.ones(kept + bins if groups is None else groups, dtype=torch.float32)
        self.register_buffer("counts", counts, persistent=False)  # layers that use them keep them
        self.register_buffer("column", torch.zeros(bins, dtype=torch.int64))
        self.register_buffer("left", torch.zeros(bins, dtype=torch.float32))
        self.register_buffer("slope", torch.zeros(bins, dtype=torch.float32))
        self.register_buffer("unit", torch.ones(bins, dtype=torch.float32))
        self.register_buffer("sharpness", torch.ones((), dtype=torch.float32))

    @classmethod
    def fit(cls, x: Tensor, kind: str = "regression", sources: Sequence[int] | None = None) -> Self:
        """Choose bins by the quantiles of training rows x (rows, inputs); none for columns of two values.

        Their largest number depends on the `kind` of task. `sources` holds, for each input, the index of the
        column of the table that it encodes, in ascending order; by default each is one.
        """
        columns = [np.unique(column, return_counts=True) for column in x.numpy().T]
        return cls.from_counts(columns, len(x), kind, sources)

    @classmethod
    def from_counts(
        cls,
        columns: Sequence[tuple[Array, Array]],
        rows: int,
        kind: str = "regression",
        sources: Sequence[int] | None = None,
    ) -> Self:
        """`fit` to columns that are given by their distinct values, in ascending order, and their counts.

        Values that stand for others beside them, as in a sketch of many rows, do as well.
        """
        inputs = len(columns)
        values = [each for each, _ in columns]
        numeric = sum(len(each) > 2 for each in values)
        limit = min(MAX_BINS[kind], rows // ROWS_PER_BIN, MAX_TOTAL[kind] // max(1, numeric))
        edges = [_edges(each, counts, limit) for each, counts in columns]
        binned = [(j, len(each) - 1) for j, each in enumerate(edges) if len(each) > 2]
        of_bins = [torch.full((bins,), j, dtype=torch.int64) for j, bins in binned]
        kept = [torch.from_numpy(each) for each in edges if len(each) > 2]
        changing = torch.tensor([j for j, each in enumerate(values) if len(each) > 1], dtype=torch.int64)
        of_kept = changing if sources is None else torch.tensor(sources, dtype=torch.int64)[changing]
        groups = [torch.unique_consecutive(each, return_counts=True)[1] for each in (of_kept, *of_bins)]
        outputs = torch.cat(groups).float()
        encoding = cls(inputs, len(changing), sum(len(each) for each in of_bins), len(outputs))
        encoding.kept = changing
        encoding.counts = outputs
        if of_bins:
            encoding.column = torch.cat(of_bins)
            encoding.left = torch.cat([each[:-1] for each in kept]).float()
            encoding.slope = torch.cat([1 / each.diff() for each in kept]).float()
            encoding.unit = torch.bincount(encoding.column)[encoding.column].float().rsqrt()
            encoding.sharpness.fill_(min(4.0, max(1.0, math.sqrt(rows / SCALE_ROWS))))
        return encoding

    @property
    def bins(self) -> int:
        """Bins of all columns together."""
        return len(self.column)

    @property
    def outputs(self) -> int:
        """Numbers that a row is encoded as."""
        return len(self.kept) + self.bins

    @property
    def constants(self) -> Bins:
        """What a loop needs to encode rows."""
        return Bins(self.kept, self.column, self.left, self.slope, self.counts, CLIP)

    def member_scales(self, members: int) -> Tensor:  # (members, 1, outputs)
        """Factors on the outputs for each member of an ensemble: 1 for numbers, a / sqrt(T) for T bins.

        The smaller a, the smoother the functions that are learnt first. Members range from smooth to rough,
        since no roughness is right for all tables, and the mixture is better than its members.
        """
        first, last = BIN_SCALES
        steps = [k / (members - 1) for k in range(members)] if members > 1 else [0.5]
        roughness = [first * (last / first) ** step for step in steps]
        a = self.unit.new_tensor(roughness).unsqueeze(-1)  # (members, 1)
        bins = self.sharpness * (a * self.unit).clamp_max(MAX_SCALE)
        return torch.cat([bins.new_ones(members, len(self.kept)), bins], -1).unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:  # (rows, outputs)
        """Encode rows x (rows, inputs)."""
        kept = x.index_select(-1, self.kept)
        clipped = kept * (1 + (kept / CLIP).square()).rsqrt()
        if not self.bins:
            return clipped
        bins = (x.index_select(-1, self.column) - self.left).mul_(self.slope).clamp_(0, 1).sub_(0.5)
        return torch.cat([clipped, bins], -1)


def _edges(values: Array, counts: Array, limit: int) -> Array:
    """Edges of at most `limit` bins for a column of these sorted distinct values, (distinct,) each."""
    if len(values) - 1 <= limit:
        return values.astype(np.float64)
    if limit < MIN_BINS:
        return values[:0].astype(np.float64)
    weights = np.minimum(counts, counts.sum() / limit)
    levels = (np.cumsum(weights) - 0.5 * weights) / weights.sum()  # of the values, from 0 to 1
    quantiles = np.interp(np.linspace(0, 1, limit + 1), levels, values)
    return np.unique(quantiles.astype(np.float32)).astype(np.float64)  # distinct as the buffers hold them
