"""Independent Gaussian weights against drawn weights, torch's own normals and exact Bayesian regression."""

import math

import pytest
import torch
from oracles import wide
from torch.testing import assert_close
from variational import distance, divergence, elbo, exact_posterior, kl, law, maximise, model_of, numbers, outputs

from compound.models import Draws, Method, build
from compound.types import Task, fork, whole

ONE, TWO, CLASSES = Task("targets", 1), Task("targets", 2), Task("classes", 3)
N = 400_000


@pytest.mark.parametrize("prior", [1.0, 0.3])
def test_kl_is_that_of_independent_normals(prior):
    (layer,) = model_of(Method("bbb", widths=(), prior=prior), 3, CLASSES).layers
    assert_close(divergence(layer), kl(layer, prior), rtol=1e-12, atol=1e-12)


def test_scaled_prior_has_one_over_the_rows_of_each_matrix():
    model = model_of(Method("bbb", widths=(5,), prior="scaled"), 3, CLASSES)
    x, y = numbers(7, 3), torch.zeros(7, dtype=torch.long)
    loss = model.loss(whole(x, y, CLASSES), fork(0))
    assert_close(loss.kl, (kl(model.layers[0], 1 / 4) + kl(model.layers[1], 1 / 6)) / 7, rtol=1e-12, atol=0)
    assert_close(loss.total, (loss.nll + loss.kl).sum())


def test_kl_and_its_gradient_vanish_at_the_prior():
    (layer,) = build(Method("bbb", widths=(), log_std=math.log(0.5), prior=0.25), 3, CLASSES).double().layers
    with torch.no_grad():
        layer.mean.zero_()
        layer.log_std.fill_(math.log(0.5))
    value = divergence(layer)
    value.backward()
    assert value.abs() < 1e-12
    assert all(p.grad.abs().max() < 1e-12 for p in layer.parameters())


def test_moments_are_those_of_drawn_weights():
    (layer,) = model_of(Method("bbb", widths=(), log_std=-1.0), 3, CLASSES).layers
    x = numbers(2, 3)
    (mean, std), q = layer.moments(x), law(layer)
    drawn = wide(x) @ (q.loc + q.scale * torch.randn(N, 4, 3, generator=fork(1), dtype=torch.float64))  # (N, 2, out)
    variance = std.square()
    assert ((drawn.mean(0) - mean).abs() < 4 * std / math.sqrt(N)).all()
    assert ((drawn.var(0) - variance).abs() < 4 * variance * math.sqrt(2 / N)).all()


@pytest.mark.parametrize("outputs", [2, 20])  # few columns go their own way
def test_draws_of_training_are_mean_plus_deviation_times_noise(outputs):
    (layer,) = model_of(Method("bbb", widths=(), prior=0.5, log_std=-1.0), 3, Task("targets", outputs)).layers
    names = list(dict(layer.named_parameters()))
    h, noise = numbers(5, 3).requires_grad_(), numbers(2, 5, outputs)
    mean, std = layer.moments(h)
    assert_close(layer.sample(h, noise.clone())[0], mean + std * noise)

    class Sample(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, h):
            return self.layer.sample(h, noise.clone())

    call = lambda h, *p: torch.func.functional_call(Sample(), {f"layer.{n}": v for n, v in zip(names, p, strict=True)}, (h,))  # noqa: E731
    torch.autograd.gradcheck(call, (h, *layer.parameters()))


@pytest.mark.parametrize("task", [CLASSES, TWO], ids=lambda t: t.kind)
def test_gradient_of_the_loss_with_frozen_noise(task):
    model = model_of(Method("bbb", widths=(3, 2), samples=2, log_std=-1.0), 3, task)
    y = torch.tensor([0, 2, 1, 1, 0]) if task.kind == "classes" else numbers(5, 2)
    data = whole(numbers(5, 3), y, task, weight=torch.tensor([1.0, 0.0, 1.0, 2.0, 1.0]))
    names = list(dict(model.named_parameters()))

    class Total(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self):
            return self.model.loss(data, [fork(5)]).total

    call = lambda *p: torch.func.functional_call(Total(), {f"model.{n}": v for n, v in zip(names, p, strict=True)}, ())  # noqa: E731
    torch.autograd.gradcheck(call, tuple(model.parameters()))


def test_prediction_is_that_of_drawn_networks():
    model = model_of(Method("bbb", widths=(5,), log_std=-1.0), 3, CLASSES)
    x, n = numbers(3, 3), 100_000
    probs = outputs(model, x, n, fork(1)).softmax(-1)
    error = probs.std(0) * math.sqrt(2 / n)  # both sides are averages of n draws
    assert ((model.predict(x, Draws(n, 1), fork(2)).probs - probs.mean(0)).abs() < 4 * error).all()


