"""Observation models of families: what the last layer's Gaussian becomes, far noise, bounds, methods."""

import numpy as np
import pytest
import scipy.stats as stats
import torch

from compound import Task, build, load_model, make_dataset, save_model
from compound.families import FAMILIES
from compound.models import METHODS, Method
from compound.models.observation import FamilyModel, Ordinal
from compound.models.observation.last_layers import last_layer_model
from compound.nn import Gaussian
from compound.random import named_generator

NAMES = tuple(FAMILIES)
ABLE = [name for name, model in METHODS.items() if model.takes_families]
DRAWS = 200_000


def targets(name: str, rows: int = 60) -> torch.Tensor:  # (rows, 1)
    family = FAMILIES[name]
    params = {"student-t": (0.0, 1.0, 5.0), "log-normal": (0.0, 0.7), "weibull": (1.0, 1.5)}
    chosen = torch.tensor(params.get(name, (4.0, 0.0 if name == "poisson" else 0.5)))
    return family.sample(rows, chosen.unsqueeze(0), named_generator(0, name)).float()


def gaussian(outputs: int) -> Gaussian:
    """Means and standard deviations of f for 1 member, 1 draw and 2 rows, in float64."""
    generator = named_generator(3, outputs)
    mean = 0.5 * torch.randn(1, 1, 2, outputs, generator=generator, dtype=torch.float64)
    std = 0.2 + 0.5 * torch.rand(1, 1, 2, outputs, generator=generator, dtype=torch.float64)
    return Gaussian(mean, std, torch.zeros(1, 2))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("last_layer", ["default", "sample"])
def test_the_last_layer_equals_brute_force(name, last_layer):
    """1/S sum_s p(y | f_s) of the likelihood has the mean of the density over f ~ N(mean, std²)."""
    kind = "integrate" if name == "log-normal" and last_layer == "default" else "sample"
    likelihood = last_layer_model(Task("regression", 1, name), 1, kind, 1, 0.0).double()
    likelihood.on_fit_start(targets(name).double())
    last, y = gaussian(likelihood.outputs), targets(name)[:2].double()
    noise = torch.randn(DRAWS, 2, likelihood.outputs, generator=named_generator(1, "f")).double()
    density = likelihood.log_prob(last.mean[:, 0] + last.std[:, 0] * noise.unsqueeze(0), y)[0].exp()
    many = Gaussian(*(v.expand(-1, 20_000, -1, -1) for v in (last.mean, last.std)), last.kl)
    ours = likelihood.last_log_prob(many, y, named_generator(2, "ours"))[0].exp()
    error = (density.var(0) / DRAWS + ours.var(0) / 20_000).sqrt()
    assert ((ours.mean(0) - density.mean(0)).abs() < 4 * error).all()
    if kind == "integrate":  # part of the variance is gone
        assert (ours.std(0) < density.std(0)).all()


@pytest.mark.parametrize("name", NAMES)
def test_draws_become_the_same_density(name):
    """`sample` and `draws_predictive` give the mixture whose density `member_log_prob` computes."""
    kind = "integrate" if name == "log-normal" else "sample"
    likelihood = last_layer_model(Task("regression", 1, name), 1, kind, 1, 0.0).double()
    likelihood.on_fit_start(targets(name).double())
    last, y = gaussian(likelihood.outputs), targets(name)[:2].double()
    many = Gaussian(*(v.expand(-1, 4, -1, -1) for v in (last.mean, last.std)), last.kl)
    noise = likelihood.sample_noise(1, 4, named_generator(0, "noise"), last.mean)
    draws = tuple(v.unsqueeze(1) for v in likelihood.sample(many, noise))
    predictive = likelihood.draws_predictive(draws)
    torch.testing.assert_close(predictive.log_prob(y), likelihood.member_log_prob(draws, y)[0])
    params = FAMILIES[name].parameters
    assert predictive.params.shape == (4, 2, 1, len(params))
    far = torch.rand(len(params), dtype=torch.float64) + 2.5
    t = torch.tensor([-1.0, 2.0], dtype=torch.float64)
    expected = predictive.with_far_noise(t, far).log_prob(y)
    torch.testing.assert_close(likelihood.far_log_prob(draws, y, far)(t)[0], expected)


def test_ordered_classes_equal_brute_force():
    likelihood = last_layer_model(Task("classification", 4, "ordinal"), 1, "integrate", 1, 0.0).double()
    likelihood.on_fit_start(torch.tensor([0, 1, 1, 2, 3, 3]))
    last, y = gaussian(1), torch.tensor([1, 3])
    c = likelihood.thresholds()[0].detach().numpy()
    f = last.mean[0, 0] + last.std[0, 0] * torch.randn(DRAWS, 2, 1, generator=named_generator(1, "f"))
    edges = np.concatenate([[-np.inf], c, [np.inf]])
    probs = np.diff(stats.norm.cdf(edges - f.numpy()), axis=-1)  # (draws, rows, classes)
    expected = probs.mean(0)
    actual = likelihood.last_log_prob(last, y, named_generator(2, "unused"))[0, 0].detach().exp()
    for row, label in enumerate(y.tolist()):
        assert abs(float(actual[row]) - expected[row, label]) < 4 * probs[:, row, label].std() / DRAWS**0.5
    draws = tuple(v.unsqueeze(1) for v in likelihood.sample(last, torch.zeros(1, 1, 2, 1)))
    predictive = likelihood.draws_predictive(draws)
    np.testing.assert_allclose(predictive.probs.detach().numpy(), expected, atol=5e-3)
    entropies = stats.entropy(probs, axis=-1).mean(0)
    np.testing.assert_allclose(predictive.component.detach().numpy(), entropies, atol=5e-3)
    torch.testing.assert_close(predictive.total, predictive.aleatoric + predictive.epistemic)


