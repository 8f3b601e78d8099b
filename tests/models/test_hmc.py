"""Hamiltonian Monte Carlo against posteriors that are known, and identities that every posterior obeys."""

import math

import pytest
import torch
from torch.testing import assert_close

from compound.models import Method, build
from compound.models.hamiltonian import DualAveraging, State, leapfrog, sample
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import Task, make_dataset

EFFECTIVE = 1 / 5  # of a draw: chains whose draws are this correlated still pass
SIGMAS = 5.0


def gaussian(precision: torch.Tensor, mean: torch.Tensor):
    def energy(q):  # (chains, d) -> (chains,)
        return 0.5 * ((q - mean) @ precision * (q - mean)).sum(-1)

    return energy


def double(*shape: int, stream: str = "x") -> torch.Tensor:
    return torch.randn(shape, generator=named_generator(1, stream), dtype=torch.float64)


def test_leapfrog_is_reversible_and_its_error_is_quadratic():
    root = double(4, 4)
    energy = gaussian(root @ root.T + torch.eye(4), double(4, stream="mean"))
    variance = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
    start, momentum = State.at(energy, double(3, 4, stream="q")), double(3, 4, stream="p")

    def hamiltonian(state, p):
        return state.energy + 0.5 * (variance * p.square()).sum(-1)

    errors = []
    for halvings in range(2):
        step = torch.full((3, 1), 0.02 / 2**halvings, dtype=torch.float64)
        end, p = leapfrog(energy, start, momentum, step, variance, 20 * 2**halvings)
        errors.append((hamiltonian(end, p) - hamiltonian(start, momentum)).abs())
        back, q = leapfrog(energy, end, -p, step, variance, 20 * 2**halvings)
        assert_close(back.position, start.position, rtol=0, atol=1e-10)
        assert_close(q, -momentum, rtol=0, atol=1e-10)
    ratio = errors[0] / errors[1]
    assert bool(((ratio > 3.6) & (ratio < 4.4)).all())  # half the step, a quarter of the error


def test_draws_have_the_moments_of_a_correlated_gaussian():
    precision = torch.tensor([[4.0, 1.5, 0.0], [1.5, 1.0, 0.1], [0.0, 0.1, 0.25]], dtype=torch.float64)
    mean, covariance = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), torch.linalg.inv(precision)
    found = sample(gaussian(precision, mean), torch.zeros(8, 3).double(), 400, 200, 15, named_generator(2))
    q = found.positions.flatten(0, 1) - mean
    n = EFFECTIVE * len(q)
    variances = covariance.diagonal()
    assert bool((q.mean(0).abs() < SIGMAS * (variances / n).sqrt()).all())
    # var(q_i q_j) of a Gaussian is v_i v_j + c_ij²
    scatter = (variances.outer(variances) + covariance.square()) / n
    assert bool(((q.T @ q / len(q) - covariance).abs() < SIGMAS * scatter.sqrt()).all())
    assert bool(((found.acceptance > 0.6) & (found.acceptance < 0.97)).all())  # the target is .8


def test_dual_averaging_finds_the_step_of_the_target():
    adaptation = DualAveraging(torch.tensor([1e-3, 10.0], dtype=torch.float64))
    for _ in range(2000):  # acceptance exp(-step): the target .8 is at -log .8
        adaptation.update((-adaptation.log_step.exp()).exp())
    assert_close(adaptation.log_average.exp(), torch.full((2,), -math.log(0.8)).double(), rtol=0.05, atol=0)


def linear_regression():
    """Rows, the fitted model without hidden layers, and the exact posterior of its weights."""
    x = torch.randn(40, 2, generator=named_generator(3))
    y = x @ torch.tensor([[1.0], [-0.5]]) + 0.3 + 0.5 * torch.randn(40, 1, generator=named_generator(4))
    task = Task("regression", 1)
    options = {"widths": (), "noise": 0.5, "members": 8, "draws": 2400, "warmup": 100, "leapfrog": 8}
    model = build(Method("hmc", **options, precision=2.0), 2, task)
    weight = torch.ones(40)
    weight[:8] = 0  # held out
    fit(model, make_dataset(x, y, task, weight), TrainConfig(steps=50), 0)
    kept = torch.cat([x, torch.ones(40, 1)], 1)[8:].double()
    covariance = torch.linalg.inv(kept.T @ kept / 0.25 + 2 * torch.eye(3).double())
    return model, covariance @ kept.T @ y[8:].double() / 0.25, covariance


