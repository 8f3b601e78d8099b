"""Distances from nearest rows: the search against all distances in float64."""

import numpy as np
import pytest
import torch
from kernel_checks import randn

from compound.ops.nearest_rows import RowIndex, nearest_distances, reference


def table(rows: int, numbers: int, categories: int) -> torch.Tensor:
    """Correlated numbers, some rows twice and some far away, and one-hot columns."""
    x = randn(rows, numbers).float() @ randn(numbers, numbers, seed=1).float()
    x[: rows // 10] *= 50
    x[rows // 10 : rows // 5] = x[rows // 5 : rows // 5 + rows // 5 - rows // 10]
    codes = torch.from_numpy(np.random.default_rng(2).integers(max(1, categories), size=rows))
    return torch.cat([x, torch.nn.functional.one_hot(codes, max(1, categories)).float()], 1)


@pytest.mark.parametrize(
    "rows, numbers, categories", [(2000, 3, 4), (700, 40, 60), (65, 31, 0), (5000, 8, 300)]
)
@pytest.mark.parametrize("count", [1, 5])
def test_distances_are_the_smallest_of_all(rows, numbers, categories, count):
    x = table(rows + 100, numbers, categories)
    sample, new = x[100:], x[:100]
    new[0, 0] = 1e4  # as far as encoded values go
    new[1] = sample[3]
    index = RowIndex.build(sample)
    exact = torch.cdist(new.double(), sample.double(), compute_mode="donot_use_mm_for_euclid_dist")
    expected = exact.sort(1).values[:, :count]
    with torch.no_grad():
        actual = nearest_distances(new, sample, index, count)
    torch.testing.assert_close(actual.double(), expected, rtol=2e-6, atol=1e-30)
    torch.testing.assert_close(reference(new.double(), sample.double(), count), expected)


def test_a_row_does_not_depend_on_the_others_or_on_the_search():
    x = table(1500, 20, 30)
    sample, new = x[100:], x[:100]
    with torch.no_grad():
        together = nearest_distances(new, sample, RowIndex.build(sample), 5)
        alone = nearest_distances(new[37:38], sample, RowIndex.build(sample), 5)
        shuffled = sample[torch.randperm(len(sample))]
        other = nearest_distances(new, shuffled, RowIndex.build(shuffled), 5)
    assert torch.equal(alone, together[37:38]) and torch.equal(other, together)
