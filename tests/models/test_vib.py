"""The bottleneck against torch's Gaussians, the CDN's objective, draws of z, and a known optimum."""

import math

import pytest
import torch
from oracles import floored
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence
from torch.nn import functional
from torch.testing import assert_close

from compound.distributions import log_mean_exp
from compound.models import Method, build
from compound.models.vib import code_kl
from compound.ops.gaussian_noise import standard_normal
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import Task, make_dataset

CLASSES, TARGETS = Task("classification", 4), Task("regression", 2)


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=named_generator(seed), dtype=torch.float64)


def noisy(task: Task, seed: int = 1, latent: int = 6, **options):
    """A model whose codes vary: ρ around 5, so that s is around 0.7; five features."""
    model = floored(build(Method("vib", widths=(7,), latent=latent, **options), 5, task, seed).double())
    with torch.no_grad():
        model.encoder.layers[-1].bias[..., latent:] = 5.0
        model.decoder.bias.copy_(numbers(2, *model.decoder.bias.shape))
    return model


def batch_of(task: Task, rows: int = 9):
    x = numbers(3, rows, 5)
    return make_dataset(
        x,
        torch.randint(task.size, (rows,), generator=named_generator(4))
        if task.kind == "classification"
        else numbers(4, rows, task.size),
        task,
    )


