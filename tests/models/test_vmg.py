"""Matrix-Gaussian weights against drawn weight matrices, dense Kronecker covariances and exact Bayesian regression."""

import math

import pytest
import torch
from oracles import dense, matrix_normals, wide
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close
from variational import distance, divergence, elbo, exact_posterior, kl, law, maximise, model_of, numbers, orthogonal, outputs

from compound.models import Draws, Method, build
from compound.types import Task, fork, whole

ONE, TWO, CLASSES = Task("targets", 1), Task("targets", 2), Task("classes", 3)
N = 400_000


@pytest.mark.parametrize("prior", [1.0, 0.25])
def test_kl_is_that_of_the_dense_covariance(prior):
    (layer,) = model_of(Method("vmg", widths=(), prior=prior), 3, CLASSES).layers  # r = 4, c = 3
    (q,) = matrix_normals(layer)
    standard = MultivariateNormal(torch.zeros(12, dtype=torch.float64), prior * torch.eye(12, dtype=torch.float64))
    exact = kl_divergence(dense(q), standard)
    assert_close(divergence(layer), exact, rtol=1e-12, atol=1e-12)
    assert_close(layer.kl(), exact, rtol=1e-12, atol=1e-12)


def test_scaled_prior_has_one_over_the_rows_of_each_matrix():
    model = model_of(Method("vmg", widths=(5,), prior="scaled"), 3, CLASSES)
    x, y = numbers(7, 3), torch.zeros(7, dtype=torch.long)
    exact = kl(model.layers[0], 1 / 4) + kl(model.layers[1], 1 / 6)
    loss = model.loss(whole(x, y, CLASSES), fork(0))
    assert_close(loss.kl, exact / 7, rtol=1e-12, atol=0)
    assert_close(loss.total, (loss.nll + loss.kl).sum())


def test_kl_and_its_gradient_vanish_at_the_prior():
    (layer,) = build(Method("vmg", widths=(), log_variance=0.0), 3, CLASSES).double().layers
    torch.nn.init.zeros_(layer.mean)
    value = divergence(layer)
    value.backward()
    assert value.abs() < 1e-12
    assert all(p.grad.abs().max() < 1e-12 for p in layer.parameters())


def test_factors_may_trade_their_scale():
    (layer,) = model_of(Method("vmg", widths=()), 3, CLASSES).layers
    x = numbers(6, 3)
    before = [*layer.moments(x), divergence(layer)]
    with torch.no_grad():
        layer.log_row += math.log(7.0)
        layer.log_col -= math.log(7.0)
    for ours, other in zip([*layer.moments(x), divergence(layer)], before, strict=True):
        assert_close(ours, other, rtol=1e-12, atol=1e-12)


def test_moments_are_those_of_drawn_matrices():
    (layer,) = model_of(Method("vmg", widths=()), 3, CLASSES).layers
    x = numbers(2, 3)
    mean, std = layer.moments(x)
    (q,) = matrix_normals(layer)
    drawn = (wide(x) @ q.rsample((N,), fork(1))).detach()  # (N, 2, out)
    variance = std.square()
    assert ((drawn.mean(0) - mean).abs() < 4 * std / math.sqrt(N)).all()
    assert ((drawn.var(0) - variance).abs() < 4 * variance * math.sqrt(2 / N)).all()
    # one W for both rows: covariance b_j sum_i x_i x'_i a_i
    first, second = (drawn - mean).unbind(1)
    covariance = (wide(x).prod(0) @ layer.log_row[0].exp()) * layer.log_col.exp()
    assert (((first * second).mean(0) - covariance).abs() < 4 * (first * second).std(0) / math.sqrt(N)).all()


@pytest.mark.parametrize("outputs", [2, 20])  # few columns go their own way
def test_draws_of_training_are_mean_plus_deviation_times_noise(outputs):
    (layer,) = model_of(Method("vmg", widths=(), prior=0.5), 3, Task("targets", outputs)).layers
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
    model = model_of(Method("vmg", widths=(4, 3), samples=2), 3, task)
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
    model = model_of(Method("vmg", widths=(5,)), 3, CLASSES)
    x, n = numbers(3, 3), 100_000
    probs = outputs(model, x, n, fork(1)).softmax(-1)
    error = probs.std(0) * math.sqrt(2 / n)  # both sides are averages of n draws
    assert ((model.predict(x, Draws(n, 1), fork(2)).probs - probs.mean(0)).abs() < 4 * error).all()


