"""Noisy K-FAC against Bayesian linear regression, dense Kronecker algebra and torch's own optimizers."""

import math
from dataclasses import replace

import noisy
import pytest
import torch
from noisy import REAL, linear, randn
from oracles import LinearGaussian, wide
from torch.testing import assert_close

from compound.models import Method, build
from compound.models.noisy import scores
from compound.models.noisy_kfac import KroneckerLayer
from compound.models.noisy_layer import Prior
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.types import Task

EYE = torch.eye(2, dtype=REAL)


def regression(x, y, **options):
    return noisy.regression("noisy-kfac", x, y, **options)


def fill(layer, seed=0):
    """Random factors."""
    rows, columns = layer.mean.shape
    for k, (name, size) in enumerate(
        (("outputs", columns),) if layer.rotated else (("outputs", columns), ("inputs", rows))
    ):
        root = randn(size, size, seed=seed + k)
        getattr(layer, name).copy_(root @ root.T / size)


def layer_of(rows, columns, damping="unfactored", prior=None):
    layer = KroneckerLayer(randn(rows, columns, seed=4), damping, rotated=False).double()
    fill(layer)
    if prior is not None:
        layer.refresh(prior)
    return layer


def dense(layer, damping):
    """Damped precision of the row-major weights, written out."""
    a, g = layer.inputs, layer.outputs
    eye_a, eye_g = (torch.eye(len(m), dtype=REAL) for m in (a, g))
    if layer.damping == "unfactored":
        return torch.kron(a, g) + damping * torch.kron(eye_a, eye_g)
    pi = math.sqrt((a.trace() / len(a)) / (g.trace() / len(g)))
    return torch.kron(a + pi * math.sqrt(damping) * eye_a, g + math.sqrt(damping) / pi * eye_g)


def covariance(layer):
    """Of the row-major weights, from the draws that unit noise gives."""
    count = layer.mean.numel()
    root = (layer.draw(torch.eye(count, dtype=REAL).view(count, *layer.mean.shape)) - layer.mean).flatten(
        1
    )  # (noise, weights)
    return root.T @ root


@pytest.mark.parametrize("lam", [0.1, 0.5, 1.0])
def test_linear_gaussian_posterior_is_exact(lam):
    """Covariance λ (X^T X / s² + λ/η)^-1; the expected gradient is 0 at the mean of the same regression."""
    x, y = linear()
    model, data = regression(x, y, lam=lam, prior_variance=2.0, samples=1)
    (layer,) = model.layers
    layer.outputs.copy_(EYE / 0.09)
    model.refresh()
    oracle = LinearGaussian(x, y, 0.09, 2.0 / lam)
    turn = torch.kron(model.rotation, EYE)
    assert_close(
        turn @ covariance(layer) @ turn.T,
        torch.kron((lam * oracle.covariance).contiguous(), EYE),
        rtol=0,
        atol=1e-13,
    )
    noisy.check_mean_of_the_posterior(model, data, model.rotation.T @ oracle.mean)


def test_factored_damping_makes_variances_too_small():
    x, y = linear()
    model, _ = regression(x, y, damping="factored", prior_variance=0.05)
    (layer,) = model.layers
    layer.outputs.copy_(EYE / 0.09)
    model.refresh()
    turn = torch.kron(model.rotation, EYE)
    ratio = (turn @ covariance(layer) @ turn.T).diagonal()[::2] / LinearGaussian(
        x, y, 0.09, 0.05
    ).covariance.diagonal()
    assert (ratio < 0.999).all() and (ratio > 0.5).all()


def test_training_finds_the_posterior():
    x, y = linear(100)
    model, data = regression(
        x, y, prior_variance=1.0, stats_every=1, samples=1, velocity="mean", step_damping=0.0, kl_clip=0.0
    )
    noisy.check_training(model, data, model.rotation, slack=1e-6)
    # statistics of labels the model drew: 199 effective batches of 100;
    # residuals of the data are five times as large
    error = math.sqrt(2 / (199 * 100)) / 0.09
    assert_close(model.layers[0].outputs, EYE / 0.09, rtol=0, atol=4 * error)


