"""Rows times matrices of their own: compiled against reference."""

import pytest
import torch
from kernel_checks import assert_all_close, randn

from compound.ops.row_maps import reference, row_maps


@pytest.mark.parametrize("sizes", [(40, 6, 99, 99), (1, 1, 1, 1), (7, 3, 5, 130)], ids=str)
def test_rows_are_multiplied_by_their_matrix(sizes):
    rows, count, inputs, outputs = sizes
    x, maps = randn(rows, inputs).float(), randn(count, inputs, outputs, seed=1).float()
    index = torch.arange(rows) * 5 % count
    with torch.no_grad():
        ours = row_maps(x, index, maps)
        assert torch.equal(row_maps(x[-1:], index[-1:], maps), ours[-1:])
    exact = torch.stack([row @ maps[k].double() for row, k in zip(x.double(), index, strict=True)])
    assert_all_close([ours], [exact], 2e-6)
    assert_all_close([reference(x.double(), index, maps.double())], [exact], 1e-12)


def test_a_number_without_matrix_is_refused():
    with torch.no_grad(), pytest.raises(ValueError, match="no matrix"):
        row_maps(torch.ones(1, 2), torch.tensor([3]), torch.ones(3, 2, 2))
