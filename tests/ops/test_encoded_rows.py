"""The first layer of a table before its encoding: compiled against the encoding and the grouped reference."""

import numpy as np
import pytest
import torch
from kernel_checks import assert_all_close, randn

from compound.nn import PiecewiseLinearEncoding
from compound.ops.compound_moments import MomentOptions
from compound.ops.encoded_rows import encoded_rows, prepare, reference
from compound.ops.prepared import Prepared


def table(rows=300):
    """Numbers, a heavy tail, few values, two categories with indicators, a constant and a pair of values."""
    x = randn(rows, 9).float()
    x[:, 1] = x[:, 1] ** 5
    x[:, 2] = (2 * x[:, 2]).round()
    category = torch.from_numpy(np.random.default_rng(0).integers(0, 3, rows))
    x[:, 3:6] = torch.eye(3)[category]
    x[:, 6] = 1.5
    x[:, 7] = (x[:, 7] > 0).float()
    return x, [0, 1, 2, 3, 3, 3, 4, 5, 6]


def layer(encoding, members, hyper=20, c=11):
    r, g = encoding.outputs + 1, len(encoding.counts) + 1
    weights = randn(members, r, hyper, seed=1) / r**0.5
    heads = randn(members, hyper + 1, 2 * g + c, seed=2) / hyper**0.5
    return [value.float() for value in (weights, heads, randn(members, r, c, seed=3))]


def unusual(x, encoding):
    """Rows on the edges of bins, between them, far beyond them, and zeros."""
    rows = x[:40].clone()
    for j in (0, 1, 2, 8):
        edges = encoding.left[encoding.column == j]
        rows[: len(edges[:40]), j] = edges[:40]
    rows[30:33] = 0
    rows[33], rows[34] = 1e6, -1e6
    return rows


@pytest.mark.parametrize("kind", ["regression", "classification"])
@pytest.mark.parametrize("fan_in, bound", [(True, 10.0), (False, 0.5)])
def test_moments_are_those_of_the_encoded_rows(kind, fan_in, bound):
    x, sources = table()
    encoding = PiecewiseLinearEncoding.fit(x, kind, sources)
    scales = encoding.member_scales(3) if kind == "classification" else None
    weights, options = layer(encoding, 3), MomentOptions(bound, fan_in, False)
    rows = torch.cat([x[:40], unusual(x, encoding)])
    tables = prepare(encoding.constants, scales, *weights)
    with torch.no_grad():
        ours = encoded_rows(rows, tables, encoding.outputs + 1, options)
        encoded = encoding.double()(rows.double()).expand(3, -1, -1)
        encoded = encoded if scales is None else encoded * scales.double()
        counts = torch.cat([encoding.counts, torch.ones(1)]).double()
        exact = reference(encoded, *(w.double() for w in weights), counts, options)
    for one, other in zip(ours, exact, strict=True):
        assert_all_close([one], [other], 2e-5)


def test_a_row_does_not_depend_on_the_others():
    x, sources = table()
    encoding = PiecewiseLinearEncoding.fit(x, "regression", sources)
    weights, options = layer(encoding, 2), MomentOptions(10.0, True, False)
    tables = prepare(encoding.constants, None, *weights)
    together = encoded_rows(x, tables, encoding.outputs + 1, options)
    alone = encoded_rows(x[7:8], tables, encoding.outputs + 1, options)
    for one, all_rows in zip(alone, together, strict=True):
        assert torch.equal(one, all_rows[:, 7:8])


def test_missing_numbers_stay_missing():
    x, sources = table()
    encoding = PiecewiseLinearEncoding.fit(x, "regression", sources)
    tables = prepare(encoding.constants, None, *layer(encoding, 2))
    x[0, 0] = torch.nan
    mean, _ = encoded_rows(x, tables, encoding.outputs + 1, MomentOptions(10.0, True, False))
    assert mean[:, 0].isnan().all() and mean[:, 1:].isfinite().all()


def test_prepared_results_follow_the_weights():
    prepared, weights = Prepared(), torch.zeros(3)
    calls = []

    def total():
        calls.append(1)
        return float(weights.sum())

    assert [prepared.get([weights], total) for _ in range(2)] == [0.0, 0.0] and len(calls) == 1
    weights.data[1] = 2.0  # no version counter sees this
    assert prepared.get([weights], total) == 2.0
