"""Products with few columns, which are computed as their transposes, and large ones, by oneDNN."""

import pytest
import torch
from kernel_checks import assert_all_close, gradients_of, randn
from torch.testing import assert_close

from compound.compat import onednn_linear
from compound.ops import affine as products
from compound.ops.affine import FEW, MANY, NARROW, affine, append_ones, grad_weight, linear, matmul


@pytest.mark.parametrize("inputs, outputs", [(4, 3), (4, NARROW + 1), (4, MANY), (FEW + 1, MANY)])
@pytest.mark.parametrize("members", [(), (2,)])
def test_products_and_gradients_are_those_of_torch(inputs, outputs, members):
    h, weight = randn(*members, 5, inputs), randn(*members, inputs, outputs)
    assert_close(matmul(h, weight), h @ weight)
    ours = gradients_of(lambda *a: [linear(*a)], [h, weight])
    assert_all_close(ours, gradients_of(lambda *a: [torch.matmul(*a)], [h, weight]), 1e-12)


@pytest.mark.parametrize("outputs", [3, NARROW + 1])
def test_affine_maps_have_their_bias_as_last_row(outputs):
    h, weight, d_out = randn(5, 4), randn(5, outputs), randn(5, outputs, seed=1)
    assert_close(affine(h, weight), append_ones(h) @ weight)
    assert_close(grad_weight(h, d_out), append_ones(h).T @ d_out)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
@pytest.mark.parametrize("members", [(), (1,), (2,)])
def test_large_products_by_onednn_are_those_in_double_precision(members, monkeypatch):
    """Values and gradients; tall factors are transposed on the way, as those of a weight's gradient are."""
    called = []
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    monkeypatch.setattr(products, "onednn_linear", lambda a, b: called.append(0) or onednn_linear(a, b))
    rows, inputs, outputs = 200, 300, 40
    h, weight = randn(*members, rows, inputs).float(), randn(*members, inputs, outputs, seed=1).float()
    exact = gradients_of(lambda *a: [torch.matmul(*a)], [h.double(), weight.double()])
    found = gradients_of(lambda *a: [linear(*a)], [h, weight])
    assert len(called) == 3 * max(1, sum(members))
    for ours, theirs in zip(found, exact, strict=True):
        assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
    small = h[..., :5, :]
    called.clear()
    assert_close(matmul(small, weight), small @ weight)
    assert not called
