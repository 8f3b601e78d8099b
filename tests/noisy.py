"""What the tests of noisy K-FAC and noisy Adam share: data, models, and what both methods must fulfil."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from oracles import LinearGaussian, wide
from torch import Generator, Tensor
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.testing import assert_close

from compound.models import Method, build
from compound.models.noisy import Noisy
from compound.models.noisy_layer import Layer, Prior
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.types import Batch, Task, make_dataset

REAL = torch.float64
Table = dict[Any, Tensor]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=named_generator(seed), dtype=REAL)


def linear(rows: int = 60, orthogonal: bool = False) -> tuple[Tensor, Tensor]:
    """Three inputs, two targets; residuals are far larger than the noise the models are told of."""
    x = randn(rows, 3, seed=1) + 0.5
    if orthogonal:  # to each other and to the constant
        x = torch.linalg.qr(wide(x).flip(1))[0][:, 1:] * torch.tensor([20.0, 3.0, 9.0], dtype=REAL)
    return x, x @ randn(3, 2, seed=2) + 1.0 + 1.5 * randn(rows, 2, seed=3)


def regression(name: str, x: Tensor, y: Tensor, **options) -> tuple[Noisy, Batch]:
    """A linear model that is told of a noise of 0.3."""
    model = build(Method(name, widths=(), noise=0.3, **options), 3, Task("regression", 2)).double()
    model.likelihood.log_noise.data.fill_(math.log(0.3))  # to the last bit of float64
    data = make_dataset(x, y, model.task)
    model.on_fit_start(data, named_generator(0))
    return model, data


def classifier(name: str, **options) -> tuple[Noisy, Batch]:
    """A network 3-4-3 at its start."""
    model = build(Method(name, widths=(4,), **options), 3, Task("classification", 3)).double()
    data = make_dataset(randn(12, 3, seed=1), torch.arange(12) % 3, model.task)
    model.on_fit_start(data, named_generator(0))
    return model, data


def check_mean_of_the_posterior(model: Noisy, data: Batch, mean: Tensor) -> None:
    """The expected gradient of a linear model is 0 there."""
    (layer,) = model.layers
    with torch.no_grad():
        layer.mean.copy_(mean)
    for _ in range(2):  # W and its mirror image: their gradients are opposite
        model.loss(data, named_generator(5)).total.backward()
        layer.std.neg_()
    assert_close(layer.mean.grad, torch.zeros_like(layer.mean), rtol=0, atol=1e-11)


def check_training(model: Noisy, data: Batch, basis: Tensor, slack: float) -> None:
    """The mean of T steps lies within posterior sd / √T of the exact one."""
    optimizer = model.optimizer(TrainConfig(lr=0.2))
    (layer,) = model.layers
    stream, steps = named_generator(6), 600
    total = torch.zeros_like(layer.mean)
    for step in range(steps + 60):
        optimizer.zero_grad()
        model.loss(data, stream).total.backward()
        optimizer.step()
        total += layer.mean.detach() if step >= 60 else 0.0
    oracle = LinearGaussian(data.x, data.y, 0.09, 1.0)
    sd = oracle.covariance.diagonal().sqrt().unsqueeze(1)
    assert ((basis @ total / steps - oracle.mean).abs() < 4 * sd / math.sqrt(steps) + slack).all()


class Watched(NamedTuple):
    """Two draws of a network 3-4-3-3 and seven rows of different weights, with known scores."""

    model: Noisy
    data: Batch
    weight: Tensor  # (7,)
    scores: Tensor  # (2, 7, 3)


def watched(name: str, monkeypatch: pytest.MonkeyPatch) -> Watched:
    model = build(Method(name, widths=(4, 3), samples=2, decay=0.3), 3, Task("classification", 3)).double()
    given = randn(2, 7, 3, seed=2)
    weight = torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0, 0.5, 1.0], dtype=REAL)
    data = make_dataset(randn(7, 3, seed=1), torch.arange(7) % 3, model.task, weight)
    model.on_fit_start(data, named_generator(0))
    monkeypatch.setattr("compound.models.noisy.scores", lambda head, f, generator: given)
    return Watched(model, data, weight, given)


def check_running_mean(
    model: Noisy, data: Batch, expected: Callable[[list[Tensor]], Table], kept: Callable[[], Table]
) -> None:
    """Statistics after one batch, after two, and after one that is skipped.

    Expected: those of drawn weights (2, in + 1, out) each.
    """

    def drawn(stream: Generator) -> list[Tensor]:
        return [
            layer.draw(torch.randn(2, *layer.mean.shape, generator=stream, dtype=REAL)).detach()
            for layer in model.layers
        ]

    first = expected(drawn(named_generator(3)))
    model.loss(data, named_generator(3))
    assert_close(kept(), first, rtol=1e-10, atol=1e-12)
    second = expected(drawn(named_generator(4)))
    both = {key: 0.3 * first[key] + 0.7 * second[key] for key in first}
    model.count.fill_(model.config.stats_every)
    model.loss(data, named_generator(4))
    assert_close(kept(), both, rtol=1e-10, atol=1e-12)
    model.count.fill_(1)  # no statistics are due
    model.loss(data, named_generator(5))
    assert_close(kept(), both, rtol=1e-10, atol=1e-12)


class Surprised(NamedTuple):
    """A linear model that has seen 20,000 rows, all labelled with the class that it thinks least likely."""

    model: Noisy
    x: Tensor
    p: Tensor  # (rows, 3), what it thinks


def surprised(name: str) -> Surprised:
    model = build(Method(name, widths=()), 2, Task("classification", 3)).double()
    x = randn(20_000, 2, seed=1)
    p = torch.softmax(wide(x) @ model.layers[0].mean, -1).detach()
    data = make_dataset(x, p.argmin(-1), model.task)
    model.on_fit_start(data, named_generator(0))
    model.loss(data, named_generator(1))
    return Surprised(model, x, p)


def check_kl(layer: Layer, prior: Prior, covariance: Tensor) -> None:
    """That of the dense Gaussians; covariance of the row-major weights."""
    q = MultivariateNormal(layer.mean.reshape(-1), covariance)
    p = MultivariateNormal(
        torch.zeros(len(covariance), dtype=REAL), prior.variance * torch.eye(len(covariance), dtype=REAL)
    )
    assert_close(layer.kl(prior), kl_divergence(q, p), rtol=1e-10, atol=0)


def check_loss(model: Noisy, data: Batch, f: Tensor) -> None:
    """The tempered bound per row, λ = 0.3; f (4, rows, targets) of weights drawn by named_generator(2)."""
    loss = model.loss(data, named_generator(2))
    (layer,) = model.layers
    assert_close(loss.nll, -Normal(f, 0.3).log_prob(data.y).sum(-1).mean().detach())
    assert_close(loss.kl, 0.3 * layer.kl(model.prior).detach() / len(data))
    assert_close(loss.total.detach(), loss.nll + loss.kl)


def check_gradient(name: str) -> None:
    """Against differences of the loss, with the noise held."""
    model, data = classifier(name, samples=3)
    model.refresh()
    model.count.fill_(1)
    model.loss(data, named_generator(3)).total.backward()
    for layer in model.layers:
        direction = randn(*layer.mean.shape, seed=9)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                layer.mean.add_(direction, alpha=sign * 1e-5)
                values.append(float(model.loss(data, named_generator(3)).total))
                layer.mean.add_(direction, alpha=-sign * 1e-5)
        assert_close(
            float((layer.mean.grad * direction).sum()), (values[0] - values[1]) / 2e-5, rtol=1e-6, atol=1e-9
        )


def spread_out(name: str, fill: Callable[[int, Layer], object]) -> Noisy:
    """A network 2-4-2 of thirty rows, with the statistics that `fill` puts into each layer."""
    model = build(Method(name, widths=(4,), noise=0.3), 2, Task("regression", 2)).double()
    model.size.fill_(30.0)
    for k, layer in enumerate(model.layers):
        fill(k, layer)
    model.refresh()
    return model


def check_spread(model: Noisy, x: Tensor) -> None:
    """Means and covariances of f, predicted and of 20,000 drawn networks, within standard errors."""
    n = 20_000
    with torch.no_grad():
        first, last = (
            layer.draw(randn(n, *layer.mean.shape, seed=k)) for k, layer in enumerate(model.layers)
        )
        f = wide((wide(x) @ first).relu()) @ last  # (draws, rows, targets)
    ours = model.predict(x, named_generator(1), n, 1).means
    assert ((f.mean(0) - ours.mean(0)).abs() < 5 * f.std(0) * math.sqrt(2 / n)).all()
    centred = [z - z.mean(0) for z in (f, ours)]
    products = [z.unsqueeze(-1) * z.unsqueeze(-2) for z in centred]  # (draws, rows, targets, targets)
    error = (sum(p.var(0) for p in products) / n).sqrt()
    assert ((products[0].mean(0) - products[1].mean(0)).abs() < 5 * error).all()
