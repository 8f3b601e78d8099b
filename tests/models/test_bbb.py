"""Independent Gaussian weights against drawn weights, torch's own normals and exact Bayesian regression."""

import math

import pytest
import torch
import variational
from oracles import wide
from torch.testing import assert_close
from variational import CLASSES, ONE, TWO, N, divergence, kl, law, model_of, numbers

from compound.models import Method, build
from compound.random import named_generator
from compound.types import Task, make_dataset

MANY = 400_000


@pytest.mark.parametrize("prior", [1.0, 0.3])
def test_kl_is_that_of_independent_normals(prior):
    (layer,) = model_of(Method("bbb", widths=(), prior=prior), 3, CLASSES).layers
    assert_close(divergence(layer), kl(layer, prior), rtol=1e-12, atol=1e-12)


def test_scaled_prior_has_one_over_the_rows_of_each_matrix():
    variational.check_scaled_prior(model_of(Method("bbb", widths=(5,), prior="scaled"), 3, CLASSES))


def test_kl_and_its_gradient_vanish_at_the_prior():
    (layer,) = build(Method("bbb", widths=(), log_std=math.log(0.5), prior=0.25), 3, CLASSES).double().layers
    with torch.no_grad():
        layer.mean.zero_()
        layer.log_std.fill_(math.log(0.5))
    variational.check_prior_is_stationary(layer)


def test_moments_are_those_of_drawn_weights():
    (layer,) = model_of(Method("bbb", widths=(), log_std=-1.0), 3, CLASSES).layers
    x = numbers(2, 3)
    (mean, std), q = layer.moments(x), law(layer)
    drawn = wide(x) @ (
        q.loc + q.scale * torch.randn(MANY, 4, 3, generator=named_generator(1), dtype=torch.float64)
    )  # (MANY, 2, out)
    variational.check_moments(drawn, mean, std)


@pytest.mark.parametrize("outputs", [2, 20])  # few columns go their own way
def test_draws_of_training_are_mean_plus_deviation_times_noise(outputs):
    (layer,) = model_of(
        Method("bbb", widths=(), prior=0.5, log_std=-1.0), 3, Task("regression", outputs)
    ).layers
    variational.check_draws_of_training(layer)


@pytest.mark.parametrize("task", [CLASSES, TWO], ids=lambda t: t.kind)
def test_gradient_of_the_loss_with_frozen_noise(task):
    variational.check_gradient_of_loss(
        model_of(Method("bbb", widths=(3, 2), samples=2, log_std=-1.0), 3, task)
    )


def test_prediction_is_that_of_drawn_networks():
    variational.check_prediction(model_of(Method("bbb", widths=(5,), log_std=-1.0), 3, CLASSES))


def test_loss_averages_log_likelihoods_of_drawn_networks():
    variational.check_nll(model_of(Method("bbb", widths=(5,), samples=N, log_std=-1.0), 3, CLASSES))


