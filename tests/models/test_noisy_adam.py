"""Noisy Adam against Bayesian linear regression, gradients row by row, and torch's own distributions."""

import math

import noisy
import pytest
import torch
from noisy import REAL, linear, randn
from oracles import LinearGaussian, wide
from torch.testing import assert_close

from compound.models.noisy_adam import DiagonalLayer
from compound.models.noisy_layer import Prior
from compound.train.config import TrainConfig


def regression(x, y, **options):
    return noisy.regression("noisy-adam", x, y, **options)


def exact(model, x):
    """The squares of infinitely many drawn labels: E[a_i²] / s²."""
    model.layers[0].squares.copy_((wide(x).square().mean(0) / 0.09).unsqueeze(1).expand(-1, 2))
    model.refresh()


@pytest.mark.parametrize("lam", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("orthogonal", [True, False])
def test_precision_is_the_diagonal_of_the_posterior_s(lam, orthogonal):
    """Not one over the diagonal of its covariance; on an orthogonal design the two agree.

    The mean is the exact one.
    """
    x, y = linear(orthogonal=orthogonal)
    model, data = regression(x, y, lam=lam, prior_variance=2.0, samples=1)
    exact(model, x)
    (layer,) = model.layers
    oracle = LinearGaussian(x, y, 0.09, 2.0 / lam)
    wanted = lam / oracle.precision.diagonal()
    assert_close(layer.std.square(), wanted.unsqueeze(1).expand(-1, 2), rtol=1e-12, atol=0)
    gap = (lam * oracle.covariance.diagonal() - wanted).abs().max()
    assert gap < 1e-12 if orthogonal else gap > 1e-5
    noisy.check_mean_of_the_posterior(model, data, oracle.mean)


def test_training_finds_the_posterior():
    x, y = linear(100, orthogonal=True)
    model, data = regression(
        x, y, stats_every=1, refresh_every=1, samples=1, velocity="mean", step_damping=0.0, kl_clip=0.0
    )
    noisy.check_training(model, data, torch.eye(4, dtype=REAL), slack=1e-5)
    # 399 effective batches of 100 rows: the sd of a mean of a² ε² / s² is √(2 E a⁴ / n) / s²;
    # residuals are five times as large
    error = (2 * wide(x).pow(4).mean(0) / (399 * 100)).sqrt() / 0.09
    assert (
        (model.layers[0].squares - (wide(x).square().mean(0) / 0.09).unsqueeze(1)).abs()
        < 4.5 * error.unsqueeze(1)
    ).all()


def test_squares_are_means_over_rows(monkeypatch):
    """Of the squared gradients of every row at every drawn w, by a loop and autograd; the running mean.

    Rows weigh what they weigh.
    """
    model, data, weight, given = noisy.watched("noisy-adam", monkeypatch)

    def expected(weights):
        sums = {k: torch.zeros_like(layer.mean) for k, layer in enumerate(model.layers)}
        for s in range(2):
            for row in range(7):
                drawn = [w[s].clone().requires_grad_() for w in weights]
                f = wide((wide((wide(data.x[row]) @ drawn[0]).relu()) @ drawn[1]).relu()) @ drawn[2]
                for k, g in enumerate(torch.autograd.grad(f @ given[s, row], drawn)):
                    sums[k] += weight[row] * g.square() / (2 * weight.sum())
        return sums

    noisy.check_running_mean(
        model, data, expected, lambda: {k: layer.squares for k, layer in enumerate(model.layers)}
    )


def test_squares_are_the_diagonal_of_the_fisher_information():
    """Classes: E[a_i² p_j (1 - p_j)], whatever the labels of the data."""
    model, x, p = noisy.surprised("noisy-adam")
    fisher = wide(x).square().T @ (p * (1 - p)) / len(x)
    error = (wide(x).pow(4).mean(0) / len(x)).sqrt().unsqueeze(1)  # a squared score is at most 1
    assert ((model.layers[0].squares - fisher).abs() < 4 * error).all()


def test_kl_is_that_of_torch():
    layer, prior = DiagonalLayer(randn(3, 2, seed=4)).double(), Prior(0.02, 0.5)
    layer.squares.copy_(randn(3, 2, seed=5).square())
    layer.refresh(prior)
    noisy.check_kl(layer, prior, torch.diag(0.02 / (layer.squares + 0.04).reshape(-1)))


def test_loss_is_the_tempered_bound_per_row():
    x, y = linear(20)
    model, data = regression(x, y, lam=0.3, samples=4)
    exact(model, x)
    (layer,) = model.layers
    noisy.check_loss(model, data, wide(x) @ (layer.mean + layer.std * randn(4, 4, 2, seed=2)))


@pytest.mark.parametrize(("velocity", "bound"), [("sum", 0.0), ("mean", 0.0), ("sum", 1e-4)])
def test_step_divides_by_the_squares_without_a_root(velocity, bound):
    """Two steps written out, with momentum and the trust region."""
    x, y = linear()
    model, _ = regression(
        x, y, velocity=velocity, step_damping=0.01, kl_clip=bound, samples=1, stats_every=1000
    )
    exact(model, x)
    model.layers[0].squares.mul_(randn(4, 2, seed=7).square() + 0.1)
    model.refresh()
    (layer,) = model.layers
    optimizer = model.optimizer(TrainConfig(lr=0.05))
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
    noisy.check_gradient("noisy-adam")


def test_predicted_spread_is_that_of_drawn_networks():
    """One layer alone exactly."""
    model = noisy.spread_out(
        "noisy-adam", lambda k, layer: layer.squares.copy_(randn(*layer.mean.shape, seed=k).square())
    )
    x, first = randn(2, 2, seed=8), model.layers[0]
    mean, std = first.moments(wide(x))
    assert_close(mean, wide(x) @ first.mean)
    assert_close(std.square(), wide(x).square() @ (1 / 30 / (first.squares + 1 / 30)))
    noisy.check_spread(model, x)
