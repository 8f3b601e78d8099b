"""Bayesian hypernetworks against their density by autograd, closed forms, and an evidence that is known."""

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from compound.models import Method, build
from compound.ops.gaussian_noise import standard_normal
from compound.random import named_generator
from compound.types import Task, make_dataset

TASK = Task("regression", 1)


def small(**options):
    model = build(Method("bayes-hypernet", widths=(3,), flow_hidden=4, **options), 2, TASK, 1).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=named_generator(2), dtype=torch.float64)
    return model


def test_density_of_the_scales_is_that_of_the_change_of_variables():
    model = small(flows=3)
    scales, log_q = model.scales(5, named_generator(3))
    generator = named_generator(3)
    noise = standard_normal(generator, (5, 4), model.mean)
    masks = model.flow.masks(5, generator)
    for k in range(5):

        def transform(e, k=k):
            z = model.mean + model.log_std.exp() * e
            return 1 + model.flow.op.reference(z[None], masks[:, k : k + 1], *model.flow.parameters())[0][0]

        assert_close(transform(noise[k]), scales[k], rtol=1e-10, atol=1e-10)
        jacobian = torch.autograd.functional.jacobian(transform, noise[k])
        expected = Normal(0.0, 1.0).log_prob(noise[k]).sum() - torch.linalg.slogdet(jacobian)[1]
        assert_close(log_q[k], expected, rtol=1e-10, atol=1e-10)


def test_without_a_flow_the_kl_is_that_of_gaussians():
    model = small(flows=0, prior=2.0)
    scales, log_q = model.scales(20_000, named_generator(4))
    ratio = (log_q - model.log_prior(scales)).detach()
    posterior, prior = Normal(1 + model.mean, model.log_std.exp()), Normal(0.0, math.sqrt(2.0))
    expected = kl_divergence(posterior, prior).sum().item()
    assert abs(ratio.mean().item() - expected) < 5 * ratio.std().item() / math.sqrt(len(ratio))


def test_outputs_are_those_of_weights_with_normalised_columns():
    model = small()
    x = torch.randn(4, 2, generator=named_generator(5), dtype=torch.float64)
    scales = torch.randn(3, 4, 4, generator=named_generator(6), dtype=torch.float64)  # for every draw and row
    found = model.outputs_given(x, scales)
    (a, b), (c, d) = [(layer.weight[0], layer.bias[0, 0]) for layer in model.network.layers]
    for s in range(3):
        for n in range(4):
            g, last = scales[s, n, :3], scales[s, n, 3:]
            h = torch.stack([g[j] * (x[n] @ a[:, j]) / a[:, j].norm() + b[j] for j in range(3)]).relu()
            assert_close(found[s, n], last * (h @ c[:, 0]) / c[:, 0].norm() + d, rtol=1e-10, atol=1e-10)


def test_objective_is_the_evidence_at_the_exact_posterior_and_below_it_elsewhere():
    """One scale g, one weight: y = g x + noise, so posterior and evidence are Gaussian."""
    model = build(Method("bayes-hypernet", widths=(), flows=0, noise=0.7, prior=1.5), 1, TASK, 0).double()
    x = torch.randn(12, 1, generator=named_generator(7), dtype=torch.float64)
    y = 0.8 * x + 0.7 * torch.randn(12, 1, generator=named_generator(8), dtype=torch.float64)
    data = make_dataset(x, y, TASK)
    precision = float(1 / 1.5 + (x.square().sum() / 0.49))
    mean = float((x * y).sum() / 0.49) / precision
    covariance = 1.5 * x @ x.T + 0.49 * torch.eye(12)
    zeros = torch.zeros(12, dtype=torch.float64)
    evidence = torch.distributions.MultivariateNormal(zeros, covariance).log_prob(y[:, 0]).item()
    with torch.no_grad():
        (layer,) = model.network.layers
        layer.weight.fill_(2.0)  # only its sign counts
        layer.bias.zero_()
        model.log_std.fill_(-0.5 * math.log(precision))
    for shift in (0.0, 0.3):
        with torch.no_grad():
            model.mean.fill_(mean - 1 + shift)
        bounds = torch.tensor([-12 * model.loss(data, named_generator(k)).total.item() for k in range(4000)])
        error = 5 * bounds.std().item() / math.sqrt(len(bounds))
        # KL of two Gaussians of equal variance
        assert abs(bounds.mean().item() - (evidence - 0.5 * precision * shift**2)) < error


def test_bad_options_are_refused():
    for options, words in (
        ({"samples": 0}, "samples is 0"),
        ({"flows": -1}, "flows -1"),
        ({"prior": 0.0}, "prior"),
    ):
        with pytest.raises(ValueError, match=words):
            build(Method("bayes-hypernet", **options), 2, TASK)
