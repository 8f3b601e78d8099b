"""Mixture density networks against torch's mixtures, manual derivatives, and one component."""

import math
from dataclasses import replace

import pytest
import torch
from oracles import floored
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.nn import functional
from torch.testing import assert_close

from compound.models import Method, build
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import Task, make_dataset

DOUBLE = torch.float64


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=named_generator(seed), dtype=DOUBLE)


def targets(components: int = 4, size: int = 2, rows: int = 9):
    """A model in float64 with its own starting biases, and data."""
    model = build(Method("mdn", widths=(6,), components=components), 3, Task("regression", size), 1).double()
    data = make_dataset(numbers(1, rows, 3), 2 * numbers(2, rows, size), model.task)
    model.on_fit_start(data, named_generator(0))
    return model, data


def pieces(model, x) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits (rows, K), means and variances (rows, K, targets), cut from the outputs by hand."""
    f, count, size = model.network(x)[0], model.config.components, model.task.size
    blocks = f[:, count:].reshape(len(x), count, 2 * size)
    return f[:, :count], blocks[..., :size], functional.softplus(blocks[..., size:]) + model.floor


def theirs(model, x) -> MixtureSameFamily:
    logits, means, variances = pieces(model, x)
    return MixtureSameFamily(Categorical(logits=logits), Independent(Normal(means, variances.sqrt()), 1))


def test_log_density_mean_and_variance_are_those_of_torchs_mixture():
    model, data = targets()
    oracle, p = theirs(model, data.x), model.predict(data.x, named_generator(0), 1, 1)
    assert_close(p.log_prob(data.y), oracle.log_prob(data.y).detach(), rtol=1e-12, atol=1e-12)
    assert_close(
        model.loss(data, named_generator(0)).nll,
        -oracle.log_prob(data.y).mean().detach(),
        rtol=1e-12,
        atol=1e-12,
    )
    assert_close(p.mean, oracle.mean.detach(), rtol=1e-12, atol=1e-12)
    assert_close(p.variance, oracle.variance.detach(), rtol=1e-12, atol=1e-12)
    assert_close(p.total, oracle.variance.detach(), rtol=1e-12, atol=1e-12)


def test_variance_within_and_between_components():
    model, data = targets()
    logits, means, variances = pieces(model, data.x)
    weights = torch.softmax(logits, -1).unsqueeze(-1)
    p = model.predict(data.x, named_generator(0), 1, 1)
    assert_close(p.component, (weights * variances).sum(1).detach(), rtol=1e-12, atol=0)
    second = (weights * means.square()).sum(1) - (weights * means).sum(1).square()
    assert_close(p.mixing, second.detach(), rtol=1e-10, atol=1e-12)
    assert (p.epistemic == 0).all()


def test_derivatives_by_hand():
    """With responsibilities g: d/dl = π - g, d/dμ = g (μ - y) / v, d/dlog s = g (1 - (y - μ)² / v)."""
    model, data = targets(size=1)
    f = model.network(data.x)[0].detach().requires_grad_()
    (gradient,) = torch.autograd.grad(-model.log_prob(f, data.y).sum(), f)
    count = model.config.components
    logits, mean, rho = f.detach()[:, :count], f.detach()[:, count::2], f.detach()[:, count + 1 :: 2]
    variance = functional.softplus(rho) + model.floor
    logs = torch.log_softmax(logits, -1) + Normal(mean, variance.sqrt()).log_prob(data.y)
    g, square = torch.softmax(logs, -1), (data.y - mean).square() / variance
    assert_close(gradient[:, :count], torch.softmax(logits, -1) - g, rtol=1e-10, atol=1e-12)
    assert_close(gradient[:, count::2], g * (mean - data.y) / variance, rtol=1e-10, atol=1e-12)
    by_log_deviation = g * (1 - square)
    assert_close(
        gradient[:, count + 1 :: 2],
        by_log_deviation * torch.sigmoid(rho) / (2 * variance),
        rtol=1e-10,
        atol=1e-12,
    )


def test_density_integrates_to_one():
    model, data = targets(size=1, rows=3)
    grid = torch.linspace(-60, 60, 200_001, dtype=DOUBLE).unsqueeze(-1)
    for row in data.x:
        p = model.predict(row.expand(1, -1), named_generator(0), 1, 1)
        logs = replace(
            p, means=p.means.expand(-1, len(grid), -1), variances=p.variances, log_weights=p.log_weights
        ).log_prob(grid)
        assert_close(torch.trapezoid(logs.exp(), grid[:, 0]), torch.ones((), dtype=DOUBLE), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_one_component_is_the_plain_network(kind):
    task = Task(kind, 3)
    model = build(Method("mdn", widths=(6,), components=1), 3, task, 2).double()
    plain = floored(build(Method("map", widths=(6,), variance="rows", precision=0.0), 3, task, 3).double())
    with torch.no_grad():
        for ours, others in zip(model.network.layers, plain.network.layers, strict=True):
            others.weight.copy_(ours.weight[..., -others.outputs :])
            others.bias.copy_(ours.bias[..., -others.outputs :])
    x, y = numbers(3, 8, 3), torch.arange(8) % 3 if kind == "classification" else numbers(4, 8, 3)
    data = make_dataset(x, y, task)
    assert_close(
        model.loss(data, named_generator(0)).total,
        plain.loss(data, named_generator(0)).total,
        rtol=1e-12,
        atol=0,
    )
    p, q = model.predict(x, named_generator(0), 1, 1), plain.predict(x, named_generator(0), 1, 1)
    assert_close(p.log_prob(y), q.log_prob(y), rtol=1e-12, atol=1e-12)
    assert_close(p.component, q.component, rtol=1e-12, atol=1e-12)
    assert p.mixing.abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_order_of_the_components_means_nothing(kind):
    task = Task(kind, 2)
    model = build(Method("mdn", widths=(6,), components=4), 3, task, 4).double()
    y = torch.arange(8) % 2 if kind == "classification" else numbers(5, 8, 2)
    data = make_dataset(numbers(6, 8, 3), y, task)
    model.on_fit_start(data, named_generator(0))
    before = model.loss(data, named_generator(0)).total
    order = torch.tensor([2, 0, 3, 1])
    columns = torch.cat([order, 4 + torch.arange(model.outputs - 4).view(4, -1)[order].flatten()])
    with torch.no_grad():
        last = model.network.layers[-1]
        last.weight.copy_(last.weight[..., columns])
        last.bias.copy_(last.bias[..., columns])
    assert_close(model.loss(data, named_generator(0)).total, before, rtol=1e-12, atol=0)


def test_classes_are_a_mixture_of_softmaxes():
    model = build(Method("mdn", widths=(6,), components=3), 3, Task("classification", 4), 5).double()
    x, y = 2 * numbers(7, 9, 3), torch.arange(9) % 4
    f = 3 * model.network(x)[0]
    with torch.no_grad():
        for parameter in model.network.layers[-1].parameters():
            parameter.mul_(3)
    weights, each = torch.softmax(f[:, :3], -1), torch.softmax(f[:, 3:].reshape(9, 3, 4), -1)
    probs = torch.einsum("rk,rkc->rc", weights, each).detach()
    p = model.predict(x, named_generator(0), 1, 1)
    assert_close(p.probs, probs, rtol=1e-12, atol=1e-14)
    within = (weights * Categorical(each).entropy()).sum(-1).detach()
    assert_close(p.component, within, rtol=1e-12, atol=1e-12)
    assert_close(p.mixing, Categorical(probs).entropy() - within, rtol=1e-10, atol=1e-12)
    assert (p.posterior == 0).all() and p.mixing.min() > 0
    assert_close(
        model.loss(make_dataset(x, y, model.task), named_generator(0)).nll,
        -probs[torch.arange(9), y].log().mean(),
        rtol=1e-12,
        atol=0,
    )


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_extreme_outputs_keep_finite_losses_and_gradients(kind):
    model = build(Method("mdn", widths=(6,), components=2), 3, Task(kind, 2))
    if kind == "regression":  # weights e^±400 apart, 1,000 deviations away, a variance at its floor
        f = torch.tensor([[200.0, -200.0, 0.0, 0.0, -90.0, -90.0, 1e3, 1e3, 0.0, 0.0]])
        y = torch.tensor([[1.0, 1e3]])
    else:
        f, y = torch.tensor([[200.0, -200.0, 300.0, -300.0, -300.0, 300.0]]), torch.tensor([1])
    f = f.clone().requires_grad_()
    value = model.log_prob(f, y).sum()
    value.backward()
    assert torch.isfinite(value) and torch.isfinite(f.grad).all()


def test_start_spreads_the_components_over_the_targets():
    model = build(Method("mdn", components=5), 2, Task("regression", 3), 0).double()
    first = numbers(8, 1001, 1)
    y = torch.cat([3 * first, 7 - first + 0.1 * numbers(9, 1001, 1), numbers(10, 1001, 1)], 1)
    held = torch.ones(1002)
    held[-1] = 0
    model.on_fit_start(
        make_dataset(
            torch.zeros(1002, 2, dtype=DOUBLE), torch.cat([y, torch.full((1, 3), 1e6)]), model.task, held
        ),
        named_generator(0),
    )
    p = model.predict(
        torch.zeros(1, 2, dtype=DOUBLE), named_generator(0), 1, 1
    )  # all other weights see zeros
    levels = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=DOUBLE)
    quantiles = y.quantile(levels, 0)
    gap = y.sort(0).values.diff(dim=0)[50:-50].max()  # between an order statistic and its neighbours
    assert ((p.means[:, 0, 0] - quantiles[:, 0]).abs() <= gap).all()
    assert ((p.means[:, 0, 1] - quantiles[:, 1].flip(0)).abs() <= gap).all()  # falls where the first rises
    spread = y.std(0, correction=0)
    assert_close(p.variances[0, 0], (spread / 5).square() + (1e-3 * spread).square(), rtol=1e-10, atol=0)
    assert_close(p.log_weights.exp(), torch.full((5, 1, 1), 0.2, dtype=DOUBLE))


def test_finds_two_branches():
    """y = ±1 + noise 0.2, a coin for each row.

    The answer is as good as the truth, and its variance lies between the components.
    """
    g = named_generator(11)
    x = torch.randn(600, 1, generator=g)
    y = torch.randint(2, (600, 1), generator=g) * 2.0 - 1 + 0.2 * torch.randn(600, 1, generator=g)
    model = build(Method("mdn", widths=(10,)), 1, Task("regression", 1))
    fit(model, make_dataset(x, y, model.task), TrainConfig(steps=400, batch_size=600))
    p = model.predict(x, named_generator(0), 1, 1)
    truth = MixtureSameFamily(Categorical(torch.ones(2)), Normal(torch.tensor([-1.0, 1.0]), 0.2)).log_prob(
        y[:, 0]
    )
    difference = p.log_prob(y) - truth
    assert difference.mean() > -4 * truth.std() / math.sqrt(600)
    assert 0.02 < p.component.median() < 0.07 and 0.9 < p.mixing.median() < 1.1


def test_rows_held_out_do_not_count():
    model, data = targets()
    weight = torch.ones(9, dtype=DOUBLE)
    weight[:3] = 0
    less = make_dataset(data.x[3:], data.y[3:], model.task)
    assert_close(
        model.loss(replace(data, weight=weight), named_generator(0)).total,
        model.loss(less, named_generator(0)).total,
        rtol=1e-12,
        atol=0,
    )


def test_bad_option_is_named():
    with pytest.raises(ValueError, match="components is 0"):
        build(Method("mdn", components=0), 2, Task("classification", 2))


def test_experts_start_at_quantiles_of_the_targets():
    model = build(
        Method("mdn", widths=(6,), components=4, experts=True), 3, Task("regression", 1), 1
    ).double()
    x, y = numbers(1, 200, 3), 2 * numbers(2, 200, 1)
    model.on_fit_start(make_dataset(x, y, model.task), named_generator(0))
    means = model.network.layers[-1].bias[:, 0, 0].detach()
    assert_close(
        means, y[:, 0].quantile(torch.tensor([0.125, 0.375, 0.625, 0.875], dtype=DOUBLE)), rtol=0, atol=0.1
    )


@pytest.mark.parametrize("task", [Task("regression", 2), Task("classification", 3)], ids=lambda t: t.kind)
def test_experts_are_networks_of_their_own_behind_a_gate(task):
    """Jacobs et al. (1991): sum_k softmax(gate(x))_k p(y | expert_k(x)), each network computed by hand."""
    model = build(Method("mdn", widths=(6,), components=3, experts=True), 3, task, 1).double()
    x = numbers(1, 9, 3)
    y = 2 * numbers(2, 9, 2) if task.kind == "regression" else torch.arange(9) % 3
    model.on_fit_start(make_dataset(x, y, task), named_generator(0))

    def network(layers, member):
        (a, b), (c, d) = [(layer.weight[member], layer.bias[member]) for layer in layers]
        return (x @ a + b).relu() @ c + d

    weights = network(model.gate.layers, 0).softmax(-1)
    density = 0
    for k in range(3):
        f = network(model.network.layers, k)
        if task.kind == "regression":
            mean, variance = f[:, :2], functional.softplus(f[:, 2:]) + model.floor
            log_prob = Independent(Normal(mean, variance.sqrt()), 1).log_prob(y)
        else:
            log_prob = f.log_softmax(-1)[torch.arange(9), y]
        density = density + weights[:, k] * log_prob.exp()
    p = model.predict(x, named_generator(0), 1, 1)
    assert_close(p.log_prob(y), density.log().detach(), rtol=1e-10, atol=1e-10)
