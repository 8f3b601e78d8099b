"""Dropout against all its masks, its penalty against the closed-form minimum, naive prediction."""

import itertools
import math

import pytest
import torch
from oracles import floored
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.testing import assert_close

from compound.models import Method, build, mc_dropout
from compound.ops.clamp import clipped_relu
from compound.random import named_generator
from compound.types import Task, make_dataset

DOUBLE = torch.float64


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=named_generator(seed), dtype=DOUBLE)


def all_masks(units: int, rate: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pattern of kept units (2^units, units), and its probability."""
    kept = torch.tensor(list(itertools.product([0.0, 1.0], repeat=units)), dtype=DOUBLE)
    return kept, ((1 - rate) * kept + rate * (1 - kept)).prod(-1)


def shaken(method: Method, inputs: int, task: Task, seed: int = 0):
    """A model in float64 with biases that are not 0."""
    model = floored(build(method, inputs, task, seed).double())
    with torch.no_grad():
        for layer in model.network.layers:
            layer.bias.copy_(numbers(seed + 50, *layer.bias.shape))
    return model


@pytest.mark.parametrize(
    "method",
    [Method("mc-dropout", widths=(7,), rate=0.3), Method("mc-dropout", widths=(), input_rate=0.3)],
    ids=["hidden", "inputs"],
)
def test_draws_have_the_moments_of_all_masks(method):
    """mean = h W + b, Cov_ij = p / (1 - p) sum_k h_k² W_ki W_kj."""
    model, n = shaken(method, 7, Task("regression", 2)), 40_000
    x = numbers(1, 3, 7)
    h = clipped_relu(model.network.layers[0](x.unsqueeze(0)))[0] if model.config.widths else x
    weight, bias = model.network.layers[-1].weight[0], model.network.layers[-1].bias[0]
    kept, probability = all_masks(7, 0.3)
    f = (kept.unsqueeze(1) * h / 0.7) @ weight + bias  # (masks, rows, 2)
    mean = torch.einsum("m,mro->ro", probability, f).detach()
    covariance = torch.einsum("m,mri,mrj->rij", probability, f - mean, f - mean).detach()
    assert_close(mean, (h @ weight + bias).detach(), rtol=1e-12, atol=1e-12)
    assert_close(
        covariance,
        (0.3 / 0.7 * torch.einsum("rk,ki,kj->rij", h.square(), weight, weight)).detach(),
        rtol=1e-12,
        atol=1e-12,
    )

    p = model.predict(x, named_generator(2), n, 1)
    draws = p.means - mean
    variance = covariance.diagonal(dim1=1, dim2=2)
    assert ((p.mean - mean).abs() < 4 * (variance / n).sqrt()).all()
    products = draws.unsqueeze(-1) * draws.unsqueeze(-2)  # (n, rows, 2, 2)
    assert ((products.mean(0) - covariance).abs() < 4 * products.std(0) / math.sqrt(n)).all()
    assert_close(p.epistemic, draws.var(0), rtol=1e-10, atol=1e-12)  # every draw is posterior
    assert_close(p.component, model.likelihood.variance().expand(3, 2).detach(), rtol=1e-12, atol=0)
    assert p.mixing.abs().max() < 1e-12


def test_training_drops_row_by_row():
    """The loss of many equal rows is the expectation over masks.

    ((y - mean)² + var) / 2σ² and the constant.
    """
    model, rows = (
        shaken(Method("mc-dropout", widths=(6,), rate=0.4, noise=0.5), 3, Task("regression", 1)),
        20_000,
    )
    x, y = numbers(3, 1, 3), numbers(4, 1, 1)
    h = clipped_relu(model.network.layers[0](x.unsqueeze(0)))[0]
    weight, bias = model.network.layers[1].weight[0], model.network.layers[1].bias[0]
    kept, probability = all_masks(6, 0.4)
    each = -Normal((kept * h / 0.6) @ weight + bias, 0.5).log_prob(y)[:, 0]  # (masks,)
    mean = (probability * each).sum()
    spread = (probability * (each - mean).square()).sum().sqrt()
    loss = model.loss(make_dataset(x.expand(rows, -1), y.expand(rows, -1), model.task), (named_generator(5),))
    assert (loss.nll - mean).abs() < 4 * spread / math.sqrt(rows)
    assert loss.kl == 0
    again = model.loss(
        make_dataset(x.expand(rows, -1), y.expand(rows, -1), model.task), (named_generator(6),)
    )
    assert again.nll != loss.nll


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_nothing_dropped_is_the_plain_network_bit_for_bit(kind):
    task = Task(kind, 3)
    model = build(Method("mc-dropout", widths=(9, 8), rate=0.0), 4, task, 1)
    plain = build(Method("map", widths=(9, 8), precision=0.0), 4, task, 1)
    x = torch.randn(30, 4, generator=named_generator(7))
    y = torch.arange(30) % 3 if kind == "classification" else torch.randn(30, 3, generator=named_generator(8))
    data = make_dataset(x, y, task)
    for each in (model, plain):
        each.on_fit_start(data, named_generator(0))
    ours, others = model.loss(data, (named_generator(0),)), plain.loss(data, (named_generator(0),))
    assert torch.equal(ours.total, others.total)
    ours.total.backward()
    others.total.backward()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
    assert torch.equal(
        model.predict(x, named_generator(0), 1, 1).log_prob(y),
        plain.predict(x, named_generator(0), 1, 1).log_prob(y),
    )


def test_predictive_density_of_targets_is_the_mixture_over_masks():
    model = shaken(Method("mc-dropout", widths=(6,), noise=0.4), 3, Task("regression", 2))
    x, y = numbers(9, 8, 3), numbers(10, 8, 2)
    p = model.predict(x, named_generator(1), 25, 1)
    normals = Independent(Normal(p.means.transpose(0, 1), torch.tensor(0.4, dtype=DOUBLE)), 1)
    oracle = MixtureSameFamily(Categorical(torch.ones(8, 25, dtype=DOUBLE)), normals)
    assert_close(p.log_prob(y), oracle.log_prob(y), rtol=1e-6, atol=1e-6)  # log 0.4 is kept in float32
    assert_close(
        p.variance, oracle.variance + p.means.var(0) / 25, rtol=1e-6, atol=0
    )  # 25 draws vary about the true mean, too


@pytest.mark.parametrize(
    "options", [{"widths": (6,)}, {"widths": (6, 5), "rate": 0.2}, {"widths": (6,), "input_rate": 0.3}]
)
def test_prediction_is_the_full_pass_under_the_same_masks(options):
    """Every draw by itself from the inputs on; the answer is the mean of their probabilities."""
    model = shaken(Method("mc-dropout", **options), 4, Task("classification", 3), 3)
    x, y, n = 2 * numbers(11, 500, 4), torch.arange(500) % 3, 13  # more rows times draws than go together
    p = model.predict(x, named_generator(12), n, 1)
    g, layers = named_generator(12), model.network.layers
    first = 0 if model.config.input_rate else 1
    masks = [
        mc_dropout.mask(rate, (n, 1, layer.inputs), x, g)
        for layer, rate in list(zip(layers, model.rates, strict=True))[first:]
    ]
    masks = [torch.ones(n, 1, 4, dtype=DOUBLE)] * first + masks
    probs = []
    for k in range(n):
        h = x
        for layer, values in zip(layers, masks, strict=True):
            f = (h * values[k]) @ layer.weight[0] + layer.bias[0]
            h = f.clamp(min=0)
        probs.append(torch.softmax(f, -1).detach())
    probs = torch.stack(probs)
    assert_close(p.probs, probs.mean(0), rtol=1e-10, atol=1e-12)
    assert_close(p.log_prob(y), probs.mean(0)[torch.arange(500), y].log(), rtol=1e-10, atol=1e-12)
    aleatoric = Categorical(probs).entropy().mean(0)
    assert_close(p.aleatoric, aleatoric, rtol=1e-10, atol=1e-10)
    assert_close(p.epistemic, Categorical(probs.mean(0)).entropy() - aleatoric, rtol=1e-8, atol=1e-10)


def test_still_random_in_eval_mode():
    model = build(Method("mc-dropout", widths=(20,)), 3, Task("classification", 3)).eval()
    x = torch.randn(10, 3, generator=named_generator(13))
    p, q = model.predict(x, named_generator(1), 4), model.predict(x, named_generator(2), 4)
    assert not torch.equal(p.probs, q.probs) and (p.epistemic > 0).all()
    data = make_dataset(x, torch.arange(10) % 3, model.task)
    assert model.loss(data, (named_generator(1),)).total != model.loss(data, (named_generator(2),)).total


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_masks_keep_the_mean(rate):
    n = 100_000
    values = mc_dropout.mask(rate, (n,), torch.empty(0, dtype=DOUBLE), named_generator(14))
    assert set(values.unique().tolist()) <= {0.0, 1 / (1 - rate)}
    assert abs((values > 0).double().mean() - (1 - rate)) <= 4 * math.sqrt(rate * (1 - rate) / n)
    assert abs(values.mean() - 1) <= 4 * math.sqrt(rate / (1 - rate) / n)
    together = (values[: n // 2] > 0).double() * (
        values[n // 2 :] > 0
    ).double()  # units are dropped independently
    assert abs(together.mean() - (1 - rate) ** 2) <= 4 * together.std() / math.sqrt(n / 2)
    side = (values[:-1] > 0).double() * (values[1:] > 0).double()
    assert abs(side.mean() - (1 - rate) ** 2) <= 8 * side.std() / math.sqrt(n)


def test_penalty_gives_the_minimum_of_the_variational_bound(monkeypatch):
    """q = 1 - p, τ = 1/σ²: M = (τ (q² XᵀX + q p diag sum x²) + q ℓ² I)⁻¹ τ q Xᵀy, and the weight is W = q M.

    All masks of every row at once, weighted by their probability, instead of random ones.
    """
    p, length, noise, rows, units = 0.3, 1.7, 0.6, 12, 4
    x, y = numbers(15, rows, units), numbers(16, rows, 1)
    method = Method("mc-dropout", widths=(), input_rate=p, length_scale=length, noise=noise)
    model = build(method, units, Task("regression", 1)).double()
    kept, probability = all_masks(units, p)
    monkeypatch.setattr(mc_dropout, "mask", lambda *_: kept.repeat(rows, 1) / (1 - p))
    count = len(kept)
    weight = probability.repeat(rows)
    data = make_dataset(x.repeat_interleave(count, 0), y.repeat_interleave(count, 0), model.task, weight)
    assert_close(data.size, torch.tensor(float(rows), dtype=DOUBLE))
    (layer,) = model.network.layers
    layer.bias.requires_grad_(False)  # stays 0
    optimizer = torch.optim.LBFGS(
        [layer.weight], max_iter=200, tolerance_grad=1e-13, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        total = model.loss(data, (named_generator(0),)).total
        total.backward()
        return total

    optimizer.step(closure)
    q, tau = 1 - p, noise**-2
    inner = tau * (q * q * x.T @ x + q * p * torch.diag(x.square().sum(0))) + q * length**2 * torch.eye(
        units, dtype=DOUBLE
    )
    exact = torch.linalg.solve(inner, tau * q * x.T @ y)
    assert_close(layer.weight[0].detach(), q * exact, rtol=0, atol=1e-8)


def test_penalty_is_the_kl_to_the_prior():
    """(1 - p) / 2 ℓ² |M|² of every weight M = W / (1 - p), ℓ² / 2 of every bias, over the number of rows."""
    model = shaken(
        Method("mc-dropout", widths=(5,), rate=0.25, input_rate=0.1, length_scale=2.0),
        3,
        Task("classification", 2),
    )
    data = make_dataset(numbers(17, 8, 3), torch.arange(8) % 2, model.task)
    first, last = model.network.layers
    prior = Normal(torch.zeros((), dtype=DOUBLE), 0.5)
    at_zero = prior.log_prob(torch.zeros((), dtype=DOUBLE))
    cost = sum(
        (1 - p) * (at_zero - prior.log_prob(layer.weight / (1 - p))).sum()
        + (at_zero - prior.log_prob(layer.bias)).sum()
        for layer, p in ((first, 0.1), (last, 0.25))
    )
    loss = model.loss(data, (named_generator(0),))
    assert_close(loss.kl, (cost / 8).detach(), rtol=1e-12, atol=0)
    assert_close(loss.total, (loss.nll + loss.kl).sum(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": 1.0}, "rate is 1.0"),
        ({"input_rate": -0.1}, "input_rate is -0.1"),
        ({"length_scale": -1.0}, "length_scale is -1.0"),
    ],
)
def test_bad_options_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        build(Method("mc-dropout", **options), 2, Task("classification", 2))