def test_loss_averages_log_likelihoods_of_drawn_networks():
    n = 100_000
    model = model_of(Method("vmg", widths=(5,), samples=n), 3, CLASSES)
    x, y = numbers(3, 3), torch.tensor([0, 1, 2])
    logs = outputs(model, x, n, fork(1)).log_softmax(-1)[:, range(3), y]  # (n, rows)
    for row in range(3):
        weight = torch.eye(3)[row]
        nll = model.loss(whole(x, y, CLASSES, weight), fork(2)).nll
        assert (nll + logs[:, row].mean()).abs() < 4 * logs[:, row].std() * math.sqrt(2 / n)


def test_rows_have_noise_of_their_own_in_training():
    """Many equal rows with one draw each: their mean is the expected log-likelihood, known exactly."""
    n = 100_000
    model = model_of(Method("vmg", widths=()), 3, TWO)
    x, y = numbers(1, 3), numbers(1, 2)
    mean, std = model.layers[0].moments(x)
    exact = model.head.expected_log_prob(mean.unsqueeze(0), std.square().unsqueeze(0), y)
    logs = model.head.log_prob(outputs(model, x, n, fork(1)).unsqueeze(0), y)  # (1, n, 1)
    nll = model.loss(whole(x.expand(n, -1), y.expand(n, -1), TWO), fork(2)).nll
    assert (nll + exact).abs() < 4 * logs.std() / math.sqrt(n)


@pytest.mark.parametrize("prior", [1.0, 0.2])
@pytest.mark.parametrize("task", [ONE, TWO], ids=["one", "two"])
def test_orthogonal_design_is_solved_exactly(task, prior):
    x, y = orthogonal(40, 3), numbers(40, task.size)
    model = model_of(Method("vmg", widths=(), noise=0.5, prior=prior), 3, task)
    exact = exact_posterior(model, x, y, prior)
    maximise(model, x, y)
    (layer,) = model.layers
    assert_close(layer.mean.detach(), exact.mean, rtol=0, atol=1e-8)
    assert_close(law(layer).variance, exact.covariance.diagonal().unsqueeze(1).expand(-1, task.size), rtol=0, atol=1e-8)
    assert_close(elbo(model, x, y), exact.log_evidence, rtol=0, atol=1e-8)


def test_bound_lies_below_the_evidence_by_the_distance_to_the_posterior():
    x, y = numbers(30, 3) @ numbers(3, 3, seed=1), numbers(30, 2)
    model = model_of(Method("vmg", widths=(), noise=0.5), 3, TWO)
    exact = exact_posterior(model, x, y)
    for _ in range(2):
        gap = exact.log_evidence - elbo(model, x, y)
        assert gap > 1e-3
        assert_close(gap, distance(model, exact), rtol=1e-8, atol=1e-8)
        maximise(model, x, y)
    assert_close(model.layers[0].mean.detach(), exact.mean, rtol=0, atol=1e-7)


def test_shares_are_the_noise_and_the_variance_of_the_network():
    n = 100_000
    model = model_of(Method("vmg", widths=(), noise=0.5), 3, TWO)
    x = numbers(3, 3)
    p = model.predict(x, Draws(n // 5, 5), fork(1))
    variance = model.layers[0].moments(x)[1].square()
    assert len(p.means) == n
    assert_close(p.aleatoric, torch.full_like(variance, 0.25))
    assert ((p.epistemic - variance).abs() < 4 * variance * math.sqrt(2 / n)).all()


def test_start_is_that_of_the_plain_network():
    model, plain = build("vmg", 784, CLASSES, 4), build("map", 784, CLASSES, 4)
    for layer, other in zip(model.layers, plain.network.layers, strict=True):
        assert_close(layer.mean.detach(), torch.cat([other.weight[0], other.bias[0]]).detach(), rtol=0, atol=0)
    assert_close(law(model.layers[0]).variance, torch.full((785, 100), math.exp(-6)))


def test_float32_is_enough():
    model, double = build("vmg", 784, CLASSES), build("vmg", 784, CLASSES).double()
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
        ({"prior": 0.0}, "prior is 0"),
        ({"prior": "wide"}, "prior is 'wide'"),
        ({"noise": -1.0}, "noise is -1"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        build(Method("vmg", **options), 3, ONE)
