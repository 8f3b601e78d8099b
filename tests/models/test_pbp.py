"""Probabilistic backpropagation against sampled weights, autograd, and expectation propagation by hand."""

import math

import pytest
import torch
from torch.testing import assert_close

from compound.models import Method, build
from compound.ops.moment_propagation import filter_rows, log_evidence, moments, unflatten
from compound.ops.prior_refinement import refine_prior
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import Task, make_dataset

DOUBLE = torch.float64
WIDTHS = (3, 4, 2)
SIZE = 4 * 4 + 5 * 2


def double(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=named_generator(seed), dtype=DOUBLE)


def positive(*shape: int, seed: int) -> torch.Tensor:
    return torch.rand(shape, generator=named_generator(seed), dtype=DOUBLE) + 0.1


def test_moments_are_those_of_sampled_weights():
    """With one hidden layer they are exact: its units are independent Gaussians."""
    x, mean, variance = double(3, 3), double(SIZE, seed=2), positive(SIZE, seed=3)
    draws = 40_000
    weights = mean + variance.sqrt() * double(draws, SIZE, seed=4)
    first, last = weights[:, :16].view(draws, 4, 4), weights[:, 16:].view(draws, 5, 2)
    h = (torch.cat([x, torch.ones(3, 1)], 1) @ first / 2).relu()
    f = torch.cat([h, h.new_ones(draws, 3, 1)], 2) @ last / math.sqrt(5)
    found_mean, found_variance = moments(x, mean, variance, WIDTHS)
    assert bool(((f.mean(0) - found_mean).abs() < 5 * (found_variance / draws).sqrt()).all())
    squares = (f - found_mean).square()
    assert bool(((squares.mean(0) - found_variance).abs() < 5 * squares.std(0) / math.sqrt(draws)).all())


def slow_filter(x, y, mean, variance, gammas, widths):
    """The updates row by row, with derivatives from autograd."""
    total = 0.0
    for k in range(len(x)):
        m, v = mean.clone().requires_grad_(), variance.clone().requires_grad_()

        f, spread = moments(x[k : k + 1], m, v, widths)
        noises = [gammas[:, 1] / (gammas[:, 0] - 1 + shift) for shift in range(3)]
        value = log_evidence(f, spread, y[k : k + 1], noises[0]).sum()
        d_m, d_v = torch.autograd.grad(value, (m, v))
        total += value.item()
        new_v = v - v.square() * (d_m.square() - 2 * d_v)
        kept = new_v > 1e-100
        totals = [(spread + noise)[0].detach() for noise in noises]
        squares = (y[k] - f[0].detach()).square()
        z = [torch.exp(-0.5 * ((2 * math.pi * s).log() + squares / s)) for s in totals]
        a, b = gammas.T
        new_a = 1 / (z[0] * z[2] / z[1].square() * (a + 1) / a - 1)
        new_b = 1 / (z[2] / z[1] * (a + 1) / b - z[1] / z[0] * a / b)
        mean = torch.where(kept, m + v * d_m, m).detach()
        variance = torch.where(kept, new_v, v).detach()
        gammas = torch.stack([new_a, new_b], 1)
    return mean, variance, gammas, total


@pytest.mark.parametrize("widths", [WIDTHS, (3, 3, 4, 1), (3, 2)], ids=["one", "two", "none"])
def test_updates_are_those_of_autograd(widths):
    size = sum((a + 1) * b for a, b in zip(widths, widths[1:], strict=False))
    x, y = double(7, 3), double(7, widths[-1], seed=5)
    mean, variance = double(size, seed=2), positive(size, seed=3)
    gammas = 6 + positive(widths[-1], 2, seed=6)
    expected = slow_filter(x, y, mean, variance, gammas, widths)
    total = filter_rows(x, y, mean, variance, gammas, widths)  # in place
    for found, right in zip((mean, variance, gammas), expected, strict=False):
        assert_close(found, right, rtol=1e-9, atol=1e-12)
    assert total == pytest.approx(expected[3], rel=1e-10)


def test_a_variance_never_becomes_negative():
    mean, variance = torch.zeros(2, dtype=DOUBLE), torch.tensor([1e-3, 4.0], dtype=DOUBLE)
    gammas = torch.tensor([[1e6, 1e3]], dtype=DOUBLE)
    for _ in range(50):
        filter_rows(
            torch.ones(1, 1).to(DOUBLE), torch.full((1, 1), 30.0).to(DOUBLE), mean, variance, gammas, (1, 1)
        )
        assert bool((variance > 0).all()) and bool(mean.isfinite().all())


