"""Families of distributions against scipy, mixtures of them against their definition."""

import numpy as np
import pytest
import scipy.stats as stats
import torch
from scipy.integrate import quad

from compound.families import FAMILIES, log_tails, mixture_log_prob, z_quantile
from compound.families.mixtures import log_lik
from compound.predictive import FamilyPredictive
from compound.random import named_generator

LEVELS = torch.tensor([1e-12, 1e-3, 0.05, 0.31, 0.5, 0.8, 0.95, 1 - 1e-6], dtype=torch.float64)
CASES = [
    ("student-t", (0.3, 1.7, 4.3), stats.t(4.3, 0.3, 1.7)),
    ("student-t", (-2.0, 0.01, 150.0), stats.t(150, -2, 0.01)),
    ("log-normal", (0.5, 0.8), stats.lognorm(0.8, scale=np.exp(0.5))),
    ("log-normal", (-3.0, 2.5), stats.lognorm(2.5, scale=np.exp(-3))),
    ("weibull", (2.0, 1.5), stats.weibull_min(1.5, scale=2)),
    ("weibull", (30.0, 0.4), stats.weibull_min(0.4, scale=30)),
    ("poisson", (3.4, 0.0), stats.poisson(3.4)),
    ("poisson", (400.0, 0.0), stats.poisson(400)),
    ("negative-binomial", (7.5, 0.4), stats.nbinom(2.5, 2.5 / 10)),
    ("negative-binomial", (0.2, 8.0), stats.nbinom(1 / 8, 1 / (1 + 0.2 * 8))),
    ("negative-binomial", (900.0, 0.01), stats.nbinom(100, 0.1)),
]


@pytest.mark.parametrize("name,params,reference", CASES)
def test_families_equal_scipy(name, params, reference):
    family, params = FAMILIES[name], torch.tensor(params, dtype=torch.float64)
    y = torch.from_numpy(reference.ppf(LEVELS.numpy()))
    log_prob = reference.logpmf(y) if family.discrete else reference.logpdf(y)
    for actual, expected in (
        (family.log_prob(y, params), log_prob),
        (family.log_survival(y, params), reference.logsf(y)),
        (family.cdf(y, params), reference.cdf(y)),
        (family.survival(y, params), reference.sf(y)),
        (family.icdf(LEVELS, params), y.numpy()),
        (family.isf(LEVELS, params), reference.isf(LEVELS.numpy())),
        (family.mean(params), reference.mean()),
        (family.variance(params), reference.var()),
    ):
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name,params,reference", CASES)
def test_samples_have_the_distribution(name, params, reference):
    family = FAMILIES[name]
    drawn = family.sample(20_000, torch.tensor(params), named_generator(0, name)).numpy()
    for level in (0.1, 0.5, 0.9):
        point = reference.ppf(level)
        expected = reference.cdf(point)
        assert abs((drawn <= point).mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / 20_000)


@pytest.mark.parametrize("name,params,reference", [case for case in CASES if case[0] != "poisson"])
def test_gradients_are_those_of_differences(name, params, reference):
    family = FAMILIES[name]
    y = torch.from_numpy(reference.ppf([0.2, 0.9]))
    values = torch.tensor(params, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda p: family.log_prob(y, p), values)
    if family.positive:
        torch.autograd.gradcheck(lambda p: family.log_survival(y, p), values)