def test_ordered_classes_are_never_impossible():
    likelihood = Ordinal(5)
    f = torch.tensor([-200.0, -10.0, 0.0, 10.0, 200.0]).reshape(1, 5, 1).requires_grad_()
    logs = likelihood.log_probs(f)
    assert torch.isfinite(logs).all()
    torch.testing.assert_close(logs.exp().sum(-1), torch.ones(1, 5))
    logs.sum().backward()
    assert torch.isfinite(f.grad).all()


@pytest.mark.parametrize("name", NAMES)
def test_zero_outputs_are_the_distribution_of_all_targets(name):
    """f = 0 has about the mean and spread of the training targets, so that training starts there."""
    y = targets(name, 4000)
    model = FamilyModel(name, 1)
    model.on_fit_start(y)
    params = model.params(torch.zeros(1, 1, model.outputs))[0].detach()
    family = FAMILIES[name]
    median = float(family.icdf(torch.tensor(0.5), params))
    inside = (y >= family.icdf(torch.tensor(0.02), params)) & (y <= family.icdf(torch.tensor(0.98), params))
    assert abs(median - float(y.median())) < 0.35 * float(y.std())
    assert float(inside.float().mean()) > 0.8


@pytest.mark.parametrize("name", NAMES)
def test_targets_that_a_family_cannot_have_are_refused(name):
    task = Task("regression", 1, name)
    bad = torch.tensor([[1.5], [-2.0]])
    if name == "student-t":
        make_dataset(torch.zeros(2, 1), bad, task)
        return
    with pytest.raises(ValueError, match="y holds"):
        make_dataset(torch.zeros(2, 1), bad, task)


PAIRS = {*((method, "negative-binomial") for method in ABLE)}
PAIRS |= {(method, name) for method in ("ml-cdn", "map") for name in NAMES}


@pytest.mark.parametrize("method,name", sorted(PAIRS))
def test_every_able_method_trains_predicts_and_is_saved(method, name, tmp_path):
    task = Task("regression", 2, name)
    far = {} if METHODS[method].has_far_noise else {"far": 3.0}
    options = {"members": 2} if "cdn" in method or "ensemble" in method else {}
    model = Method(method, widths=(5,), **options, **far).build(3, task, 0)
    x = torch.randn(60, 3, generator=named_generator(0, "x"))
    y = targets(name).expand(-1, 2).contiguous()
    data = make_dataset(x, y, task)
    model.on_fit_start(data, named_generator(0, "start"))
    loss = model.loss(data, [named_generator(0, "noise", k) for k in range(model.members)])
    loss.total.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.isfinite(g).all() for g in gradients) and len(gradients) >= 4
    model.on_fit_end(data, named_generator(0, "end"))
    outliers = torch.cat([x[:3], 1e4 * x[:3]])
    p = model.predict(outliers, named_generator(0, "ask"), 4, 2)
    assert torch.isfinite(p.mean).all() and torch.isfinite(p.total).all()
    torch.testing.assert_close(p.total, p.component + p.mixing + p.posterior)
    assert (p.epistemic[3:] > p.epistemic[:3]).all()  # far from the data
    lower, upper = p.interval(0.9)
    inside = (y >= lower[3:].amax(0)) & (y <= upper[3:].amin(0))
    assert inside.float().mean() > 0.8  # as wide as all targets
    assert (p.mean[3:] < 30 * y.amax()).all()
    save_model(model, tmp_path / "model")
    again = load_model(tmp_path / "model")
    q = again.predict(outliers, named_generator(0, "ask"), 4, 2)
    assert torch.equal(p.params, q.params) and again.task == task


@pytest.mark.parametrize("method", sorted(set(METHODS) - set(ABLE)))
def test_other_methods_say_so(method):
    with pytest.raises(ValueError, match=f"{method} predicts Gaussian targets .* use one of ml-cdn"):
        build(method, 3, Task("regression", 1, "weibull"))


def test_what_does_not_fit_a_family_is_refused():
    with pytest.raises(ValueError, match="has no closed form, use 'sample'"):
        build(Method("ml-cdn", last_layer="integrate"), 3, Task("regression", 1, "poisson"))
    for method in ("ml-cdn", "map"):
        with pytest.raises(ValueError, match="an option of Gaussian targets"):
            build(Method(method, noise=0.1), 3, Task("regression", 1, "poisson"))
    with pytest.raises(ValueError, match="for regression use None, student-t"):
        Task("regression", 1, "ordinal")