def outputs(model, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:  # (draws, rows, outputs)
    """z drawn and decoded, plainly."""
    mean, rho = model.encoder(x)[0].chunk(2, -1)
    std = torch.log1p((rho - 5).exp())
    return (mean + std * noise) @ model.decoder.weight[0] + model.decoder.bias[0]


def log_prob(model, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # (draws, rows)
    if model.task.kind == "classification":
        return torch.log_softmax(f, -1).gather(-1, y.expand(f.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    return Normal(f, model.likelihood.variance()[0].sqrt()).log_prob(y).sum(-1)


@pytest.mark.parametrize("task", [CLASSES, TARGETS], ids=lambda t: t.kind)
@pytest.mark.parametrize("samples", [1, 8])
def test_objective_is_the_cdns_with_one_sample_and_above_it_with_more(task, samples):
    model, batch = noisy(task, samples=samples, beta=0.3), batch_of(task)
    noise = standard_normal(named_generator(7), (samples, 9, 6), batch.x)  # every row its own
    logs = log_prob(model, outputs(model, batch.x, noise), batch.y)
    mean, std = model.encode(batch.x)
    kl = (
        0.3
        * kl_divergence(
            Independent(Normal(mean[0], std[0]), 1), Independent(Normal(torch.zeros(6).double(), 1.0), 1)
        ).mean()
    )
    loss = model.loss(batch, [named_generator(7)])
    assert_close(loss.total, -logs.mean() + kl, rtol=1e-12, atol=0)
    assert_close(loss.kl.sum(), kl.detach(), rtol=1e-12, atol=0)
    cdn = -log_mean_exp(logs, 0).mean() + kl
    assert (loss.total - cdn).abs() < 1e-12 if samples == 1 else loss.total > cdn + 1e-3


def test_kl_of_the_code_is_that_of_torch():
    mean, std = 3 * numbers(1, 8, 5), numbers(2, 8, 5).exp()
    standard = Independent(Normal(torch.zeros(5, dtype=torch.float64), 1.0), 1)
    assert_close(
        code_kl(mean, std), kl_divergence(Independent(Normal(mean, std), 1), standard), rtol=1e-12, atol=0
    )
    assert code_kl(torch.zeros(3), torch.ones(3)) == 0


def test_codes_begin_narrow():
    model = build(Method("vib"), 3, CLASSES)
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            parameter.zero_()
    _, std = model.encode(torch.ones(1, 3))
    assert_close(std, torch.full_like(std, math.log1p(math.exp(-5))))


@pytest.mark.parametrize("task", [CLASSES, TARGETS], ids=lambda t: t.kind)
def test_free_and_narrow_codes_make_a_plain_network(task):
    model, batch = noisy(task, beta=0.0), batch_of(task)
    with torch.no_grad():
        model.encoder.layers[-1].weight[..., 6:] = 0
        model.encoder.layers[-1].bias[..., 6:] = -10.0
    plain = log_prob(model, model.decoder(model.encode(batch.x)[0])[0], batch.y)
    loss = model.loss(batch, [named_generator(0)])
    assert_close(loss.total, -plain.mean(), rtol=1e-5, atol=0)
    assert loss.kl == 0


@pytest.mark.parametrize("latent", [6, 2])  # more and fewer than outputs
def test_answer_is_that_of_draws_of_the_code(latent):
    """Probabilities, and the information of y about z, against z drawn and decoded."""
    model, batch = noisy(CLASSES, latent=latent), batch_of(CLASSES)
    count = 40_000
    probs = torch.softmax(
        outputs(model, batch.x, numbers(5, count, 1, latent)), -1
    ).detach()  # one noise for all rows
    p = model.predict(batch.x, named_generator(6), 200, 200)
    error = 5 * math.sqrt(2 / count)
    assert ((p.probs - probs.mean(0)).abs() < error * probs.std(0)).all()
    entropies = -torch.xlogy(probs, probs).sum(-1)
    assert ((p.component - entropies.mean(0)).abs() < error * entropies.std(0)).all()
    information = (torch.xlogy(probs, probs) - probs * probs.mean(0).log()).sum(-1)
    assert ((p.mixing - information.mean(0)).abs() < error * information.std(0) + 10 / count).all()
    assert (p.posterior == 0).all()


def test_drawn_outputs_have_the_moments_of_a_decoded_code():
    """Two targets: the mean and covariance over draws are those of N(μ D + b, Dᵀ diag(s²) D)."""
    model, batch = noisy(TARGETS), batch_of(TARGETS)
    count = 40_000
    p = model.predict(batch.x, named_generator(6), 200, 200)
    mean, std = model.encode(batch.x)
    weight = model.decoder.weight[0]
    for row in range(9):
        law = MultivariateNormal(
            mean[0, row] @ weight + model.decoder.bias[0, 0], weight.T @ torch.diag(std[0, row] ** 2) @ weight
        )
        away = p.means[:, row] - law.mean
        assert (away.mean(0).abs() < 4 * (law.variance / count).sqrt()).all()
        products = away.unsqueeze(-1) * away.unsqueeze(-2)
        assert (
            (products.mean(0) - law.covariance_matrix).abs() < 4 * products.std(0) / math.sqrt(count)
        ).all()
    noise = model.likelihood.variance()[0].detach()
    assert_close(p.component, noise.expand(9, 2))
    assert_close(p.mixing, p.means.var(0))
    drawn = outputs(model, batch.x, numbers(5, count, 1, 6))
    chance, ours = (
        log_prob(model, drawn, batch.y).exp(),
        p.log_prob(batch.y).exp(),
    )  # the joint density: targets hang together
    assert ((ours - chance.mean(0)).abs() < 5 * chance.std(0) * math.sqrt(2 / count)).all()


def test_one_target_is_integrated():
    model, batch = noisy(Task("regression", 1)), batch_of(Task("regression", 1))
    p, q = (model.predict(batch.x, named_generator(n), n, 1) for n in (1, 50))
    mean, std = model.encode(batch.x)
    variance = std[0] ** 2 @ model.decoder.weight[0] ** 2
    exact = Normal(model.decoder(mean)[0], (variance + model.likelihood.variance()[0]).sqrt())
    for answer in (p, q):
        assert_close(answer.log_prob(batch.y), exact.log_prob(batch.y)[:, 0].detach(), rtol=1e-12, atol=0)
        assert_close(answer.mixing, variance.detach(), rtol=1e-10, atol=0)
        assert answer.posterior.max() < 1e-15


def test_optimum_of_a_linear_problem():
    """A given decoder D, b and noise σ: s² = β / (β + D²/σ²), μ = D (y - b) / (β σ² + D²).

    Both terms are in nats.
    """
    beta, d, b, sigma, y = 0.4, 1.3, 0.2, 0.7, 1.5
    count = 200_000
    model = build(
        Method("vib", widths=(), latent=1, beta=beta, noise=sigma), 1, Task("regression", 1)
    ).double()
    s = math.sqrt(beta / (beta + (d / sigma) ** 2))
    layer = model.encoder.layers[-1]
    with torch.no_grad():
        model.decoder.weight.fill_(d)
        model.decoder.bias.fill_(b)
        layer.weight.zero_()
        layer.bias.copy_(
            torch.tensor([[[d * (y - b) / (beta * sigma**2 + d**2), 5 + math.log(math.expm1(s))]]])
        )
    batch = make_dataset(torch.zeros(count, 1).double(), torch.full((count, 1), y).double(), model.task)
    model.loss(batch, named_generator(1)).total.backward()
    mu, slope = layer.bias[0, 0, 0].item(), 1 - math.exp(-s)  # of softplus, in s
    noise = standard_normal(named_generator(1), (1, count, 1), batch.x).flatten()
    each = -(d / sigma**2) * (y - b - d * (mu + s * noise))  # what a row's noise adds to the gradient of z
    spread = torch.stack([each.std(), (each * noise).std() * slope]) / math.sqrt(count)
    assert (layer.bias.grad.flatten().abs() < 4 * spread).all()


def test_a_smaller_beta_gives_a_larger_kl():
    g = named_generator(3)
    y = torch.randint(3, (200,), generator=g)
    x = functional.one_hot(y, 3).float() + 0.4 * torch.randn(200, 3, generator=g)
    rates = []
    for beta in (0.3, 0.03, 0.003):
        model = build(Method("vib", widths=(8,), latent=4, beta=beta), 3, Task("classification", 3))
        fit(model, make_dataset(x, y, model.task), TrainConfig(steps=200, batch_size=200), 0)
        rates.append(code_kl(*model.encode(x)).mean().item())
    assert rates[0] < 0.8 * rates[1] < 0.64 * rates[2]


def test_float32_agrees_with_float64():
    small, large = (build(Method("vib", widths=(7,), latent=6, beta=1.0), 5, CLASSES) for _ in range(2))
    with torch.no_grad():
        small.encoder.layers[-1].bias[
            ..., 6:
        ] = -10.0  # the streams of both dtypes differ: let noise not matter
    large.double().load_state_dict(small.state_dict())
    batch = batch_of(CLASSES)
    total = small.loss(make_dataset(batch.x.float(), batch.y, CLASSES), named_generator(0)).total
    assert_close(total.double(), large.loss(batch, named_generator(0)).total, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"latent": 0}, "latent is 0"),
        ({"samples": 0}, "samples is 0"),
        ({"beta": -1.0}, "beta is -1.0"),
        ({"noise": -1.0}, "noise is -1.0"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        build(Method("vib", **options), 3, TARGETS)
