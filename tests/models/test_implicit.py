"""Implicit posteriors: the entropy estimate against known ones, the generator and the loss by hand."""

import math

import pytest
import torch
from torch.testing import assert_close

from compound.models import Method, build
from compound.models.implicit import entropy, kl_to_normal
from compound.ops.gaussian_noise import standard_normal
from compound.random import named_generator
from compound.types import Task, make_dataset

TASK = Task("regression", 1)


def double(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=named_generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_entropy_of_gaussians(size):
    """Kozachenko and Leonenko's estimate is nearly unbiased, with a variance of about 1 / n."""
    scale, repeats, n = 0.7, 40, 200
    found = torch.stack([entropy(scale * double(n, size, seed=k)) for k in range(repeats)])
    expected = size * (0.5 * math.log(2 * math.pi * math.e) + math.log(scale))
    error = 5 * found.std() / math.sqrt(repeats) + 0.02 * size  # the bias of n points
    assert abs(found.mean() - expected) < error


def test_kl_of_a_gaussian_to_the_prior():
    scale, shift, variance = 0.5, 1.2, 2.0
    draws = [shift + scale * double(200, 2, seed=k) for k in range(40)]
    found = torch.stack([kl_to_normal(draw, variance) for draw in draws])
    ratio = scale**2 / variance
    expected = 2 * 0.5 * (ratio + shift**2 / variance - 1 - math.log(ratio))
    assert abs(found.mean() - expected) < 5 * found.std() / math.sqrt(40) + 0.04


def test_entropy_by_loops_and_for_equal_draws():
    theta = double(4, 3)
    logs = [min(math.dist(theta[s], theta[t]) for t in range(4) if t != s) for s in range(4)]
    harmonic = 1 + 1 / 2 + 1 / 3  # ψ(4) - ψ(1)
    expected = harmonic + math.log(4 / 3 * math.pi) + 3 * sum(map(math.log, logs)) / 4
    assert float(entropy(theta)) == pytest.approx(expected, rel=1e-12)
    same = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    value = entropy(same)
    value.backward()
    assert bool(value.isfinite()) and bool(same.grad.isfinite().all())


def by_hand(model, z):
    """Weights of all layers for one z, entry by entry."""
    weights = []
    for layer in model.layers:
        rows, outputs = layer.mean.shape
        hidden = [
            [torch.tanh(layer.embedding[i, k] + z @ layer.noise[:, k]) for k in range(layer.noise.shape[1])]
            for i in range(rows)
        ]
        entries = [
            [layer.mean[i, j] + torch.stack(hidden[i]) @ layer.heads[:, j] for j in range(outputs)]
            for i in range(rows)
        ]
        weights.append(torch.stack([torch.stack(row) for row in entries]))
    return weights


def test_loss_gives_rows_their_draws_in_turn():
    options = {"widths": (3,), "latent": 2, "hyper": 4, "samples": 2, "noise": 0.6, "prior": 1.5}
    model = build(Method("implicit", **options), 2, TASK, 0).double()
    with torch.no_grad():
        for layer in model.layers:
            layer.heads.copy_(double(*layer.heads.shape, seed=5))
    x, y = double(5, 2, seed=2), double(5, 1, seed=3)
    data = make_dataset(x, y, TASK)
    z = standard_normal(named_generator(4), (2, 2), x)  # what the loss draws
    found = model.loss(data, named_generator(4))
    with torch.no_grad():
        weights = [by_hand(model, each) for each in z]
        x_aug = torch.cat([x, torch.ones(5, 1)], 1)
        nll = 0.0
        for n in range(5):
            first, last = weights[n % 2]
            f = torch.cat([(x_aug[n] @ first).relu(), torch.ones(1)]) @ last
            nll -= torch.distributions.Normal(f, 0.6).log_prob(y[n]).item() / 5
        theta = torch.stack([torch.cat([w.flatten() for w in each]) for each in weights])
        kl = float(kl_to_normal(theta, 1.5)) / 5
    assert_close(found.nll.double().mean().item(), nll, rtol=1e-6, atol=0)
    assert_close(found.total.item(), nll + kl, rtol=1e-6, atol=1e-9)


def test_bad_options_are_refused():
    for options, words in (
        ({"samples": 1}, "samples is 1"),
        ({"latent": 0}, "latent is 0"),
        ({"prior": -1.0}, "prior"),
    ):
        with pytest.raises(ValueError, match=words):
            build(Method("implicit", **options), 2, TASK)
