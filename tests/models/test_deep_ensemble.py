"""Members together and apart, their mixture against torch's, adversarial training in closed form."""

import math
from dataclasses import replace

import pytest
import torch
from oracles import floored
from torch import nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence
from torch.testing import assert_close

from compound.models import DeepEnsemble, Method, build
from compound.nn.networks import Linear, Network, l2_penalty
from compound.random import member_seed, named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import Batch, Task, make_dataset

CLASSES, TARGETS = Task("classification", 3), Task("regression", 2)


def rows(task: Task, n: int = 30, features: int = 4, weight: torch.Tensor | None = None) -> Batch:
    g = named_generator(0, "rows")
    x = torch.randn(n, features, generator=g, dtype=torch.float64)
    y = (
        torch.randint(task.size, (n,), generator=g)
        if task.kind == "classification"
        else torch.randn(n, task.size, generator=g).double()
    )
    return make_dataset(x, y, task, weight)


def ensemble(task: Task, seed: int = 0, features: int = 4, **options) -> DeepEnsemble:
    """In float64, with random biases."""
    model = build(
        Method("deep-ensemble", **({"widths": (6,), "members": 3} | options)), features, task, seed
    ).double()
    floored(model)
    with torch.no_grad():
        for layer in model.network.layers:
            layer.bias.copy_(
                0.5
                * torch.randn(
                    layer.bias.shape, generator=named_generator(seed, "biases"), dtype=torch.float64
                )
            )
    return model


def gradients(model: DeepEnsemble, batch: Batch) -> list[torch.Tensor]:
    model.zero_grad()
    model.loss(batch, named_generator(0)).total.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def apart(together: DeepEnsemble, k: int) -> DeepEnsemble:
    """Member k alone."""
    one = replace(together.config, members=1)
    model = floored(
        DeepEnsemble(together.inputs, together.task, one, 99).to(next(together.parameters()).dtype)
    )
    with torch.no_grad():
        for mine, all_members in zip(model.parameters(), together.parameters(), strict=True):
            mine.copy_(all_members[k : k + 1])
        for mine, shared in zip(model.buffers(), together.buffers(), strict=True):
            mine.copy_(shared)
    return model


@pytest.mark.parametrize(
    "options",
    [{"variance": "rows"}, {"variance": "one", "adversarial": 0.05, "precision": 2.0}],
    ids=["plain", "attacked"],
)
@pytest.mark.parametrize("task", [CLASSES, TARGETS], ids=lambda t: t.kind)
def test_every_option_leaves_members_alone(task, options):
    """Float64; each member holds out a part of its own."""
    weight = torch.ones(3, 30, dtype=torch.float64)
    for k in range(3):
        weight[k, 5 * k : 5 * k + 5] = 0
    data = rows(task, weight=weight)
    together, settings = (
        ensemble(task, **options),
        TrainConfig(steps=30, batch_size=30, n_evals=0, clip_norm=0.5),
    )
    together.on_fit_start(data, named_generator(0))
    singles = [apart(together, k) for k in range(3)]
    for model in (together, *singles):
        model.on_fit_start = lambda data, generator: (
            None
        )  # constants come from the rows of all members together
    fit(together, data, settings)
    for k, single in enumerate(singles):
        fit(single, make_dataset(data.x, data.y, task, weight[k : k + 1]), settings)
        for (name, one), many in zip(single.named_parameters(), together.parameters(), strict=True):
            assert_close(one[0], many[k], rtol=1e-9, atol=1e-10, msg=name)


