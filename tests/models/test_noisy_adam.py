"""Noisy Adam against Bayesian linear regression, gradients row by row, and torch's own distributions."""

import math

import pytest
import torch
from oracles import LinearGaussian, wide
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from compound.models import Draws, Method, build, noisy
from compound.models.noisy import Prior
from compound.models.noisy_adam import DiagonalLayer
from compound.train import Settings
from compound.types import Task, fork, whole

REAL = torch.float64


def randn(*shape, seed=0):
    return torch.randn(shape, generator=fork(seed), dtype=REAL)


def linear(orthogonal: bool, rows=60):
    """Residuals are far larger than the noise the models are told of."""
    x = randn(rows, 3, seed=1) + 0.5
    if orthogonal:  # to each other and to the constant
        x = torch.linalg.qr(wide(x).flip(1))[0][:, 1:] * torch.tensor([20.0, 3.0, 9.0], dtype=REAL)
    return x, x @ randn(3, 2, seed=2) + 1.0 + 1.5 * randn(rows, 2, seed=3)


def regression(x, y, **options):
    model = build(Method("noisy-adam", widths=(), noise=0.3, **options), 3, Task("targets", 2)).double()
    model.head.log_noise.data.fill_(math.log(0.3))  # to the last bit of float64
    data = whole(x, y, model.task)
    model.start(data, fork(0))
    return model, data


def exact(model, x):
    """The squares of infinitely many drawn labels: E[a_i²] / s²."""
    model.layers[0].squares.copy_((wide(x).square().mean(0) / 0.09).unsqueeze(1).expand(-1, 2))
    model.refresh()


@pytest.mark.parametrize("lam", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("orthogonal", [True, False])
def test_precision_is_the_diagonal_of_the_posterior_s(lam, orthogonal):
    """Not one over the diagonal of its covariance; on an orthogonal design the two agree. The mean is the exact one."""
    x, y = linear(orthogonal)
    model, data = regression(x, y, lam=lam, prior_variance=2.0, samples=1)
    exact(model, x)
    (layer,) = model.layers
    oracle = LinearGaussian(x, y, 0.09, 2.0 / lam)
    wanted = lam / oracle.precision.diagonal()
    assert_close(layer.spread.square(), wanted.unsqueeze(1).expand(-1, 2), rtol=1e-12, atol=0)
    gap = (lam * oracle.covariance.diagonal() - wanted).abs().max()
    assert gap < 1e-12 if orthogonal else gap > 1e-5

    with torch.no_grad():
        layer.mean.copy_(oracle.mean)
    for _ in range(2):  # w and its mirror image: their gradients are opposite
        model.loss(data, fork(5)).total.backward()
        layer.spread.neg_()
    assert_close(layer.mean.grad, torch.zeros_like(layer.mean), rtol=0, atol=1e-11)


def test_training_finds_the_posterior():
    """The mean of T steps lies within posterior sd / √T of the exact one, for every step's noise is a posterior draw."""
    x, y = linear(True, 100)
    model, data = regression(x, y, stats_every=1, refresh_every=1, samples=1, velocity="mean", step_damping=0.0, kl_clip=0.0)
    optimizer = model.optimizer(Settings(rate=0.2))
    (layer,) = model.layers
    stream, steps = fork(6), 600
    total = torch.zeros_like(layer.mean)
    for step in range(steps + 60):
        optimizer.zero_grad()
        model.loss(data, stream).total.backward()
        optimizer.step()
        total += layer.mean.detach() if step >= 60 else 0.0
    oracle = LinearGaussian(x, y, 0.09, 1.0)
    sd = oracle.covariance.diagonal().sqrt().unsqueeze(1)
    assert ((total / steps - oracle.mean).abs() < 4 * sd / math.sqrt(steps) + 1e-5).all()
    # 399 effective batches of 100 rows: the sd of a mean of a² ε² / s² is √(2 E a⁴ / n) / s²; residuals are five times as large
    error = (2 * wide(x).pow(4).mean(0) / (399 * 100)).sqrt() / 0.09
    assert ((layer.squares - (wide(x).square().mean(0) / 0.09).unsqueeze(1)).abs() < 4.5 * error.unsqueeze(1)).all()


def test_squares_are_means_over_rows(monkeypatch):
    """Of the squared gradients of every row at every drawn w, by a loop and autograd; the running mean; rows weigh what they weigh."""
    model = build(Method("noisy-adam", widths=(4, 3), samples=2, decay=0.3), 3, Task("classes", 3)).double()
    x, given = randn(7, 3, seed=1), randn(2, 7, 3, seed=2)
    weight = torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0, 0.5, 1.0], dtype=REAL)
    data = whole(x, torch.arange(7) % 3, model.task, weight)
    model.start(data, fork(0))
    monkeypatch.setattr(noisy, "scores", lambda head, f, generator: given)

    def expected(stream):
        weights = [layer.draw(torch.randn(2, *layer.mean.shape, generator=stream, dtype=REAL)).detach() for layer in model.layers]
        sums = [torch.zeros_like(layer.mean) for layer in model.layers]
        for s in range(2):
            for row in range(7):
                drawn = [w[s].clone().requires_grad_() for w in weights]
                f = wide((wide((wide(x[row]) @ drawn[0]).relu()) @ drawn[1]).relu()) @ drawn[2]
                for total, g in zip(sums, torch.autograd.grad(f @ given[s, row], drawn), strict=True):
                    total += weight[row] * g.square() / (2 * weight.sum())
        return sums

    first = expected(fork(3))
    model.loss(data, fork(3))
    for layer, one in zip(model.layers, first, strict=True):
        assert_close(layer.squares, one, rtol=1e-10, atol=1e-12)
    second = expected(fork(4))
    model.count.fill_(model.config.stats_every)
    model.loss(data, fork(4))
    for layer, one, two in zip(model.layers, first, second, strict=True):
        assert_close(layer.squares, 0.3 * one + 0.7 * two, rtol=1e-10, atol=1e-12)


