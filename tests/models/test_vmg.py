"""Matrix-Gaussian weights against draws, dense Kronecker covariances and exact Bayesian regression."""

import math

import pytest
import torch
import variational
from oracles import dense, matrix_normals, wide
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close
from variational import (
    CLASSES,
    ONE,
    TWO,
    N,
    divergence,
    elbo,
    exact_posterior,
    law,
    maximise,
    model_of,
    numbers,
    orthogonal,
    outputs,
)

from compound.models import Method, build
from compound.random import named_generator
from compound.types import Task, make_dataset

MANY = 400_000


@pytest.mark.parametrize("prior", [1.0, 0.25])
def test_kl_is_that_of_the_dense_covariance(prior):
    (layer,) = model_of(Method("vmg", widths=(), prior=prior), 3, CLASSES).layers  # r = 4, c = 3
    (q,) = matrix_normals(layer)
    standard = MultivariateNormal(
        torch.zeros(12, dtype=torch.float64), prior * torch.eye(12, dtype=torch.float64)
    )
    exact = kl_divergence(dense(q), standard)
    assert_close(divergence(layer), exact, rtol=1e-12, atol=1e-12)
    assert_close(layer.kl(), exact, rtol=1e-12, atol=1e-12)


def test_scaled_prior_has_one_over_the_rows_of_each_matrix():
    variational.check_scaled_prior(model_of(Method("vmg", widths=(5,), prior="scaled"), 3, CLASSES))


def test_kl_and_its_gradient_vanish_at_the_prior():
    (layer,) = build(Method("vmg", widths=(), log_variance=0.0), 3, CLASSES).double().layers
    torch.nn.init.zeros_(layer.mean)
    variational.check_prior_is_stationary(layer)


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
    drawn = (wide(x) @ q.rsample((MANY,), named_generator(1))).detach()  # (MANY, 2, out)
    variational.check_moments(drawn, mean, std)
    # one W for both rows: covariance b_j sum_i x_i x'_i a_i
    first, second = (drawn - mean).unbind(1)
    covariance = (wide(x).prod(0) @ layer.log_row[0].exp()) * layer.log_col.exp()
    assert (
        ((first * second).mean(0) - covariance).abs() < 4 * (first * second).std(0) / math.sqrt(MANY)
    ).all()


@pytest.mark.parametrize("outputs", [2, 20])  # few columns go their own way
def test_draws_of_training_are_mean_plus_deviation_times_noise(outputs):
    (layer,) = model_of(Method("vmg", widths=(), prior=0.5), 3, Task("regression", outputs)).layers
    variational.check_draws_of_training(layer)


@pytest.mark.parametrize("task", [CLASSES, TWO], ids=lambda t: t.kind)
def test_gradient_of_the_loss_with_frozen_noise(task):
    variational.check_gradient_of_loss(model_of(Method("vmg", widths=(4, 3), samples=2), 3, task))


def test_prediction_is_that_of_drawn_networks():
    variational.check_prediction(model_of(Method("vmg", widths=(5,)), 3, CLASSES))


def test_loss_averages_log_likelihoods_of_drawn_networks():
    variational.check_nll(model_of(Method("vmg", widths=(5,), samples=N), 3, CLASSES))


def test_rows_have_noise_of_their_own_in_training():
    """Many equal rows with one draw each: their mean is the expected log-likelihood, known exactly."""
    n = 100_000
    model = model_of(Method("vmg", widths=()), 3, TWO)
    x, y = numbers(1, 3), numbers(1, 2)
    mean, std = model.layers[0].moments(x)
    exact = model.likelihood.expected_log_prob(mean.unsqueeze(0), std.square().unsqueeze(0), y)
    logs = model.likelihood.log_prob(outputs(model, x, n, named_generator(1)).unsqueeze(0), y)  # (1, n, 1)
    nll = model.loss(make_dataset(x.expand(n, -1), y.expand(n, -1), TWO), named_generator(2)).nll
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
    assert_close(
        law(layer).variance, exact.covariance.diagonal().unsqueeze(1).expand(-1, task.size), rtol=0, atol=1e-8
    )
    assert_close(elbo(model, x, y), exact.log_evidence, rtol=0, atol=1e-8)


def test_bound_lies_below_the_evidence_by_the_distance_to_the_posterior():
    model = model_of(Method("vmg", widths=(), noise=0.5), 3, TWO)
    exact = variational.check_gap_while_maximised(model)
    assert_close(model.layers[0].mean.detach(), exact.mean, rtol=0, atol=1e-7)


def test_shares_are_the_noise_and_the_variance_of_the_network():
    variational.check_shares(model_of(Method("vmg", widths=(), noise=0.5), 3, TWO))


def test_start_is_that_of_the_plain_network():
    variational.check_start("vmg", std=math.exp(-3))


def test_float32_is_enough():
    variational.check_float32("vmg")


@pytest.mark.parametrize(("options", "words"), variational.BAD_OPTIONS)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        build(Method("vmg", **options), 3, ONE)