@pytest.mark.parametrize("damping", ["unfactored", "factored"])
@pytest.mark.parametrize(("rows", "columns"), [(4, 2), (3, 3)])
def test_draws_have_the_dense_covariance(damping, rows, columns):
    prior = Prior(0.02, 0.5)
    layer = layer_of(rows, columns, damping, prior)
    assert_close(covariance(layer), 0.02 * torch.linalg.inv(dense(layer, 0.04)), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("damping", ["unfactored", "factored"])
def test_prediction_has_the_moments_of_drawn_weights(damping):
    layer = layer_of(4, 3, damping, Prior(0.02, 0.5))
    a = randn(5, 4, seed=7)
    mean, std = layer.moments(a)
    assert_close(mean, a @ layer.mean)
    for row, own in zip(a, std, strict=True):
        root = layer.outputs_from_basis(torch.diag(own))  # (noise, out)
        lift = torch.kron(row, torch.eye(3, dtype=REAL))  # (out, weights)
        assert_close(root.T @ root, lift @ covariance(layer) @ lift.T, rtol=1e-10, atol=1e-14)


def test_predicted_spread_is_that_of_drawn_networks():
    noisy.check_spread(noisy.spread_out("noisy-kfac", lambda k, layer: fill(layer)), randn(2, 2, seed=8))


def test_kl_is_that_of_the_dense_gaussians():
    prior = Prior(0.02, 0.5)
    layer = layer_of(3, 2, prior=prior)
    noisy.check_kl(layer, prior, covariance(layer))


def test_loss_is_the_tempered_bound_per_row():
    x, y = linear(20)
    model, data = regression(x, y, lam=0.3, samples=4)
    model.refresh()
    (layer,) = model.layers
    noisy.check_loss(model, data, model.augmented_inputs(x) @ layer.draw(randn(4, *layer.mean.shape, seed=2)))


def test_gradient_is_that_of_the_loss():
    noisy.check_gradient("noisy-kfac")


def test_scores_of_drawn_labels_have_the_fisher_covariance():
    """Classes: diag p - p p^T. Targets: 1 / s². The labels of the data play no part."""
    n = 40_000
    logits = randn(3, seed=1)
    g = scores(
        build("noisy-kfac", 3, Task("classification", 3)).likelihood,
        logits.expand(1, n, 3),
        named_generator(2),
    )[0]
    p = logits.softmax(0)
    products = g.unsqueeze(-1) * g.unsqueeze(-2)
    assert (
        (products.mean(0) - (torch.diag(p) - torch.outer(p, p))).abs()
        < 4 * products.std(0) / math.sqrt(n) + 1e-12
    ).all()
    head = build(Method("noisy-kfac", noise=0.3), 3, Task("regression", 2)).double().likelihood
    g = scores(head, torch.zeros(1, n, 2, dtype=REAL), named_generator(3))[0]
    products = g.unsqueeze(-1) * g.unsqueeze(-2)
    assert ((products.mean(0) - EYE / 0.09).abs() < 4 * products.std(0) / math.sqrt(n)).all()


def test_statistics_do_not_see_the_labels():
    model, x, p = noisy.surprised("noisy-kfac")
    fisher = (torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)).mean(0)
    assert_close(
        model.layers[0].outputs, fisher, rtol=0, atol=4 * 0.5 / math.sqrt(len(x))
    )  # sd of a product of scores < 1/2