def test_squares_are_the_diagonal_of_the_fisher_information():
    """Classes: E[a_i² p_j (1 - p_j)], while every label of the data is the one the model thinks least likely."""
    model = build(Method("noisy-adam", widths=()), 2, Task("classes", 3)).double()
    x = randn(20_000, 2, seed=1)
    p = torch.softmax(wide(x) @ model.layers[0].mean, -1).detach()
    data = whole(x, p.argmin(-1), model.task)
    model.start(data, fork(0))
    model.loss(data, fork(1))
    fisher = wide(x).square().T @ (p * (1 - p)) / len(x)
    error = (wide(x).pow(4).mean(0) / len(x)).sqrt().unsqueeze(1)  # a squared score is at most 1
    assert ((model.layers[0].squares - fisher).abs() < 4 * error).all()


def test_kl_is_that_of_torch():
    layer, prior = DiagonalLayer(randn(3, 2, seed=4)).double(), Prior(0.02, 0.5)
    layer.squares.copy_(randn(3, 2, seed=5).square())
    layer.refresh(prior)
    q = MultivariateNormal(layer.mean.reshape(-1), torch.diag(0.02 / (layer.squares + 0.04).reshape(-1)))
    p = MultivariateNormal(torch.zeros(6, dtype=REAL), 0.5 * torch.eye(6, dtype=REAL))
    assert_close(layer.kl(prior), kl_divergence(q, p), rtol=1e-10, atol=0)


def test_loss_is_the_tempered_bound_per_row():
    x, y = linear(False, 20)
    model, data = regression(x, y, lam=0.3, samples=4)
    exact(model, x)
    loss = model.loss(data, fork(2))
    (layer,) = model.layers
    f = wide(x) @ (layer.mean + layer.spread * randn(4, 4, 2, seed=2))
    assert_close(loss.nll, -torch.distributions.Normal(f, 0.3).log_prob(y).sum(-1).mean().detach())
    assert_close(loss.kl, 0.3 * layer.kl(model.prior).detach() / 20)
    assert_close(loss.total.detach(), loss.nll + loss.kl)


