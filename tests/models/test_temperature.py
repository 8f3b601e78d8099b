"""The temperature against its own optimality, scipy, a grid, and the plain network."""

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch.nn import functional
from torch.testing import assert_close

from compound.models import Method, build
from compound.models.temperature import best_temperature
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import Task, make_dataset

DOUBLE = torch.float64


def trained(kind: str, held: int, seed: int = 0, **options):
    """A network in float64 fitted to 60 noisy rows, of which the first `held` are held out."""
    g = named_generator(seed)
    task = Task(kind, 3)
    x = torch.randn(60, 2, generator=g, dtype=DOUBLE)
    if kind == "classification":
        y = (2 * x[:, 0] + torch.randn(60, generator=g, dtype=DOUBLE)).clamp(-1, 1).round().long() + 1
    else:
        y = x.sum(-1, keepdim=True) + torch.tensor([0.1, 1.0, 10.0], dtype=DOUBLE) * torch.randn(
            60, 3, generator=g, dtype=DOUBLE
        )
    weight = torch.ones(60, dtype=DOUBLE)
    weight[:held] = 0
    model = build(Method("temperature", widths=(20,), precision=0.0, **options), 2, task, seed).double()
    fit(
        model,
        make_dataset(x, y, task, weight),
        TrainConfig(steps=150, batch_size=60, lr=3e-2, n_evals=0),
        seed,
    )
    return model, x, y


def test_slope_of_the_held_out_nll_is_zero_at_the_temperature():
    model, x, y = trained("classification", 30)
    held_x, held_y = x[:30], y[:30]
    assert model.temperature > 1.2  # fitted closely to 30 rows, the network is too sure of itself
    log_t = model.temperature.log().requires_grad_()
    nll = functional.cross_entropy(model.base_model.network(held_x)[0].detach() / log_t.exp(), held_y)
    (slope,) = torch.autograd.grad(nll, log_t)
    assert slope.abs() < 1e-8
    assert_close(
        -model.predict(held_x, named_generator(0), 1, 1).log_prob(held_y).mean(),
        nll.detach(),
        rtol=1e-12,
        atol=0,
    )


@pytest.mark.parametrize("seed", range(3))
def test_temperature_is_the_minimum_that_scipy_finds(seed):
    g = named_generator(seed)
    f, y = 4 * torch.randn(50, 4, generator=g, dtype=DOUBLE), torch.randint(4, (50,), generator=g)
    y = torch.where(torch.rand(50, generator=g) < 0.6, f.argmax(-1), y)
    found = minimize_scalar(
        lambda b: float(functional.cross_entropy(b * f, y)),
        bounds=(0.05, 20),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert (
        abs(best_temperature(f, y) - 1 / found.x) < 1e-5 / found.x
    )  # a minimum is known to the root of the rounding error


@pytest.mark.parametrize("k", [0.2, 3.0])
def test_scaled_logits_scale_the_temperature(k):
    g = named_generator(1)
    f, y = 2 * torch.randn(80, 3, generator=g, dtype=DOUBLE), torch.randint(3, (80,), generator=g)
    y = torch.where(torch.rand(80, generator=g) < 0.5, f.argmax(-1), y)
    once = best_temperature(f, y)
    assert 0.3 < once < 6  # both within the bounds
    assert abs(best_temperature(k * f, y) / once - k) < 1e-10 * k


def test_temperature_stays_within_bounds():
    f = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=DOUBLE)
    assert_close(best_temperature(f, torch.tensor([0, 1])), 0.05)  # every row right: the surer the better
    assert_close(best_temperature(f, torch.tensor([1, 0])), 20.0)


def test_variance_scale_is_the_best_of_a_fine_grid():
    for options in ({}, {"variance": "rows"}):
        model, x, y = trained("regression", 30, **options)
        p = model.base_model.predict(x[:30], named_generator(0), 1, 1)
        grid = torch.logspace(-2, 4, 60_001, dtype=DOUBLE)
        square = (y[:30] - p.means[0]).square() / p.variances[0]  # (rows, targets)
        nll = 0.5 * (
            grid.log() + square.mean(0).unsqueeze(-1) / grid
        )  # (targets, grid), up to what does not depend on it
        assert (model.temperature - 1).abs().max() > 0.1
        assert_close(model.temperature, grid[nll.argmin(-1)], rtol=2e-4, atol=0)
        scaled = model.predict(x, named_generator(0), 1, 1)
        assert_close(
            scaled.variance,
            model.temperature * model.base_model.predict(x, named_generator(0), 1, 1).variance,
            rtol=1e-12,
            atol=0,
        )
        assert_close(scaled.total, scaled.variance, rtol=1e-12, atol=0)
        normal = torch.distributions.Normal(scaled.mean, scaled.std)
        assert_close(scaled.log_prob(y), normal.log_prob(y).sum(-1), rtol=1e-10, atol=1e-10)


def test_each_target_has_its_own_scale():
    model, x, y = trained("regression", 30)
    residual = (y[:30] - model.predict(x[:30], named_generator(0), 1, 1).mean).square().mean(0)
    assert_close(
        model.predict(x, named_generator(0), 1, 1).variance, residual.expand(60, 3), rtol=1e-10, atol=0
    )


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_without_held_out_rows_it_is_the_plain_network_bit_for_bit(kind):
    model, x, y = trained(kind, 0)
    plain = build(Method("map", widths=(20,), precision=0.0), 2, model.task, 0).double()
    fit(plain, make_dataset(x, y, model.task), TrainConfig(steps=150, batch_size=60, lr=3e-2, n_evals=0), 0)
    assert (model.temperature == 1).all()
    for ours, others in zip(model.base_model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, others)
    assert torch.equal(
        model.predict(x, named_generator(0), 1, 1).log_prob(y),
        plain.predict(x, named_generator(0), 1, 1).log_prob(y),
    )
    assert torch.equal(
        model.predict(x, named_generator(0), 1, 1).total, plain.predict(x, named_generator(0), 1, 1).total
    )


def test_labels_never_change():
    model, x, _ = trained("classification", 30)
    wide = 5 * torch.randn(2000, 2, generator=named_generator(2), dtype=DOUBLE)
    labels = model.base_model.predict(wide, named_generator(0), 1, 1).label
    for t in (0.05, 0.7, 20.0):
        model.temperature.fill_(t)
        assert torch.equal(model.predict(wide, named_generator(0), 1, 1).label, labels)
        logits = model.base_model.network(x)[0]
        assert_close(
            model.predict(x, named_generator(0), 1, 1).probs,
            torch.softmax(logits / t, -1).detach(),
            rtol=1e-10,
            atol=1e-14,
        )


def test_a_second_fit_starts_from_one():
    model, x, y = trained("classification", 30)
    model.on_fit_start(make_dataset(x, y, model.task), named_generator(0))
    assert model.temperature == 1


def test_options_are_those_of_the_plain_network():
    model = build(Method("temperature", noise=0.3), 2, Task("regression", 1))
    assert model.config == model.base_model.config and model.config.widths == (50,)
    with pytest.raises(ValueError, match="precision is -1"):
        build(Method("temperature", precision=-1.0), 2, Task("classification", 2))