def test_statistics_are_means_of_outer_products(monkeypatch):
    """Inputs and scores of every row at every drawn W, by a loop and autograd; the running mean.

    Rows weigh what they weigh.
    """
    model, data, weight, given = noisy.watched("noisy-kfac", monkeypatch)
    names = [
        (k, name) for k in range(3) for name in ("inputs", "outputs") if k or name == "outputs"
    ]  # the first layer's A is below

    def expected(weights):
        sums = dict.fromkeys(names, 0.0)
        for s in range(2):
            for row in range(7):
                a, inputs, outputs = model.augmented_inputs(data.x[row : row + 1])[0], [], []
                for k, w in enumerate(weights):
                    inputs.append(a)
                    outputs.append((a @ w[s]).requires_grad_() if k == 0 else a @ w[s])
                    a = wide(outputs[-1].relu())
                vectors = {
                    "inputs": inputs,
                    "outputs": torch.autograd.grad(outputs[-1] @ given[s, row], outputs),
                }
                for k, name in names:
                    v = vectors[name][k]
                    sums[k, name] += weight[row] * torch.outer(v, v).detach() / (2 * weight.sum())
        return sums

    noisy.check_running_mean(
        model, data, expected, lambda: {(k, name): getattr(model.layers[k], name) for k, name in names}
    )
    x = wide(data.x)
    assert_close(
        torch.diag(model.layers[0].values_in),
        model.rotation.T @ (x.T @ (weight[:, None] * x) / 6.5) @ model.rotation,
    )


@pytest.mark.parametrize("damping", ["unfactored", "factored"])
def test_step_is_plain_kfac_where_lam_vanishes(damping):
    options = {"lam": 1e-30, "step_damping": 0.1, "momentum": 0.0, "kl_clip": 0.0, "damping": damping}
    model, data = noisy.classifier("noisy-kfac", **options)
    for layer in model.layers:
        fill(layer)
    model.refresh()
    model.count.fill_(1)
    before = [layer.mean.detach().clone().requires_grad_() for layer in model.layers]
    logits = wide((model.augmented_inputs(data.x) @ before[0]).relu()) @ before[1]
    gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, data.y), before)
    optimizer = model.optimizer(TrainConfig(lr=0.05))
    model.loss(data, named_generator(3)).total.backward()
    optimizer.step()
    for layer, start, gradient in zip(model.layers, before, gradients, strict=True):
        if layer.rotated:
            layer.inputs = torch.diag(layer.values_in)
        wanted = torch.linalg.solve(dense(layer, 0.1), gradient.reshape(-1)).view_as(gradient)
        assert_close(layer.mean, start - 0.05 * wanted, rtol=1e-9, atol=1e-11)


def test_rotated_inputs_change_nothing():
    """The first layer in the basis of its inputs against one that keeps A.

    And `start` leaves the answers alone.
    """
    x, y = linear()
    fresh = build(Method("noisy-kfac", widths=(), noise=0.3), 3, Task("regression", 2)).double()
    model, data = regression(x, y)
    assert_close(
        model.predict(x, named_generator(1), 1, 1).mean,
        fresh.predict(x, named_generator(1), 1, 1).mean,
        rtol=0,
        atol=1e-4,
    )  # sd 1e-6 at the start
    (layer,) = model.layers
    fill(layer)
    model.refresh()
    plain = KroneckerLayer(model.rotation @ layer.mean.detach(), "unfactored", rotated=False).double()
    plain.inputs.copy_(wide(x).T @ wide(x) / len(x))
    plain.outputs.copy_(layer.outputs)
    plain.refresh(model.prior)
    for ours, theirs in zip(layer.moments(model.augmented_inputs(x)), plain.moments(wide(x)), strict=True):
        assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    gradient = randn(4, 2, seed=5)
    assert_close(
        model.rotation @ layer.precondition(model.rotation.T @ gradient, 0.1),
        plain.precondition(gradient, 0.1),
    )
    model.on_fit_start(
        replace(data, x=x * torch.tensor([1.0, 3.0, 0.2])), named_generator(0)
    )  # another basis
    assert_close(model.rotation @ layer.mean, plain.mean)


def test_kept_rows_are_the_rotated_rows():
    """Also after a stop, with other rows under the same numbers, and in another precision."""
    x, y = linear(40)
    model, data = regression(x, y)
    for part in (torch.arange(10), torch.arange(5, 40), torch.tensor([3, 39, 3]), torch.arange(40)):
        assert_close(model.batch_inputs(data.take(part)), model.augmented_inputs(x[part]))
    assert torch.equal(model.batch_inputs(data), model._rows)  # all of them are kept
    moved = replace(data, x=x + 1e-3)
    assert_close(model.batch_inputs(moved), model.augmented_inputs(moved.x))
    model._reset_cache(x, 0)  # as after a stop
    assert_close(model.batch_inputs(data.take(torch.tensor([7, 2]))), model.augmented_inputs(x[[7, 2]]))
    assert_close(model.batch_inputs(data), model.augmented_inputs(x))
    model.float()
    assert_close(model.batch_inputs(replace(data, x=x.float())), model.augmented_inputs(x.float()))