@pytest.mark.parametrize(("velocity", "bound"), [("sum", 0.0), ("mean", 0.0), ("sum", 1e-4)])
def test_step_divides_by_the_squares_without_a_root(velocity, bound):
    """Two steps written out, with momentum and the trust region."""
    x, y = linear(False)
    model, _ = regression(x, y, velocity=velocity, step_damping=0.01, kl_clip=bound, samples=1, stats_every=1000)
    exact(model, x)
    model.layers[0].squares.mul_(randn(4, 2, seed=7).square() + 0.1)
    model.refresh()
    (layer,) = model.layers
    optimizer = model.optimizer(Settings(rate=0.05))
    damped = layer.squares + 1 / 60 + 0.01
    wanted, kept = layer.mean.detach().clone(), torch.zeros_like(damped)
    for step in range(2):
        gradient = 100 * randn(4, 2, seed=step)
        layer.mean.grad = gradient.clone()
        optimizer.step()
        shrink = min(1.0, math.sqrt(bound / (0.05**2 * (gradient.square() / damped).sum()))) if bound else 1.0
        kept = 0.9 * kept + (0.1 * gradient if velocity == "mean" else shrink * gradient / damped)
        wanted -= 0.05 * (kept / (1 - 0.9 ** (step + 1)) / damped if velocity == "mean" else kept)
        assert_close(layer.mean.detach(), wanted, rtol=1e-10, atol=1e-12)


def test_gradient_is_that_of_the_loss():
    """Against differences, with the noise held."""
    model = build(Method("noisy-adam", widths=(4,), samples=3), 3, Task("classes", 3)).double()
    data = whole(randn(12, 3, seed=1), torch.arange(12) % 3, model.task)
    model.start(data, fork(0))
    model.refresh()
    model.count.fill_(1)
    model.loss(data, fork(3)).total.backward()
    for layer in model.layers:
        direction = randn(*layer.mean.shape, seed=9)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                layer.mean.add_(direction, alpha=sign * 1e-5)
                values.append(float(model.loss(data, fork(3)).total))
                layer.mean.add_(direction, alpha=-sign * 1e-5)
        assert_close(float((layer.mean.grad * direction).sum()), (values[0] - values[1]) / 2e-5, rtol=1e-6, atol=1e-9)


def test_predicted_spread_is_that_of_drawn_networks():
    """Means and variances of f, 20,000 draws each way, within standard errors; one layer alone exactly."""
    model = build(Method("noisy-adam", widths=(4,), noise=0.3), 2, Task("targets", 2)).double()
    model.size.fill_(30.0)
    for k, layer in enumerate(model.layers):
        layer.squares.copy_(randn(*layer.mean.shape, seed=k).square())
    model.refresh()
    x, n = randn(2, 2, seed=8), 20_000
    mean, std = model.layers[0].moments(wide(x))
    assert_close(mean, wide(x) @ model.layers[0].mean)
    assert_close(std.square(), wide(x).square() @ (1 / 30 / (model.layers[0].squares + 1 / 30)))
    with torch.no_grad():
        first, last = (layer.draw(randn(n, *layer.mean.shape, seed=k)) for k, layer in enumerate(model.layers))
        f = wide((wide(x) @ first).relu()) @ last  # (draws, rows, targets)
    ours = model.predict(x, Draws(n, 1), fork(1)).means
    assert ((f.mean(0) - ours.mean(0)).abs() < 5 * f.std(0) * math.sqrt(2 / n)).all()
    squares = [(z - z.mean(0)).square() for z in (f, ours)]
    error = (sum(s.var(0) for s in squares) / n).sqrt()
    assert ((squares[0].mean(0) - squares[1].mean(0)).abs() < 5 * error).all()