def slow_refine(mean, variance, sites, gamma):
    """Expectation propagation with natural parameters as dictionaries, one factor after another."""
    mean, variance, sites, (alpha, beta) = mean.tolist(), variance.tolist(), sites.T.tolist(), gamma.tolist()
    for i, site in enumerate(sites):
        natural = [mean[i] / variance[i], 1 / variance[i], alpha - 1, -beta]
        cavity = [q - f for q, f in zip(natural, site, strict=True)]
        v, m, a, b = 1 / cavity[1], cavity[0] / cavity[1], cavity[2] + 1, -cavity[3]
        s = torch.tensor([b / (a - 1 + k) + v for k in range(3)], dtype=DOUBLE)
        z = torch.exp(-0.5 * (s.log() + m * m / s))
        mm, vv = (torch.tensor(each, dtype=DOUBLE, requires_grad=True) for each in (m, v))
        spread = vv + b / (a - 1)
        d_m, d_v = torch.autograd.grad(-0.5 * (spread.log() + mm * mm / spread), (mm, vv))
        mean[i], variance[i] = m + v * float(d_m), v - v * v * float(d_m**2 - 2 * d_v)
        alpha = float(1 / (z[0] * z[2] / z[1] ** 2 * (a + 1) / a - 1))
        beta = float(1 / (z[2] / z[1] * (a + 1) / b - z[1] / z[0] * a / b))
        natural = [mean[i] / variance[i], 1 / variance[i], alpha - 1, -beta]
        sites[i] = [q - c for q, c in zip(natural, cavity, strict=True)]
    return [torch.tensor(each, dtype=DOUBLE) for each in (mean, variance, sites)] + [
        torch.tensor([alpha, beta], dtype=DOUBLE)
    ]


def test_prior_is_refined_by_expectation_propagation():
    mean, variance = double(6), 0.2 * positive(6, seed=2)
    sites = torch.zeros(4, 6, dtype=DOUBLE)
    sites[1] = 5 / 6
    gamma = torch.tensor([6.0, 6.0], dtype=DOUBLE)
    for _ in range(3):  # from the second pass on all sites are in use
        expected = slow_refine(mean, variance, sites, gamma)
        refine_prior(mean, variance, sites, gamma)
        for found, right in zip((mean, variance, sites.T, gamma), expected, strict=True):
            assert_close(found, right, rtol=1e-9, atol=1e-11)


def test_a_pass_over_the_rows_refines_the_prior_once():
    task = Task("regression", 1)
    model = build(Method("pbp", widths=(4,)), 2, task)
    x = torch.randn(10, 2, generator=named_generator(3))
    data = make_dataset(x, x[:, :1].sin(), task)
    model.on_fit_start(data, named_generator(0))
    start = model.weight_gamma.detach().clone()
    optimizer = model.optimizer(TrainConfig())
    alphas = []
    for step in range(5):
        optimizer.zero_grad()
        model.loss(data.take(torch.arange(4 * step, 4 * step + 4) % 10), named_generator(0)).total.backward()
        optimizer.step()
        alphas.append(bool((model.weight_gamma != start).any()))
    assert alphas == [False, False, True, True, True] and model.rows_seen.item() == 0


def test_held_out_rows_change_nothing_and_unequal_weights_are_refused():
    task = Task("regression", 1)
    x, y = torch.randn(6, 2, generator=named_generator(3)), torch.randn(6, 1, generator=named_generator(4))
    weight = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    model = build(Method("pbp", widths=(4,)), 2, task)
    model.on_fit_start(make_dataset(x, y, task, weight), named_generator(0))
    losses = [
        model.loss(
            make_dataset(x + shift * (weight == 0)[:, None], y, task, weight), named_generator(0)
        ).total
        for shift in (0.0, 5.0)
    ]
    assert torch.equal(*losses)
    with pytest.raises(ValueError, match="sample weights must be equal"):
        fit(model, make_dataset(x, y, task, weight + torch.arange(6)), TrainConfig(steps=1), 0)
    with pytest.raises(ValueError, match="pbp is for regression"):
        build("pbp", 2, Task("classification", 3))


def test_weights_of_layers_stand_one_after_another():
    parts = unflatten(torch.arange(SIZE), WIDTHS)
    assert [tuple(part.shape) for part in parts] == [(4, 4), (5, 2)] and int(parts[1][0, 0]) == 16