def test_a_step_stays_within_the_trust_region():
    """rate² ν² <D, P^-1 D> = <Δ, P Δ> is the bound where it would be exceeded, and untouched where not."""
    for bound, held in ((1e-4, True), (1e4, False)):
        x, y = linear()
        model, data = regression(x, y, momentum=0.0, kl_clip=bound, step_damping=0.01)
        (layer,) = model.layers
        optimizer = model.optimizer(TrainConfig(lr=0.05))
        before = layer.mean.detach().clone()
        model.loss(data, named_generator(3)).total.backward()
        optimizer.step()
        change = layer.mean.detach() - before
        layer.inputs = torch.diag(layer.values_in)
        damping = 1 / 60 + 0.01
        square = change.reshape(-1) @ dense(layer, damping) @ change.reshape(-1)
        free = (
            0.05**2
            * layer.mean.grad.reshape(-1)
            @ torch.linalg.solve(dense(layer, damping), layer.mean.grad.reshape(-1))
        )
        assert_close(square, torch.tensor(bound, dtype=REAL) if held else free, rtol=1e-8, atol=0)


def unit_steps(velocity):
    """A model whose preconditioner is 1 and whose posterior has no width."""
    options = {"velocity": velocity, "kl_clip": 0.0, "lam": 1e-30, "step_damping": 1.0}
    model = build(Method("noisy-kfac", widths=(), **options), 2, Task("regression", 2)).double()
    model.layers[0].outputs.zero_()
    return model, model.layers[0].mean


def test_heavy_ball_and_noise_are_torch_s_own():
    model, mean = unit_steps("sum")
    optimizer = model.optimizer(TrainConfig(lr=0.05))
    copy, noise = (
        mean.detach().clone().requires_grad_(),
        model.likelihood.log_noise.detach().clone().requires_grad_(),
    )
    sgd, adam = torch.optim.SGD([copy], 0.05, momentum=0.9), torch.optim.Adam([noise], 0.25)
    for step in range(8):
        copy.grad, noise.grad = randn(3, 2, seed=step), randn(1, 2, seed=20 + step)
        mean.grad, model.likelihood.log_noise.grad = copy.grad.clone(), noise.grad.clone()
        for each in (optimizer, sgd, adam):
            each.step()
    assert_close(mean, copy)
    assert_close(model.likelihood.log_noise, noise)


def test_mean_of_gradients_is_corrected_for_its_start():
    model, mean = unit_steps("mean")
    optimizer = model.optimizer(TrainConfig(lr=0.05))
    wanted, gradients = mean.detach().clone(), []
    for step in range(6):
        mean.grad = randn(3, 2, seed=step)
        gradients.append(mean.grad.clone())
        optimizer.step()
        weights = torch.tensor([0.9 ** (step - k) for k in range(step + 1)], dtype=REAL)
        wanted -= 0.05 * torch.einsum("k,kij->ij", weights / weights.sum(), torch.stack(gradients))
        assert_close(mean.detach(), wanted)


def test_bad_options_are_refused():
    for options, words in (
        ({"lam": 0.0}, "lam is 0.0"),
        ({"prior_variance": -1.0}, "prior_variance is -1.0"),
        ({"damping": "half"}, "damping is 'half'"),
        ({"velocity": "fast"}, "velocity is 'fast'"),
        ({"samples": 0}, "samples is 0"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"step_damping": -1.0}, "step_damping is -1.0"),
        ({"noise": -1.0}, "noise is -1.0"),
    ):
        with pytest.raises(ValueError, match=words):
            build(Method("noisy-kfac", **options), 3, Task("regression", 1))
