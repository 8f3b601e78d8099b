"""Hypernetworks are compound density networks without variance."""

import pytest
import torch
from torch.testing import assert_close

from compound.models import Method, build
from compound.random import named_generator
from compound.types import Task, make_dataset


def double(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=named_generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("task", [Task("regression", 2), Task("classification", 3)], ids=lambda t: t.kind)
def test_limit_of_a_compound_density_network(task):
    """Copied weights and log-variances at their lower bound: the CDN predicts what the hypernetwork does."""
    ours = build(Method("hypernet", widths=(6,), hyper=(4,)), 3, task, 2).double()
    options = {"widths": (6,), "hyper": (4,), "members": 1, "far": 0.0, "last_draws": 1}
    cdn = build(Method("ml-cdn", **options, parametrization="paper"), 3, task, 3).double()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=named_generator(4), dtype=torch.float64)
        for layer, scaled in zip(cdn.layers, ours.stack, strict=True):
            hidden, heads = layer.hyper.maps
            first, last = scaled.hyper.layers
            hidden.weight.copy_(torch.cat([first.weight, first.bias], 1))
            rows = layer.inputs + 1
            heads.weight.zero_()
            heads.weight[..., :rows] = torch.cat([last.weight, 1 + last.bias], 1)
            heads.weight[:, -1, rows:] = -20.0  # the bound of log-variances
            layer.basis.copy_(scaled.basis)
    x = double(7, 3)
    if task.kind == "regression":
        data = make_dataset(x, double(7, 2, seed=5), task)
        ours.on_fit_start(data, named_generator(0))
        cdn.on_fit_start(data, named_generator(0))
        cdn.likelihood.log_noise.data.copy_(ours.likelihood.log_noise)
    y = double(7, 2, seed=6) if task.kind == "regression" else torch.arange(7) % 3
    found, limit = ours.predict(x, named_generator(0), 1, 1), cdn.predict(x, named_generator(0), 1, 1)
    assert_close(found.log_prob(y), limit.log_prob(y), rtol=1e-3, atol=1e-3)  # standard deviations of e^-10
    assert float((ours.predict(2 * x, named_generator(0)).log_prob(y) - found.log_prob(y)).abs().max()) > 0.1


def test_weights_are_scaled_rows_of_the_basis():
    model = build(Method("hypernet", widths=(4,), hyper=(3,)), 2, Task("regression", 1), 1).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += double(*parameter.shape, seed=7)
    x = double(5, 2)
    found = model._outputs(x)
    for n in range(5):
        h = x[n]
        for k, layer in enumerate(model.stack):
            (a, b), (c, d) = [(each.weight[0], each.bias[0, 0]) for each in layer.hyper.layers]
            scale = 1 + (h @ a + b).relu() @ c + d
            weight = torch.diag(scale) @ layer.basis[0]
            h = torch.cat([h, torch.ones(1)]) @ weight
            h = h.relu() if k == 0 else h
        assert_close(found[n], h, rtol=1e-10, atol=1e-10)


def test_penalty_counts_every_weight_once():
    model = build(
        Method("hypernet", widths=(4,), hyper=(3,), precision=2.0, noise=1.0), 2, Task("regression", 1)
    ).double()
    data = make_dataset(double(6, 2), double(6, 1, seed=2), Task("regression", 1))
    loss = model.loss(data, named_generator(0))
    expected = sum(p.square().sum() for p in model.stack.parameters()) / 6
    assert_close(loss.kl.sum(), expected.detach(), rtol=1e-10, atol=0)


def test_bad_options_are_refused():
    for options, words in (({"hyper": (0,)}, "hyper is"), ({"precision": -1.0}, "precision is -1.0")):
        with pytest.raises(ValueError, match=words):
            build(Method("hypernet", **options), 2, Task("regression", 1))