def mixture(name: str, rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Parameters (5, rows, 2, n) and log-weights (5, rows, 1)."""
    params = torch.tensor(next(case[1] for case in CASES if case[0] == name), dtype=torch.float64)
    factors = 0.6 + torch.rand(5, rows, 2, 1, generator=named_generator(1, name), dtype=torch.float64)
    weights = torch.randn(5, rows, 1, generator=named_generator(2, name), dtype=torch.float64)
    return params * factors, torch.log_softmax(weights, 0)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("z", [-7.0, -1.6, 0.0, 0.4, 3.0, 7.0])
def test_quantiles_of_mixtures_invert_the_tails(name, z):
    family, (params, log_weights) = FAMILIES[name], mixture(name)
    levels = torch.tensor([z, -z], dtype=torch.float64)  # each target has its own
    y = z_quantile(family, levels, params, log_weights)
    weights = log_weights.exp()
    cdf = (weights * family.cdf(y, params)).sum(0)
    survival = (weights * family.survival(y, params)).sum(0)
    lower, upper = torch.special.log_ndtr(levels).exp(), torch.special.log_ndtr(-levels).exp()
    if family.discrete:  # the smallest y with P(Y <= y) at least the level
        assert (torch.where(levels > 0, survival <= upper, cdf >= lower)).all()
        before = (weights * family.cdf(y - 1, params)).sum(0)
        beyond = (weights * family.survival(y - 1, params)).sum(0)
        assert (torch.where(levels > 0, beyond > upper, before < lower)).all()
    else:
        actual = torch.where(levels > 0, survival / upper, cdf / lower)
        torch.testing.assert_close(actual, torch.ones_like(actual), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_mixtures_are_sums_of_their_components(name):
    family, (params, log_weights) = FAMILIES[name], mixture(name)
    y = family.icdf(torch.tensor(0.4, dtype=torch.float64), params[0])
    joint = sum(
        log_weights[k].exp()[:, 0] * family.log_prob(y, params[k]).sum(-1).exp() for k in range(len(params))
    )
    torch.testing.assert_close(mixture_log_prob(family, y, params, log_weights).exp(), joint)
    lower, upper = (tail.exp() for tail in log_tails(family, y, params, log_weights))
    weights = log_weights.exp()
    atom = (weights * family.log_prob(y, params).exp()).sum(0) if family.discrete else 0.0
    torch.testing.assert_close(lower + upper, torch.ones_like(lower) + atom)


@pytest.mark.parametrize("name", ["log-normal", "weibull"])
def test_censored_times_count_with_their_survival(name):
    family, (params, _) = FAMILIES[name], mixture(name)
    params = params[..., :1, :]
    times = torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64)
    events = torch.tensor([[1.0], [0.0], [1.0]], dtype=torch.float64)
    actual = log_lik(family, torch.cat([times, events], 1), params)
    expected = torch.where(events > 0, family.log_prob(times, params), family.survival(times, params).log())
    torch.testing.assert_close(actual, expected.squeeze(-1))


@pytest.mark.parametrize("name", FAMILIES)
def test_parts_of_the_variance_add_up(name):
    """With one draw per level of nesting exact: total is the variance of the mixture of all draws."""
    family, (params, _) = FAMILIES[name], mixture(name)
    p = FamilyPredictive.from_draws(name, params.unsqueeze(1), members=5)  # members are all there are
    torch.testing.assert_close(p.component, family.variance(params).mean(0))
    torch.testing.assert_close(p.mixing, torch.zeros_like(p.mixing))
    torch.testing.assert_close(p.total, family.variance(params).mean(0) + p.posterior)
    torch.testing.assert_close(p.posterior, family.mean(params).var(0, correction=0))


@pytest.mark.parametrize("name", FAMILIES)
def test_far_noise_mixes_with_a_wide_member(name):
    family, (params, _) = FAMILIES[name], mixture(name)
    p = FamilyPredictive.from_draws(name, params.unsqueeze(1), members=5)
    far = params[0, 0] * 1.5  # (targets, parameters)
    noisy = p.with_far_noise(torch.tensor([-20.0, 0.0, 20.0], dtype=torch.float64), far.flatten())
    weight = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64).unsqueeze(-1)
    y = family.icdf(torch.tensor(0.7, dtype=torch.float64), params[1])
    cdf = (1 - weight) * p.cdf(y) + weight * family.cdf(y, far)
    torch.testing.assert_close(noisy.cdf(y), cdf, rtol=1e-6, atol=1e-8)
    # law of total variance of the mixture, exact since the members are all there are
    mean = (1 - weight) * p.mean + weight * family.mean(far)
    second = (1 - weight) * (p.total + p.mean.square())
    second = second + weight * (family.variance(far) + family.mean(far).square())
    torch.testing.assert_close(noisy.mean, mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(noisy.total, second - mean.square(), rtol=1e-5, atol=1e-7)
    assert (noisy.aleatoric <= p.aleatoric + 1e-12).all()
    assert noisy[1:].log_prob(y[1:]).shape == (2,)


@pytest.mark.parametrize("name", ["student-t", "log-normal", "weibull"])
def test_other_units_change_the_predictive_as_they_should(name):
    p = FamilyPredictive.from_draws(name, mixture(name)[0].unsqueeze(1), members=5)
    shift, scale = (2.0 if name == "student-t" else 0.0), 3.0
    other = p.rescale(shift, scale)
    y = p.quantile(0.3)
    torch.testing.assert_close(other.quantile(0.3), shift + scale * y, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(other.total, scale**2 * p.total)
    torch.testing.assert_close(other.log_prob(shift + scale * y), p.log_prob(y) - 2 * np.log(scale))


def test_the_entropy_is_minus_the_expected_log_density():
    params, _ = mixture("weibull", rows=1)
    p = FamilyPredictive.from_draws("weibull", params[:, :, :1].unsqueeze(1), members=5)

    def integrand(y: float) -> float:
        log_density = float(p.log_prob(torch.tensor([[y]], dtype=torch.float64)))
        return -np.exp(log_density) * log_density

    expected = quad(integrand, 0, float(p.quantile(1 - 1e-9)), limit=200)[0]
    assert abs(float(p.entropy()) - expected) < 0.01


def test_samples_of_a_predictive_have_its_cdf():
    params, _ = mixture("negative-binomial", rows=1)
    p = FamilyPredictive.from_draws("negative-binomial", params.unsqueeze(1), members=5)
    p = p.with_far_noise(torch.zeros(1), params[0, 0].flatten())
    drawn = p.sample(20_000, named_generator(0, "sample"))
    point = p.quantile(0.6)
    expected = p.cdf(point)
    error = (expected * (1 - expected) / 20_000).sqrt()
    assert (((drawn <= point).double().mean(0) - expected).abs() < 4 * error).all()