def test_gradients_are_those_of_each_member_alone():
    data, model = rows(CLASSES), ensemble(CLASSES, precision=3.0)
    for k in range(3):
        for one, many in zip(gradients(apart(model, k), data), gradients(model, data), strict=True):
            assert_close(one[0], many[k], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("adversarial", [0.0, 0.1])
def test_members_do_not_see_each_other(adversarial):
    data, model = rows(TARGETS), ensemble(TARGETS, adversarial=adversarial)
    model.on_fit_start(data, named_generator(0))
    for k, log_prob in enumerate(model.log_prob(data.x, data.y)):
        for gradient in torch.autograd.grad(log_prob.sum(), list(model.parameters()), retain_graph=True):
            others = torch.cat([gradient[:k], gradient[k + 1 :]])
            assert (others == 0).all() and (gradient[k] != 0).any()
    before = gradients(model, data)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[1] += 1.0
    for once, again in zip(before, gradients(model, data), strict=True):
        assert torch.equal(once[[0, 2]], again[[0, 2]])
        assert not torch.equal(once[1], again[1])


@pytest.mark.parametrize("variance", ["one", "rows"])
@pytest.mark.parametrize("task", [CLASSES, TARGETS], ids=lambda t: t.kind)
def test_one_member_is_the_plain_network(task, variance):
    data = rows(task)
    data = make_dataset(data.x.float(), data.y if task.kind == "classification" else data.y.float(), task)
    alone = build(Method("deep-ensemble", widths=(6,), members=1, variance=variance), 4, task, 3)
    plain = build(Method("map", widths=(6,), precision=0.0, variance=variance), 4, task, 3)
    for model in (alone, plain):
        fit(model, data, TrainConfig(steps=30, batch_size=10), 3)
    for one, other in zip(alone.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    mine, theirs = (
        alone.predict(data.x, named_generator(0), 5, 1),
        plain.predict(data.x, named_generator(0), 5, 1),
    )
    assert torch.equal(mine.log_prob(data.y), theirs.log_prob(data.y)) and torch.equal(
        mine.total, theirs.total
    )
    assert (mine.epistemic == 0).all()


def test_members_start_apart_and_few_are_the_first_of_many():
    five, three = (build(Method("deep-ensemble", members=m), 4, CLASSES, 8) for m in (5, 3))
    for few, many in zip(three.parameters(), five.parameters(), strict=True):
        assert torch.equal(few, many[:3])
    for layer in five.network.layers:
        flat = layer.weight.flatten(1)
        assert (torch.corrcoef(flat) - torch.eye(5)).abs().max() <= 5 / math.sqrt(flat.shape[1])


@pytest.mark.parametrize("variance", ["one", "rows"])
def test_targets_are_the_even_mixture(variance):
    model, data = ensemble(TARGETS, members=5, variance=variance), rows(TARGETS)
    f = model.network(data.x).detach()
    if variance == "rows":
        mean, spread = f[..., :2], nn.functional.softplus(f[..., 2:]) + 1e-6
    else:
        with torch.no_grad():
            model.likelihood.log_noise.copy_(torch.randn(5, 2, generator=named_generator(2)))
        mean, spread = f, (2 * model.likelihood.log_noise.detach()).exp()[:, None].expand_as(f)
    parts = Independent(
        Normal(mean.transpose(0, 1), spread.transpose(0, 1).sqrt()), 1
    )  # (rows, members), targets
    mixture = MixtureSameFamily(Categorical(torch.ones(30, 5, dtype=torch.float64)), parts)
    p = model.predict(data.x, named_generator(0), 7, 1)
    exact = {"rtol": 1e-12, "atol": 1e-12}
    assert_close(p.log_prob(data.y), mixture.log_prob(data.y), **exact)
    assert_close(p.mean, mixture.mean, **exact)
    assert_close(p.variance, mixture.variance, **exact)
    assert_close(p.total, mixture.variance, **exact)
    assert_close(p.aleatoric, spread.mean(0), **exact)
    assert_close(p.epistemic, mean.var(0, correction=0), **exact)
    each = Independent(Normal(mean, spread.sqrt()), 1).log_prob(
        data.y
    )  # (members, rows), with the 1/2 log 2π
    assert_close(model.loss(data, named_generator(0)).nll, -each.mean(1), **exact)
    assert_close(model.loss(data, named_generator(0)).total, -each.mean(1).sum(), **exact)


def test_classes_are_the_mean_of_probabilities():
    model, data = ensemble(CLASSES, members=5), rows(CLASSES)
    each = torch.softmax(model.network(data.x).detach(), -1)  # (members, rows, classes)
    p, mean = model.predict(data.x, named_generator(0), 7, 1), Categorical(each.mean(0))
    assert_close(p.probs, each.mean(0), rtol=1e-12, atol=1e-12)
    assert_close(p.log_prob(data.y), mean.log_prob(data.y), rtol=1e-12, atol=1e-12)
    assert_close(p.aleatoric, Categorical(each).entropy().mean(0), rtol=1e-10, atol=1e-12)
    apart = kl_divergence(Categorical(each), Categorical(each.mean(0).expand_as(each))).mean(0)
    assert_close(p.epistemic, apart, rtol=1e-8, atol=1e-12)
    assert (p.epistemic <= math.log(5)).all()


@pytest.mark.parametrize("task", [CLASSES, TARGETS], ids=lambda t: t.kind)
def test_order_of_members_and_number_of_draws_do_not_matter(task):
    model, data = ensemble(task, members=5, variance="one"), rows(task)
    if task.kind == "regression":
        with torch.no_grad():
            model.likelihood.log_noise.copy_(torch.randn(5, 2, generator=named_generator(2)))
    before = model.predict(data.x, named_generator(0), 1, 1)
    for counts in ((7, 1), (20, 5), (3, 4)):
        assert torch.equal(
            model.predict(data.x, named_generator(1), *counts).log_prob(data.y), before.log_prob(data.y)
        )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter[[3, 1, 4, 0, 2]])
    after = model.predict(data.x, named_generator(0), 1, 1)
    assert_close(after.log_prob(data.y), before.log_prob(data.y), rtol=1e-12, atol=1e-12)
    assert_close(after.epistemic, before.epistemic, rtol=1e-9, atol=1e-12)


def test_row_variance_learns_mean_and_variance_of_the_targets():
    """At the minimum for inputs that say nothing.

    Every member gives the mean and the variance of y, as maximum likelihood does.
    """
    y = torch.randn(50, 2, generator=named_generator(4), dtype=torch.float64) * torch.tensor([0.5, 2.0]) + 1.0
    model = ensemble(TARGETS, widths=())
    data = make_dataset(torch.zeros(50, 4, dtype=torch.float64), y, TARGETS)
    optimizer = torch.optim.LBFGS(
        model.parameters(),
        max_iter=500,
        tolerance_grad=1e-12,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        total = model.loss(data, named_generator(0)).total
        total.backward()
        return total

    optimizer.step(closure)
    p = model.predict(data.x, named_generator(0), 1, 1)
    assert_close(p.means, y.mean(0).expand(3, 50, 2), rtol=0, atol=1e-7)
    assert_close(p.variances, y.var(0, correction=0).expand(3, 50, 2), rtol=1e-6, atol=0)


def test_adversarial_loss_of_linear_models_in_closed_form():
    """One layer of classes.

    X' = x + ε sign((p - y) Wᵀ), ε a part of each input's range over the rows that are trained on.
    """
    data = rows(CLASSES)
    x = data.x * torch.tensor([1.0, 10.0, 0.1, 0.0])  # the last input is constant
    x[:5] *= 100  # held out
    weight = torch.ones(3, 30, dtype=torch.float64)
    weight[:, :5] = 0
    data = make_dataset(x, data.y, CLASSES, weight)
    model = ensemble(CLASSES, widths=(), adversarial=0.2, precision=3.0)
    model.on_fit_start(data, named_generator(0))
    reach = 0.2 * (x[5:].amax(0) - x[5:].amin(0))
    (layer,) = model.network.layers
    total, wanted, labels = (
        torch.zeros((), dtype=torch.float64),
        [],
        nn.functional.one_hot(data.y, 3).double(),
    )
    for w, b in zip(layer.weight.detach(), layer.bias.detach(), strict=True):
        near = x + reach * torch.sign((torch.softmax(x @ w + b, -1) - labels) @ w.T)
        for at in (x, near):
            total += -Categorical(logits=at @ w + b).log_prob(data.y)[5:].mean()
        total += 3.0 / (2 * 25) * (w.square().sum() + b.square().sum())
        slopes = [at[5:].T @ (torch.softmax(at @ w + b, -1) - labels)[5:] / 25 for at in (x, near)]
        wanted.append(
            slopes[0] + slopes[1] + 3.0 / 25 * w
        )  # x' is a constant: nothing flows through the attack
    loss = model.loss(data, named_generator(0))
    assert all(
        parameter.grad is None for parameter in model.parameters()
    )  # the attack leaves no gradients behind
    assert_close(loss.total, total, rtol=1e-12, atol=1e-12)
    assert_close(
        loss.nll,
        -torch.stack([Categorical(logits=f).log_prob(data.y)[5:].mean() for f in model.network(x)]).detach(),
    )
    loss.total.backward()
    assert_close(layer.weight.grad, torch.stack(wanted), rtol=1e-10, atol=1e-12)


def test_attacked_rows_are_harder():
    data, model = rows(TARGETS), ensemble(TARGETS, adversarial=0.01)
    model.on_fit_start(data, named_generator(0))
    loss = model.loss(data, named_generator(0))
    assert (loss.total - loss.nll.sum() > loss.nll.sum()).all()


def test_prior_counts_once_for_each_member_and_its_own_rows():
    weight = torch.ones(3, 30, dtype=torch.float64)
    weight[0, :10] = weight[1, 10:15] = 0
    data = rows(TARGETS, weight=weight)
    bare, model = ensemble(TARGETS, seed=1), ensemble(TARGETS, seed=1, precision=4.0)
    size = torch.tensor([20.0, 25.0, 30.0], dtype=torch.float64)
    squares = sum(p.detach().square().sum((1, 2)) for p in model.network.parameters())
    loss = model.loss(data, named_generator(0))
    assert_close(loss.kl, 2.0 * squares / size)
    assert_close(loss.total, (loss.nll + loss.kl).sum())
    for with_prior, without, p in zip(
        gradients(model, data), gradients(bare, data), model.parameters(), strict=True
    ):
        assert_close(with_prior, without + 4.0 / size.view(3, 1, 1) * p.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("task", [CLASSES, TARGETS], ids=lambda t: t.kind)
def test_checks_judge_each_member_by_its_own_rows(task):
    weight = torch.ones(3, 30, dtype=torch.float64)
    for k in range(3):
        weight[k, 5 * k : 5 * k + 5] = 0
    data, model = rows(task, weight=weight), ensemble(task)
    history = fit(model, data, TrainConfig(steps=20, batch_size=30, n_evals=1, ema_decay=0.0))
    own = []
    for k in range(3):
        held = weight[k] == 0
        own.append(
            -apart(model, k).predict(data.x[held], named_generator(0), 1, 1).log_prob(data.y[held]).mean()
        )
    check = replace(data, weight=(weight == 0).double())
    assert_close(model.nll(check, 20, named_generator(0)), torch.stack(own))
    assert history["held_out"][-1] == pytest.approx(float(torch.stack(own).mean()), rel=1e-10)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("outputs", [3, 17], ids=["few outputs", "many"])
def test_network_is_torch_layers_side_by_side(members, outputs):
    streams = [named_generator(k) for k in range(members)]
    network = Network((4, 5, outputs), streams).double()
    with torch.no_grad():
        for layer in network.layers:
            layer.bias.copy_(torch.randn(layer.bias.shape, generator=named_generator(5)))
    x = torch.randn(9, 4, generator=named_generator(6), dtype=torch.float64)
    for k, f in enumerate(network(x)):
        first, last = network.layers
        h = nn.functional.linear(x, first.weight[k].T, first.bias[k, 0]).relu()
        assert_close(f, nn.functional.linear(h, last.weight[k].T, last.bias[k, 0]), rtol=1e-12, atol=1e-12)
    own = torch.randn(
        members, 3, 4, generator=named_generator(7), dtype=torch.float64, requires_grad=True
    )  # inputs of each member's own
    parameters = dict(network.named_parameters())
    call = lambda x, *p: torch.func.functional_call(network, dict(zip(parameters, p, strict=True)), (x,))  # noqa: E731
    assert torch.autograd.gradcheck(call, (own, *parameters.values()))
    layer = Linear(4, outputs, streams).double()
    alone = lambda h, w, b: torch.func.functional_call(layer, {"weight": w, "bias": b}, (h,))  # noqa: E731
    assert torch.autograd.gradgradcheck(alone, (own, layer.weight, layer.bias))


@pytest.mark.parametrize(
    "factor", [0.3, torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)], ids=["one", "per member"]
)
def test_half_squares_and_their_slopes(factor):
    parameters = [
        torch.randn(3, *shape, generator=named_generator(8), dtype=torch.float64, requires_grad=True)
        for shape in ((4, 5), (1, 5), (5, 2))
    ]
    assert_close(
        l2_penalty(parameters, factor), sum(0.5 * factor * p.square().sum((1, 2)) for p in parameters)
    )
    assert torch.autograd.gradcheck(lambda *p: l2_penalty(p, factor), parameters)
    assert torch.autograd.gradgradcheck(lambda *p: l2_penalty(p, factor), parameters)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"members": 0}, "members is 0"),
        ({"adversarial": -0.1}, "adversarial is -0.1"),
        ({"adversarial": math.nan}, "adversarial is nan"),
        ({"precision": -1.0}, "precision is -1.0"),
        ({"noise": 0.5}, "noise is 0.5"),
        ({"noise": -0.5, "variance": "one"}, "noise is -0.5"),
        ({"variance": "two"}, "variance is 'two'"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        build(Method("deep-ensemble", **options), 3, TARGETS)


def test_trained_together_is_trained_apart():
    """100 Adam steps of 784-100-10, clipped member by member, with other row weights for each.

    In float64: Adam's first steps go by the sign of a gradient, so in float32 sums in another order lead
    elsewhere.
    """
    g = named_generator(1)
    x, y = torch.rand(150, 784, generator=g, dtype=torch.float64), torch.randint(10, (150,), generator=g)
    weight = 0.5 + torch.rand(5, 150, generator=g, dtype=torch.float64)
    task, settings = (
        Task("classification", 10),
        TrainConfig(steps=100, batch_size=50, lr=1e-3, n_evals=0, clip_norm=1.0),
    )
    together = build("deep-ensemble", 784, task, 7).double()
    fit(together, make_dataset(x, y, task, weight), settings, 7)
    for k in range(5):
        alone = build(Method("deep-ensemble", members=1), 784, task, member_seed(7, k)).double()
        fit(alone, make_dataset(x, y, task, weight[k : k + 1]), settings, 7)
        for (name, one), many in zip(alone.named_parameters(), together.parameters(), strict=True):
            assert (one[0] - many[k]).abs().max() <= 1e-9, name
