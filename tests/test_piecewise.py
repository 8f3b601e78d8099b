"""The piecewise-linear encoding against its formula, column by column and row by row."""

import math

import numpy as np
import pytest
import torch

from compound import named_generator
from compound.nn import PiecewiseLinearEncoding
from compound.nn.piecewise import BIN_SCALES, CLIP, MAX_BINS, MAX_SCALE, MAX_TOTAL, SCALE_ROWS


def columns(rows=2000):
    """A table of standard columns: normal, skewed, mostly zero, of five values, of two, constant."""
    generator = named_generator(0, "columns")
    normal = torch.randn(rows, generator=generator)
    spike = torch.where(torch.rand(rows, generator=generator) < 0.9, 0.0, normal.abs())
    five = torch.randint(5, (rows,), generator=generator).float()
    return torch.stack([normal, normal.exp(), spike, five, (normal > 0).float(), torch.zeros(rows)], 1)


def slow(x, encoding):
    """Each number of the encoding by its definition, in double precision."""
    out = []
    for row in x.double().tolist():
        values = [row[j] / math.sqrt(1 + (row[j] / CLIP) ** 2) for j in encoding.kept.tolist()]
        bins = (t.tolist() for t in (encoding.column, encoding.left.double(), encoding.slope.double()))
        for j, left, slope in zip(*bins, strict=True):
            values.append(min(max((row[j] - left) * slope, 0.0), 1.0) - 0.5)
        out.append(values)
    return torch.tensor(out, dtype=torch.float64)


def test_the_encoding_equals_its_formula():
    x = columns()
    encoding = PiecewiseLinearEncoding.fit(x)
    rows = torch.cat([x[:50], 1e4 * x[:5], torch.tensor([[-1e4] * 6])])
    # float32 differences of numbers up to 1e4 times a slope: compare where rounding cannot cross a bin
    expected = slow(rows, encoding)
    assert encoding(rows).shape == (56, encoding.outputs)
    scale = 1 + encoding.slope.max().item() * 1e-6
    assert (encoding(rows).double() - expected).abs().max() < 1e-5 * scale
    assert torch.allclose(encoding.double()(rows.double()), expected, atol=1e-12)


def test_edges_are_quantiles_and_constant_columns_are_left_out():
    x = columns()
    encoding = PiecewiseLinearEncoding.fit(x)
    assert encoding.kept.tolist() == [0, 1, 2, 3, 4]
    counts = torch.bincount(encoding.column, minlength=6).tolist()
    assert counts[0] == counts[1] == MAX_BINS["regression"] and counts[3:] == [4, 0, 0]
    left = encoding.left[encoding.column == 0].double().numpy()
    share = np.searchsorted(np.sort(x[:, 0].numpy()), left) / len(x)
    assert np.abs(share - np.linspace(0, 1, MAX_BINS["regression"], endpoint=False)).max() < 2 / len(x) + 1e-6
    assert encoding.left[encoding.column == 3].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_value_that_many_rows_share_takes_few_bins():
    encoding = PiecewiseLinearEncoding.fit(columns())
    left = encoding.left[encoding.column == 2]
    assert len(left) > 0.8 * MAX_BINS["regression"]  # by plain quantiles, nine of ten edges would be 0
    assert (left == 0).sum() == 1


@pytest.mark.parametrize("rows, inputs", [(5, 3), (40, 2), (300, 40), (2000, 400)])
def test_bins_stay_few_for_few_rows_and_many_columns(rows, inputs):
    x = torch.randn(rows, inputs, generator=named_generator(0, "x"))
    for kind, most in MAX_TOTAL.items():
        bins = PiecewiseLinearEncoding.fit(x, kind).bins
        assert bins <= most and bins <= inputs * (rows // 20)


@pytest.mark.parametrize("members, rows", [(1, 2000), (2, 9000), (5, 2000), (5, 100_000)])
def test_bins_of_a_column_have_one_length_together_that_grows_from_member_to_member(members, rows):
    encoding = PiecewiseLinearEncoding.fit(columns(rows), "classification")
    scales = encoding.member_scales(members)[:, 0].double()
    first, last = BIN_SCALES
    factors = np.geomspace(first, last, members) if members > 1 else [math.sqrt(first * last)]
    numbers = len(encoding.kept)
    assert scales[:, :numbers].eq(1).all()
    for member, factor in zip(scales, factors, strict=True):
        for j in (0, 1, 2, 3):
            bins = member[numbers:][encoding.column == j]
            expected = min(factor, MAX_SCALE * math.sqrt(len(bins)))
            expected *= min(max(math.sqrt(rows / SCALE_ROWS), 1), 4)
            assert bins.norm().item() == pytest.approx(expected, rel=1e-6)


def test_far_inputs_stay_bounded():
    x = columns()
    encoding = PiecewiseLinearEncoding.fit(x)
    out = encoding(torch.full((1, 6), 1e4))
    assert out.abs().max() <= CLIP and out[0, len(encoding.kept) :].eq(0.5).all()