def test_loss_averages_log_likelihoods_of_drawn_networks():
    n = 100_000
    model = model_of(Method("bbb", widths=(5,), samples=n, log_std=-1.0), 3, CLASSES)
    x, y = numbers(3, 3), torch.tensor([0, 1, 2])
    logs = outputs(model, x, n, fork(1)).log_softmax(-1)[:, range(3), y]  # (n, rows)
    for row in range(3):
        nll = model.loss(whole(x, y, CLASSES, torch.eye(3)[row]), fork(2)).nll
        assert (nll + logs[:, row].mean()).abs() < 4 * logs[:, row].std() * math.sqrt(2 / n)


@pytest.mark.parametrize("task", [CLASSES, TWO], ids=lambda t: t.kind)
def test_narrow_posterior_has_the_likelihood_of_the_plain_network(task):
    """And, around equal weights, the plain network's penalty: |M|² / (2 p N)."""
    model = build(Method("bbb", widths=(6,), log_std=-25.0, prior=0.5), 3, task, 2).double()
    plain = build(Method("map", widths=(6,), precision=2.0), 3, task, 2).double()
    y = torch.tensor([0, 2, 1, 1, 0]) if task.kind == "classes" else numbers(5, 2)
    data = whole(numbers(5, 3), y, task)
    model.start(data, fork(0))
    plain.start(data, fork(0))
    ours, theirs = model.loss(data, fork(1)), plain.loss(data, fork(1))
    assert_close(ours.nll, theirs.nll.squeeze(), rtol=1e-8, atol=0)
    count = sum(layer.mean.numel() for layer in model.layers)
    constant = count * (0.5 * math.log(0.5) + 25.0 - 0.5) / 5
    assert_close(ours.kl - constant, theirs.kl.squeeze(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("prior", [1.0, 0.2])
def test_optimum_of_linear_regression(prior):
    x, y = numbers(30, 3) @ numbers(3, 3, seed=1), numbers(30, 1)
    model = model_of(Method("bbb", widths=(), noise=0.5, log_std=-2.0, prior=prior), 3, ONE)
    exact = exact_posterior(model, x, y, prior)
    for _ in range(2):
        gap = exact.log_evidence - elbo(model, x, y)
        assert gap > 1e-3
        assert_close(gap, distance(model, exact), rtol=1e-8, atol=1e-8)
        maximise(model, x, y)
    (layer,) = model.layers
    assert_close(layer.mean.detach(), exact.mean, rtol=0, atol=1e-8)
    assert_close(1 / law(layer).variance[:, 0], exact.precision.diagonal(), rtol=1e-6, atol=0)


def test_shares_are_the_noise_and_the_variance_of_the_network():
    n = 100_000
    model = model_of(Method("bbb", widths=(), noise=0.5, log_std=-1.0), 3, TWO)
    x = numbers(3, 3)
    p = model.predict(x, Draws(n // 5, 5), fork(1))
    variance = model.layers[0].moments(x)[1].square()
    assert_close(p.aleatoric, torch.full_like(variance, 0.25))
    assert ((p.epistemic - variance).abs() < 4 * variance * math.sqrt(2 / n)).all()


def test_start_is_that_of_the_plain_network():
    model, plain = build("bbb", 784, CLASSES, 4), build("map", 784, CLASSES, 4)
    for layer, other in zip(model.layers, plain.network.layers, strict=True):
        assert_close(layer.mean.detach(), torch.cat([other.weight[0], other.bias[0]]).detach(), rtol=0, atol=0)
        assert_close(law(layer).stddev, torch.full_like(layer.mean, math.exp(-5)).detach())


def test_float32_is_enough():
    model, double = build("bbb", 784, CLASSES), build("bbb", 784, CLASSES).double()
    x = torch.rand(20, 784, generator=fork(0))
    (layer, _), (exact_layer, _) = model.layers, double.layers
    noise = torch.randn(1, 20, 100, generator=fork(1))
    ours, exact = layer.sample(x, noise.clone()), exact_layer.sample(x.double(), noise.double())
    for value, correct in zip([*layer.moments(x), *ours], [*exact_layer.moments(x.double()), *exact], strict=True):
        assert ((value - correct).abs() <= 1e-5 * correct.abs().max()).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 0}, "samples is 0"),
        ({"prior": -1.0}, "prior is -1"),
        ({"prior": "unit"}, "prior is 'unit'"),
        ({"noise": -1.0}, "noise is -1"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        build(Method("bbb", **options), 3, ONE)