@pytest.mark.parametrize("task", [CLASSES, TWO], ids=lambda t: t.kind)
def test_narrow_posterior_has_the_likelihood_of_the_plain_network(task):
    """And, around equal weights, the plain network's penalty: |M|² / (2 p N)."""
    model = build(Method("bbb", widths=(6,), log_std=-25.0, prior=0.5), 3, task, 2).double()
    plain = build(Method("map", widths=(6,), precision=2.0), 3, task, 2).double()
    y = torch.tensor([0, 2, 1, 1, 0]) if task.kind == "classification" else numbers(5, 2)
    data = make_dataset(numbers(5, 3), y, task)
    model.on_fit_start(data, named_generator(0))
    plain.on_fit_start(data, named_generator(0))
    ours, theirs = model.loss(data, named_generator(1)), plain.loss(data, named_generator(1))
    assert_close(ours.nll, theirs.nll.squeeze(), rtol=1e-8, atol=0)
    count = sum(layer.mean.numel() for layer in model.layers)
    constant = count * (0.5 * math.log(0.5) + 25.0 - 0.5) / 5
    assert_close(ours.kl - constant, theirs.kl.squeeze(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("prior", [1.0, 0.2])
def test_optimum_of_linear_regression(prior):
    model = model_of(Method("bbb", widths=(), noise=0.5, log_std=-2.0, prior=prior), 3, ONE)
    exact = variational.check_gap_while_maximised(model, prior)
    (layer,) = model.layers
    assert_close(layer.mean.detach(), exact.mean, rtol=0, atol=1e-8)
    assert_close(1 / law(layer).variance[:, 0], exact.precision.diagonal(), rtol=1e-6, atol=0)


def test_shares_are_the_noise_and_the_variance_of_the_network():
    variational.check_shares(model_of(Method("bbb", widths=(), noise=0.5, log_std=-1.0), 3, TWO))


def test_start_is_that_of_the_plain_network():
    variational.check_start("bbb", std=math.exp(-5))


def test_float32_is_enough():
    variational.check_float32("bbb")


@pytest.mark.parametrize(("options", "words"), variational.BAD_OPTIONS)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        build(Method("bbb", **options), 3, ONE)


class TestGraves:
    """gradients='graves': those of drawn weights, and variances from squares of single data's gradients."""

    def model(self, widths=(4,), samples=2, prior=0.5):
        options = {"widths": widths, "samples": samples, "prior": prior, "log_std": -1.0}
        return model_of(Method("bbb", gradients="graves", **options), 3, CLASSES)

    def oracle(self, model, data, weight):
        """Gradients of M and log S by the definition: every draw, datum and weight by itself."""
        noise = named_generator(5)
        layers, samples, n = model.layers, model.config.samples, len(data.x)
        drawn = []
        for layer in layers:
            e = torch.randn(samples, *layer.mean.shape, generator=noise, dtype=torch.float64)
            drawn.append((layer.mean + layer.log_std.exp() * e).detach())
        means = [torch.zeros_like(layer.mean) for layer in layers]
        squares = [torch.zeros_like(layer.mean) for layer in layers]
        for s in range(samples):
            for k in range(n):
                ws = [w[s].clone().requires_grad_() for w in drawn]
                h = data.x[k]
                for j, w in enumerate(ws):
                    h = wide(h if j == 0 else h.relu()) @ w
                nll = torch.nn.functional.cross_entropy(h, data.y[k])
                for j, g in enumerate(torch.autograd.grad(nll, ws)):
                    share = weight[k] / weight.sum() / samples
                    means[j] += share * g
                    squares[j] += share * g.square()
        size, p = data.size, model.config.prior
        for j, layer in enumerate(layers):
            variance = (2 * layer.log_std).exp().detach()
            means[j] += layer.mean.detach() / p / size
            squares[j] = variance * squares[j] + (variance / p - 1) / size
        return means, squares

    def test_gradients_are_those_of_single_data(self):
        model, weight = self.model(), torch.tensor([1.0, 0.0, 1.0, 2.0, 1.0], dtype=torch.float64)
        data = make_dataset(numbers(5, 3), torch.tensor([0, 2, 1, 1, 0]), CLASSES, weight=weight)
        model.loss(data, named_generator(5)).total.backward()
        for layer, mean, log_std in zip(model.layers, *self.oracle(model, data, weight), strict=True):
            assert_close(layer.mean.grad, mean, rtol=1e-9, atol=1e-12)
            assert_close(layer.log_std.grad, log_std, rtol=1e-9, atol=1e-12)

    def test_loss_and_kl_are_those_of_bayes_by_backprop(self):
        """The same bound: its value for many draws is that of local reparametrisation."""
        model = self.model(samples=4000)
        other = model_of(Method("bbb", widths=(4,), samples=4000, prior=0.5, log_std=-1.0), 3, CLASSES)
        data = make_dataset(numbers(5, 3), torch.tensor([0, 2, 1, 1, 0]), CLASSES)
        ours, theirs = (m.loss(data, named_generator(5)) for m in (model, other))
        assert_close(ours.kl, theirs.kl, rtol=1e-12, atol=0)
        assert_close(ours.nll, theirs.nll, rtol=0.06, atol=0)

    def test_variances_of_well_specified_regression_become_the_posterior_s(self):
        """With the model's noise in the data, they are the curvature: variances 1 / (x² / noise² + 1 / p)."""
        n, noise = 20_000, 0.5
        x, w = variational.orthogonal(n, 3), numbers(4, 1)
        y = wide(x) @ w + noise * numbers(n, 1, seed=7)
        model = build(Method("bbb", widths=(), noise=noise, gradients="graves"), 3, ONE).double()
        (layer,) = model.layers
        with torch.no_grad():
            layer.mean.copy_(w)
            layer.log_std.fill_(-5.0)
        model.loss(make_dataset(x, y, ONE), named_generator(0)).total.backward()
        # dL/dlog S = S² (mean square + 1 / (p N)) - 1 / N: the S² at which it is 0
        variance = (2 * layer.log_std).exp().detach()
        stationary = 1 / (n * (layer.log_std.grad + 1 / n) / variance)
        exact = 1 / (wide(x).square().sum(0) / noise**2 + 1)
        assert_close(stationary.squeeze(1), exact, rtol=0.06, atol=0)


def test_unknown_gradients_are_refused():
    with pytest.raises(ValueError, match="'local' or 'graves'"):
        build(Method("bbb", gradients="other"), 3, ONE)