def test_linear_regression_has_its_exact_posterior_and_predictive():
    model, mean, covariance = linear_regression()
    draws = model.samples.double().flatten(0, 1)  # weights, then the bias
    n = EFFECTIVE * len(draws)
    assert bool(((draws.mean(0) - mean[:, 0]).abs() < SIGMAS * (covariance.diagonal() / n).sqrt()).all())
    variances = covariance.diagonal()
    scatter = (variances.outer(variances) + covariance.square()) / n
    assert bool(((draws.T.cov() - covariance).abs() < SIGMAS * scatter.sqrt()).all())
    x = torch.tensor([[0.0, 0.0], [2.0, -3.0]])
    x_aug = torch.cat([x, torch.ones(2, 1)], 1).double()
    p = model.predict(x, named_generator(0))
    epistemic = (x_aug @ covariance * x_aug).sum(1)
    assert_close(p.epistemic[:, 0].double(), epistemic, rtol=SIGMAS * math.sqrt(2 / n), atol=0)
    assert_close(p.aleatoric[:, 0], torch.full((2,), 0.25), rtol=1e-5, atol=0)


def test_a_small_network_obeys_the_virial_identities():
    """E[q_i ∂U/∂q_j] = 1 if i = j, else 0, for every posterior that vanishes at infinity."""
    x = torch.randn(8, 1, generator=named_generator(5))
    y, task = (2 * x).sin(), Task("regression", 1)
    options = {"widths": (2,), "noise": 1.0, "members": 16, "draws": 4800, "warmup": 100, "leapfrog": 10}
    model, data = build(Method("hmc", **options), 1, task), make_dataset(x, y, task)
    fit(model, data, TrainConfig(steps=200), 0)
    energy = model.energy(data)
    state = [State.at(energy, weights) for weights in model.samples]
    products = torch.stack([s.position * s.grad for s in state]).double().flatten(0, 1)  # (draws, weights)
    n = EFFECTIVE * len(products)
    error = SIGMAS * products.std(0) / math.sqrt(n)
    assert bool(((products.mean(0) - 1).abs() < error).all())
    assert error.max() < 1  # the test says something


def test_energy_counts_rows_by_their_weight_and_the_prior():
    task = Task("classification", 3)
    model = build(Method("hmc", widths=(4,), members=2, draws=2, precision=3.0), 2, task).double()
    x, y = double(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    weight = torch.tensor([1.0, 0.0, 2.0, 1.0, 1.0, 1.0])
    data = make_dataset(x, y, task, weight)
    weights = model._weights().detach()
    expected = []
    for member in range(2):
        prior, f = 0.0, x
        for layer in model.network.layers:
            w, b = layer.weight[member].detach(), layer.bias[member].detach()
            prior += 1.5 * float(w.square().sum() + b.square().sum())
            f = f @ w + b
            f = f.relu() if layer is model.network.layers[0] else f
        logs = torch.log_softmax(f, -1)
        expected.append(prior - sum(float(weight[i] * logs[i, y[i]]) for i in range(6)))
    assert_close(model.energy(data)(weights), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)


def test_many_rows_and_bad_options_are_refused():
    task = Task("regression", 1)
    rows = torch.zeros(20_001, 1)
    with pytest.raises(ValueError, match="all 20001 training rows"):
        fit(build("hmc", 1, task), make_dataset(rows, rows, task), TrainConfig(steps=1), 0)
    for options, words in (
        ({"draws": 0}, "draws is 0"),
        ({"leapfrog": 0}, "leapfrog is 0"),
        ({"warmup": -1}, "warmup is -1"),
        ({"precision": 0.0}, "precision is 0.0"),
    ):
        with pytest.raises(ValueError, match=words):
            build(Method("hmc", **options), 1, task)
