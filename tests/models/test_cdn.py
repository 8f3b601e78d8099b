"""What is particular to compound density networks."""

import math
from dataclasses import replace

import pytest
import torch
from oracles import floored, law, prior, wide
from torch.distributions import Categorical, kl_divergence
from torch.testing import assert_close

from compound.models import Method, build
from compound.models.observation.noise_floor import rounding_step
from compound.nn import Gaussian
from compound.ops.gaussian_noise import standard_normal
from compound.random import member_seed, named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import Task, make_dataset

CLASSES, TARGET = Task("classification", 3), Task("regression", 1)


def rows(task: Task, n: int = 30, features: int = 4, seed: int = 0):
    g = named_generator(seed, "rows")
    x = torch.randn(n, features, generator=g)
    y = (
        torch.randint(task.size, (n,), generator=g)
        if task.kind == "classification"
        else x[:, :1] + 0.1 * torch.randn(n, task.size, generator=g)
    )
    return make_dataset(x, y, task)


def test_one_sample_objective_is_its_closed_form():
    """S = 1: -log p(y; f(x; θ)) + λ KL[p(θ; g(x)) || p(θ)], layer by layer, every law written out."""
    model = build(
        Method("ml-cdn", widths=(6,), hyper=(5,), last_draws=1, lam=0.03, members=1), 4, CLASSES, 0
    ).double()
    data = rows(CLASSES)
    x = data.x.double()
    loss = model.loss(replace(data, x=x), named_generator(1))
    g = named_generator(1)
    first, last = (layer for layer in model.layers)
    kl = torch.zeros(len(x), dtype=torch.float64)
    h = x
    for layer, act in ((first, torch.relu), (last, lambda v: v)):
        heads = layer.hyper(wide(h).unsqueeze(0), g).squeeze(0)
        single = type(layer)(layer.inputs, layer.outputs, layer.config, named_generator(0)).double()
        single.basis.data = layer.basis.data[0]
        laws = law(single, h, heads)
        kl = kl + torch.stack([kl_divergence(q, prior(single)) for q in laws])
        mean = torch.stack([v @ q.mean for v, q in zip(wide(h), laws, strict=True)])
        std = torch.stack([v.square() @ q.variance for v, q in zip(wide(h), laws, strict=True)]).sqrt()
        h = act(mean + std * standard_normal(g, (1, 1, *mean.shape), mean).reshape(mean.shape))
    nll = -Categorical(logits=h).log_prob(data.y).mean()
    assert_close(loss.nll[0], nll, rtol=1e-10, atol=1e-10)
    assert_close(loss.total, nll + 0.03 * kl.mean(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["ml-cdn", "vb-cdn"])
def test_without_noise_it_is_a_plain_network(name, monkeypatch):
    for room in (
        "compound.models.cdn",
        "compound.models.observation.last_layer",
        "compound.nn.matrix_gaussian",
        "compound.nn.batched_compound",
    ):
        for name_of_noise in ("standard_normal", "row_normal"):
            monkeypatch.setattr(
                f"{room}.{name_of_noise}",
                lambda generator, shape, like: torch.zeros(tuple(shape), dtype=like.dtype),
            )
    model = build(Method(name, widths=(7, 6), hyper=(5,), far=0.0, members=1), 4, CLASSES, 0).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(
                parameter.shape, generator=named_generator(parameter.numel()), dtype=torch.float64
            )
    x = torch.randn(9, 4, generator=named_generator(2), dtype=torch.float64)
    h = x
    for k, layer in enumerate(model.layers):
        heads = layer.hyper.forward_given(wide(h).unsqueeze(0), layer.hyper.draw(named_generator(0))).squeeze(
            0
        )
        h = (heads[:, : layer.inputs + 1] * wide(h)) @ layer.basis[0]
        h = h.relu() if k < 2 else h
    assert_close(
        model.predict(x, named_generator(3), 3, 1).probs, torch.softmax(h, -1), rtol=1e-12, atol=1e-14
    )


def test_at_the_lower_clamp_noise_hardly_shows():
    model = build(Method("ml-cdn", widths=(20,), far=0.0, log_col=(-1e3,), lam=0.0, members=1), 4, TARGET, 0)
    x = rows(TARGET).x
    with torch.no_grad():
        for layer in model.layers:
            *_, heads = layer.hyper.maps
            heads.weight[..., -1, layer.inputs + 1 :] = -1e3
    draws, _ = model._draws(x, 1, 50, named_generator(1))
    spread = draws.std((1, 2)).mean() / draws.abs().mean()
    assert spread < 1e-3


@pytest.mark.parametrize("name", ["ml-cdn", "vb-cdn"])
@pytest.mark.parametrize("task", [CLASSES, TARGET], ids=lambda t: t.kind)
class TestMembers:
    """Three together and each alone, rows that count differently for each."""

    OPTIONS = {"widths": (10,), "hyper": (5,), "samples": 2}  # noqa: RUF012

    def data(self, task, dtype, *members):
        batch, weight = (
            rows(task, 40),
            0.5 + torch.rand(3, 40, generator=named_generator(1), dtype=torch.float64),
        )
        y = batch.y if task.kind == "classification" else batch.y.to(dtype)
        return make_dataset(batch.x.to(dtype), y, task, weight[list(members)].to(dtype))

    def test_together_are_members_apart(self, name, task):
        """20 steps, float64: each member ends where it would have ended alone."""
        settings, real = TrainConfig(steps=20, batch_size=100, n_evals=0, clip_norm=1.0), torch.float64
        together = build(Method(name, members=3, **self.OPTIONS), 4, task, 5).double()
        fit(together, self.data(task, real, 0, 1, 2), settings, 5)
        for k in range(3):
            alone = build(Method(name, members=1, **self.OPTIONS), 4, task, member_seed(5, k)).double()
            fit(alone, self.data(task, real, k), settings, member_seed(5, k))
            for (key, one), many in zip(alone.named_parameters(), together.parameters(), strict=True):
                assert_close(one[0], many[k], rtol=1e-9, atol=1e-9, msg=key)

    def test_have_the_gradients_of_members_apart(self, name, task):
        """In float32, where loops are compiled: up to the rounding of sums over 40 rows, layer upon layer."""

        def gradients(model, k):
            data = self.data(task, torch.float32, *k)
            model.on_fit_start(data, named_generator(0))
            model.loss(
                data, [named_generator(member_seed(5, member), "noise") for member in k]
            ).total.backward()
            return [parameter.grad for parameter in model.parameters()]

        together = gradients(build(Method(name, members=3, **self.OPTIONS), 4, task, 5), (0, 1, 2))
        for k in range(3):
            alone = gradients(
                build(Method(name, members=1, **self.OPTIONS), 4, task, member_seed(5, k)), (k,)
            )
            for one, many in zip(alone, together, strict=True):
                assert_close(
                    one[0],
                    many[k],
                    rtol=0,
                    atol=200 * torch.finfo(torch.float32).eps * float(one.abs().max()),
                )


def test_sharing_psi_puts_the_expectation_outside_the_logarithm():
    """The bound averages logs over ψ; the joint form is a log of averages, so its NLL is smaller (Jensen)."""
    data = rows(TARGET, 4000)
    losses = {}
    for objective in ("elbo", "official", "joint"):
        model = build(
            Method("vb-cdn", widths=(8,), hyper=(4,), samples=8, objective=objective, members=1), 4, TARGET, 0
        )
        model.on_fit_start(data, named_generator(0))
        with torch.no_grad():
            for layer in model.layers:
                for step in layer.hyper.maps:
                    step.log_row += 2.0  # a wide posterior
                    step.log_col += 2.0
            runs = torch.stack([model.loss(data, named_generator(k, "loss")).nll for k in range(8)])
        losses[objective] = (runs.mean().item(), runs.std().item() / math.sqrt(8))
    assert losses["elbo"][0] > losses["official"][0] + 3 * losses["official"][1]
    assert losses["official"][0] > losses["joint"][0] + 3 * losses["joint"][1]


def test_lambda_runs_down_a_geometric_path():
    model = build(Method("ml-cdn", widths=(5,), hyper=(4,), lam=(1e-2, 1e-4), members=1), 4, TARGET, 0)
    data = rows(TARGET)
    model.on_fit_start(data, named_generator(0))
    for progress, lam in ((0.0, 1e-2), (0.5, 1e-3), (1.0, 1e-4)):
        loss = model.loss(replace(data, progress=progress), named_generator(1))
        assert_close((loss.total - loss.nll[0]).detach() / loss.kl[0], torch.tensor(lam), rtol=2e-3, atol=0)


def test_exact_last_layer_is_the_limit_of_many_logit_draws():
    last = Gaussian(
        torch.randn(1, 1, 6, 3, generator=named_generator(1)),
        torch.rand(1, 1, 6, 3, generator=named_generator(2)) * 2,
        torch.empty(0),
    )
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    exact = (
        build(Method("ml-cdn", last_layer="integrate"), 4, CLASSES)
        .likelihood.last_log_prob(last, y, named_generator(3))
        .exp()
    )
    draws = (
        build(Method("ml-cdn", last_draws=20_000), 4, CLASSES)
        .likelihood.last_log_prob(last, y, named_generator(3))
        .exp()
    )
    error = draws.std(1) / math.sqrt(draws.shape[1])
    assert ((exact[:, 0] - draws.mean(1)).abs() < 5 * error).all()


def test_sampled_and_integrated_targets_agree():
    """Integrating the last layer is the mean over its draws of the density."""
    last = Gaussian(
        torch.randn(1, 1, 5, 1, generator=named_generator(1)),
        torch.rand(1, 1, 5, 1, generator=named_generator(2)),
        torch.empty(0),
    )
    y = torch.randn(5, 1, generator=named_generator(3))
    n = 100_000
    many = Gaussian(last.mean.expand(1, n, 5, 1), last.std.expand(1, n, 5, 1), last.kl)
    exact = (
        floored(build(Method("ml-cdn", members=1), 4, TARGET))
        .likelihood.last_log_prob(last, y, named_generator(4))
        .exp()
    )
    draws = (
        floored(build(Method("ml-cdn", members=1, last_layer="sample"), 4, TARGET))
        .likelihood.last_log_prob(many, y, named_generator(4))
        .exp()
    )
    assert ((exact[:, 0] - draws.mean(1)).abs() < 5 * draws.std(1) / math.sqrt(n)).all()


def test_a_single_ml_cdn_without_far_noise_has_no_posterior():
    model = build(Method("ml-cdn", widths=(8,), far=0.0, members=1), 4, TARGET, 0)
    data = rows(TARGET)
    model.on_fit_start(data, named_generator(0))
    p = model.predict(data.x, named_generator(1))
    assert (p.posterior.abs() <= 1e-6 * p.total).all() and (p.mixing > 0).all()
    five = build(Method("ml-cdn", widths=(8,), far=0.0, members=5), 4, TARGET, 0)
    five.on_fit_start(data, named_generator(0))
    assert (five.predict(data.x, named_generator(1)).posterior > 0).all()


def test_rounded_targets_get_a_floor_and_continuous_ones_do_not():
    scores = torch.randint(3, 9, (500,), generator=named_generator(1)).double()
    assert rounding_step(scores) == 1.0
    assert rounding_step(torch.randn(500, generator=named_generator(2), dtype=torch.float64)) == 0.0
    model = build("ml-cdn", 4, TARGET)
    model.on_fit_start(
        make_dataset(torch.randn(500, 4, generator=named_generator(3)), scores.float().unsqueeze(-1), TARGET),
        named_generator(0),
    )
    assert_close(model.likelihood.floor, torch.tensor([1 / 12]))


def test_tau_narrows_an_overwide_predictive_and_never_widens():
    likelihood = floored(build(Method("ml-cdn", members=1), 4, TARGET)).likelihood
    held = torch.ones(1, 400, dtype=torch.bool)
    y = torch.randn(400, 1, generator=named_generator(1))
    wide_draws = (
        torch.zeros(1, 1, 1, 400, 1),
        torch.full((1, 1, 1, 400, 1), 9.0 - math.exp(-2)),
    )  # sd 3 where 1 is right
    likelihood.calibrate(wide_draws, y, held)
    assert abs(float(likelihood.tau) - 1 / 3) < 0.03
    narrow = (torch.zeros(1, 1, 1, 400, 1), torch.zeros(1, 1, 1, 400, 1))
    likelihood.calibrate(narrow, y, held)
    assert float(likelihood.tau) == 1.0


def test_fixed_noise_is_taken_at_its_word():
    model = build(Method("ml-cdn", noise=0.5, members=1, far=0.0), 4, TARGET, 0)
    data = rows(TARGET)
    fit(model, data, TrainConfig(steps=5, n_evals=0))
    assert_close(model.predict(data.x, named_generator(0), 4).component, torch.full((30, 1), 0.25))


def test_several_targets_have_their_own_noise():
    task = Task("regression", 2)
    g = named_generator(1)
    x = torch.randn(600, 2, generator=g)
    y = torch.stack(
        [x[:, 0] + 0.5 * torch.randn(600, generator=g), x[:, 1] + 0.05 * torch.randn(600, generator=g)], -1
    )
    model = build(Method("ml-cdn", widths=(20,), hyper=(10,), members=1), 2, task, 0)
    fit(model, make_dataset(x, y, task), TrainConfig(steps=1200))
    std = model.predict(x, named_generator(2), 10).std.median(0).values
    assert 0.4 < std[0] < 0.6 and 0.04 < std[1] < 0.12
