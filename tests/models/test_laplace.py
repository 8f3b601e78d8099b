"""Laplace's approximation against linear regression, laplace-torch, autograd and dense matrices."""

import math
import warnings

import numpy as np
import pytest
import torch
from oracles import LinearGaussian, floored, wide
from torch.distributions import MultivariateNormal, Normal
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from compound.models import Method, build
from compound.models.laplace import DELTAS, probit
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import Task, make_dataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit, in a package it imports
    import laplace as theirs

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script:DeprecationWarning"
)  # torch's own forward mode, which that package uses
CLASSES, TARGETS = Task("classification", 3), Task("regression", 2)
LAST = {"subset": "last"}
FULL = {"subset": "last", "structure": "full"}
EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)  # laplace-torch builds some matrices in it
    yield
    torch.set_default_dtype(torch.float32)


def problem(task: Task, rows: int = 30, features: int = 5, seed: int = 1):
    g = named_generator(seed)
    x = 0.5 + torch.randn(rows, features, generator=g)
    y = (
        torch.randint(task.size, (rows,), generator=g)
        if task.kind == "classification"
        else torch.randn(rows, task.size, generator=g)
    )
    return make_dataset(x, y, task)


def _exact_noise(model) -> None:
    """A given noise to the last bit of float64."""
    if model.task.kind == "regression" and model.config.noise:
        model.base_model.likelihood.log_noise.data.fill_(math.log(model.config.noise))


def random_model(task: Task, features: int = 5, widths: tuple = (7, 6), **options):
    """A network with random weights and biases."""
    model = build(Method("laplace", widths=widths, **options), features, task, 3).double()
    floored(model)
    _exact_noise(model)
    with torch.no_grad():
        for layer in model.base_model.network.layers:
            layer.bias.copy_(torch.randn(layer.bias.shape, generator=named_generator(4)))
    return model


def learnt_model(task: Task, **options):
    data = problem(task, rows=60, features=3)
    model = build(Method("laplace", widths=(6,), **options), 3, task, 0).double()
    fit(model, data, TrainConfig(steps=100, batch_size=60, lr=1e-1, final_lr_ratio=0.0, ema_decay=0.0), 0)
    return model, data


def written_out(model, data, factored: bool = False) -> list[torch.Tensor]:
    """Covariance of each layer's (in + 1, out) weights, row by row.

    Every matrix built, Jacobians from autograd.
    """
    layers, n = model.base_model.network.layers, len(data)
    covariances = []
    for k, delta in zip(range(-len(model.delta), 0), model.delta, strict=True):
        h = data.x
        for layer in layers[:k]:
            h = layer(h[None])[0].relu()
        s = layers[k](h[None])[0].detach()

        def rest(s, k=k):
            for layer in layers[len(layers) + k + 1 :]:
                s = layer(s.relu()[None, None])[0, 0]
            return s

        g = torch.func.vmap(torch.func.jacrev(rest))(s)  # (rows, outputs, out)
        f = torch.func.vmap(rest)(s)
        if model.task.kind == "classification":
            p = torch.softmax(f, -1)
            curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        else:
            curvature = torch.diag(1 / model.base_model.likelihood.variance()[0]).expand(n, -1, -1)
        outer = (g.mT @ curvature @ g).sum(0)
        inner = torch.block_diag((h.T @ h) / n, torch.ones(1, 1))
        if factored:
            eye, root = torch.eye, delta.sqrt()
            precision = torch.kron(
                math.sqrt(n) * inner + root * eye(len(inner)), outer / math.sqrt(n) + root * eye(len(outer))
            )
        else:
            precision = torch.kron(inner, outer) + delta * torch.eye(len(inner) * len(outer))
        covariances.append(torch.linalg.inv(precision).detach())
    return covariances


def within(draws: torch.Tensor, mean: torch.Tensor, covariance: torch.Tensor, errors: float = 5.0) -> None:
    """The first two moments of draws (n, numbers) of a Gaussian, within standard errors."""
    n = len(draws)
    variance = covariance.diagonal()
    assert ((draws.mean(0) - mean).abs() <= errors * (variance / n).sqrt()).all()
    error = ((variance[:, None] * variance + covariance.square()) / n).sqrt()
    assert ((draws.T.cov(correction=0) - covariance).abs() <= errors * error).all()


@pytest.mark.parametrize(
    ("options", "shift"), [({}, 0.0), (LAST, 0.0), (FULL, 2.0)]
)  # factors are exact where the bias is apart
def test_linear_regression_is_exact(options, shift):
    x, y = torch.randn(40, 4, generator=named_generator(1)), torch.randn(40, 2, generator=named_generator(2))
    x = x - x.mean(0) + shift
    exact = LinearGaussian(x, y, noise=0.25, prior=1 / 3)
    model = build(
        Method("laplace", widths=(), precision=3.0, noise=0.5, tune="none", **options), 4, TARGETS
    ).double()
    _exact_noise(model)
    (layer,) = model.base_model.network.layers
    with torch.no_grad():
        layer.weight.copy_(exact.mean[:-1])
        layer.bias.copy_(exact.mean[-1:])
    data = make_dataset(x, y, TARGETS)
    model.loss(data, named_generator(0)).total.backward()
    assert (
        max(p.grad.abs().max() for p in layer.parameters()) < 1e-12
    )  # the mode of the very posterior that is widened
    model.on_fit_end(data, named_generator(0))
    new = torch.randn(7, 4, generator=named_generator(3))
    mean, spread = model.gaussian(new)
    assert_close(mean.detach(), wide(new) @ exact.mean, **EXACT)
    variance = (wide(new) @ exact.covariance * wide(new)).sum(-1)
    assert_close(spread.detach(), variance[:, None, None] * torch.eye(2), **EXACT)
    assert_close(model.log_evidence().detach(), exact.log_evidence, **EXACT)


def as_theirs(model) -> torch.nn.Sequential:
    parts = []
    for layer in model.base_model.network.layers:
        linear = torch.nn.Linear(layer.inputs, layer.outputs)
        linear.load_state_dict({"weight": layer.weight[0].T.contiguous(), "bias": layer.bias[0, 0]})
        parts += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


@pytest.mark.parametrize("task", [CLASSES, TARGETS], ids=lambda t: t.kind)
@pytest.mark.parametrize("options", [{}, LAST, FULL], ids=["all", "last", "full"])
def test_laplace_torch_agrees(task, options):
    data = problem(task)
    model = random_model(task, noise=0.7, tune="none", predictive="closed", **options)
    model.on_fit_end(data, named_generator(0))
    model.delta.copy_(torch.tensor([0.5, 2.0, 3.0])[-len(model.delta) :])
    subset, structure = "last_layer" if options else "all", "full" if options is FULL else "kron"
    if task is CLASSES:
        other = theirs.Laplace(as_theirs(model), "classification", subset, structure)
    else:
        other = theirs.Laplace(as_theirs(model), "regression", subset, structure, sigma_noise=0.7)
    other.fit(DataLoader(TensorDataset(data.x, data.y), batch_size=30))
    other.prior_precision = (
        model.delta if options else model.delta.repeat_interleave(2)
    )  # weights and bias of a layer alike
    new = torch.randn(9, 5, generator=named_generator(5))
    mean, spread = other._glm_predictive_distribution(new)
    ours = model.gaussian(new)
    assert_close(ours[0].detach(), mean.detach(), **EXACT)
    assert_close(ours[1].detach(), spread.detach(), **EXACT)
    assert_close(model.log_evidence().detach(), other.log_marginal_likelihood().detach(), **EXACT)
    if task is CLASSES:
        assert_close(
            model.predict(new, named_generator(0), 1, 1).probs,
            other(new, pred_type="glm", link_approx="probit").detach(),
            **EXACT,
        )
    if options is FULL:
        order = torch.arange(7 * task.size).view(-1, 7)
        order = torch.cat([order[:, :-1].flatten(), order[:, -1]])  # their biases come last
        block = model.blocks[0]
        precision = block.vectors * block.precisions(model.delta[0]) @ block.vectors.T
        assert_close(precision[order][:, order], other.posterior_precision.detach(), **EXACT)


@pytest.mark.parametrize("task", [CLASSES, TARGETS], ids=lambda t: t.kind)
@pytest.mark.parametrize("options", [{}, {"damping": "factored"}], ids=["exact", "factored"])
def test_predictive_covariance_is_that_of_the_matrices_written_out(task, options):
    data = problem(task)
    model = random_model(task, noise=0.7, precision=0.8, tune="none", **options)
    model.on_fit_end(data, named_generator(0))
    x = data.x[:4]
    layers = model.base_model.network.layers
    names = [name for k in range(3) for name in (f"stack.{k}.weight", f"stack.{k}.bias")]

    def outputs(weights, row):
        return torch.func.functional_call(
            model.base_model.network, dict(zip(names, weights, strict=True)), row[None]
        )[0, 0]

    weights = [p.detach() for layer in layers for p in (layer.weight, layer.bias)]
    expected = 0
    covariances = written_out(model, data, factored=bool(options))
    jacobian = torch.func.vmap(torch.func.jacrev(outputs), (None, 0))(weights, x)
    for k, covariance in enumerate(covariances):
        whole_layer = torch.cat([jacobian[2 * k].squeeze(2), jacobian[2 * k + 1].squeeze(2)], 2).flatten(
            2
        )  # (rows, outputs, (in + 1) out)
        expected = expected + whole_layer @ covariance @ whole_layer.mT
    assert_close(model.gaussian(x)[1].detach(), expected, **EXACT)


@pytest.mark.parametrize("options", [{}, FULL], ids=["all", "full"])
def test_chunks_and_weights_only_count_rows(options):
    data = problem(CLASSES)
    weight = torch.ones(30)
    weight[::3], weight[1::3] = 0.0, 2.0
    rows = torch.repeat_interleave(torch.arange(30), weight.long())
    answers = []
    for these, chunk in (
        (make_dataset(data.x, data.y, CLASSES, weight), None),
        (make_dataset(data.x, data.y, CLASSES, weight[None]), 7),
        (make_dataset(data.x[rows], data.y[rows], CLASSES), None),
        (make_dataset(data.x[rows], data.y[rows], CLASSES), 11),
    ):
        model = random_model(CLASSES, **options)
        model.fit_curvature(these, chunk)
        answers.append((model.gaussian(data.x)[1].detach(), model.log_evidence().detach(), model.size))
    for answer in answers[1:]:
        for ours, reference in zip(answer, answers[0], strict=True):
            assert_close(ours, reference, **EXACT)


@pytest.mark.parametrize("options", [{}, {"damping": "factored"}], ids=["exact", "factored"])
def test_drawn_networks_have_the_posterior(options):
    """One layer: f is Gaussian with a known covariance. Two layers.

    F against networks whose weights are drawn as whole vectors.
    """
    data, draws = problem(CLASSES), 20_000
    linear = random_model(CLASSES, widths=(), precision=0.5, tune="none", predictive="sample", **options)
    linear.on_fit_end(data, named_generator(0))
    row = data.x[:1]
    lift = torch.kron(wide(row), torch.eye(3))  # (3, 18): vec by rows -> f
    (covariance,) = written_out(linear, data, bool(options))
    found = linear._sampled_networks(row, draws, named_generator(1))[:, 0].detach()
    within(found, linear.base_model.network(row)[0, 0].detach(), lift @ covariance @ lift.T)

    deep = random_model(CLASSES, widths=(4,), precision=2.0, tune="none", predictive="sample", **options)
    deep.on_fit_end(data, named_generator(0))
    h = wide(row).expand(draws, 1, -1)
    torch.manual_seed(0)
    for layer, covariance in zip(deep.layers, written_out(deep, data, bool(options)), strict=True):
        mean = torch.cat([layer.weight[0], layer.bias[0]]).detach()
        weights = mean + MultivariateNormal(torch.zeros(len(covariance)), covariance).sample((draws,)).view(
            draws, *mean.shape
        )
        s = h @ weights
        h = wide(s.relu())
    brute, found = s[:, 0], deep._sampled_networks(row, draws, named_generator(2))[:, 0].detach()
    for moment in (1, 2):
        a, b = brute**moment, found**moment
        assert ((a.mean(0) - b.mean(0)).abs() <= 5 * ((a.var(0) + b.var(0)) / draws).sqrt()).all()


@pytest.mark.parametrize("options", [{}, FULL], ids=["all", "full"])
def test_linear_draws_have_the_covariance(options):
    data, draws = problem(TARGETS), 20_000
    model = random_model(TARGETS, noise=0.7, tune="none", **options)
    model.on_fit_end(data, named_generator(0))
    mean, spread = (value.detach()[0] for value in model.gaussian(data.x[:1]))
    p = model.predict(data.x[:1], named_generator(1), draws, 1)
    within(p.means[:, 0], mean, spread)
    assert_close(p.component[0], torch.full((2,), 0.49))
    assert ((p.epistemic[0] - spread.diagonal()).abs() <= 5 * spread.diagonal() * math.sqrt(2 / draws)).all()

    classes = random_model(CLASSES, tune="none", **options)
    classes.on_fit_end(problem(CLASSES), named_generator(0))
    mean, spread = (value.detach()[0] for value in classes.gaussian(data.x[:1]))
    torch.manual_seed(0)
    brute = torch.softmax(MultivariateNormal(mean, spread).sample((draws,)), -1)
    p = classes.predict(data.x[:1], named_generator(1), draws // 5)  # inner draws are as good as outer ones
    error = (2 * brute.var(0) / draws).sqrt()
    assert ((p.probs[0] - brute.mean(0)).abs() <= 5 * error).all()
    aleatoric = -torch.xlogy(brute, brute).sum(-1)
    assert (p.component[0] - aleatoric.mean()).abs() <= 5 * (2 * aleatoric.var() / draws).sqrt()
    assert (p.mixing == 0).all()


@pytest.mark.parametrize("task", [CLASSES, TARGETS], ids=lambda t: t.kind)
@pytest.mark.parametrize("options", [{}, LAST, FULL], ids=["all", "last", "full"])
def test_tuned_precision_is_mackays_fixed_point(task, options):
    """γ = δ |θ|² for every layer, and the misfit is what γ parameters leave: Σ r²/σ² = N - γ."""
    model, data = learnt_model(task, **options)
    gammas = []
    for block, layer, delta in zip(model.blocks, model.layers, model.delta, strict=True):
        assert DELTAS[0] < delta < DELTAS[1]
        precisions = block.precisions(delta)
        gammas.append(((precisions - delta) / precisions).sum())
        square = sum(p.detach().square().sum() for p in layer.parameters())
        assert_close(gammas[-1], delta * square, rtol=1e-5, atol=0)
    f = model.base_model.network(data.x)[0].detach()
    if task is TARGETS:
        misfit = ((data.y - f).square() / model.base_model.likelihood.variance()).sum().detach()
        assert_close(misfit, 120 - sum(gammas), rtol=1e-5, atol=0)
    top = model.log_evidence().detach()
    model.fit_curvature(data)  # at the tuned noise
    assert_close(model.log_evidence().detach(), top, **EXACT)
    for k in range(len(model.delta)):
        for factor in (0.9, 1.1):
            model.delta[k] *= factor
            assert model.log_evidence() < top
            model.delta[k] /= factor


def test_factored_precision_is_tuned_to_the_top():
    model, _ = learnt_model(TARGETS, damping="factored")
    top = model.log_evidence()
    for k in range(2):
        for factor in (0.99, 1.01):
            model.delta[k] *= factor
            assert model.log_evidence() < top
            model.delta[k] /= factor


def test_given_noise_is_not_tuned():
    model, _ = learnt_model(TARGETS, noise=0.4)
    assert_close(model.base_model.likelihood.variance().detach(), torch.full((1, 2), 0.16))
    free, _ = learnt_model(TARGETS, tune="none")
    assert (free.delta == 1).all()


@pytest.mark.parametrize("options", [{}, LAST, FULL, {"damping": "factored"}, {"predictive": "sample"}])
@pytest.mark.parametrize("task", [CLASSES, TARGETS], ids=lambda t: t.kind)
def test_doubt_falls_as_the_prior_narrows(task, options):
    data = problem(task)
    model = random_model(task, tune="none", **options)
    model.on_fit_end(data, named_generator(0))
    spreads = []
    for delta in (0.01, 0.1, 1.0, 10.0, 1e3, 1e6):
        model.delta.fill_(delta)
        spreads.append(model.gaussian(data.x)[1].diagonal(dim1=1, dim2=2).detach())
    assert all((after < before).all() for before, after in zip(spreads, spreads[1:], strict=False))
    model.delta.fill_(1e14)
    ours, plain = (
        model.predict(data.x, named_generator(0), 4),
        model.base_model.predict(data.x, named_generator(0), 1, 1),
    )
    assert_close(ours.log_prob(data.y), plain.log_prob(data.y), rtol=0, atol=1e-4)
    assert ours.epistemic.max() < 1e-8


def test_curvature_of_one_softmax_layer_is_the_hessian():
    """Of the summed negative log-likelihood; whatever the labels."""
    data = problem(CLASSES)
    model = random_model(CLASSES, widths=(), tune="none", **FULL)
    model.on_fit_end(data, named_generator(0))
    (layer,) = model.base_model.network.layers
    start = torch.cat([layer.weight[0], layer.bias[0]]).detach().T  # (out, in + 1)
    for labels in (data.y, (data.y + 1) % 3):

        def nll(w, y=labels):
            return torch.nn.functional.cross_entropy(wide(data.x) @ w.T, y, reduction="sum")

        hessian = torch.func.hessian(nll)(start).reshape(18, 18)
        block = model.blocks[0]
        assert_close(block.vectors * block.values @ block.vectors.T, hessian, rtol=0, atol=1e-8)


def test_probit_is_close_to_the_integral():
    """C = 2 with a second logit at 0: the sigmoid's expectation."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    nodes, weights = torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())
    for mean in (-2.0, 0.3, 1.0):
        for variance in (0.1, 0.5, 1.0):
            exact = (weights * torch.sigmoid(mean + math.sqrt(variance) * nodes)).sum()
            f = probit(torch.tensor([mean, 0.0]), torch.tensor([variance, 0.0]))
            assert abs(torch.softmax(f, -1)[0] - exact) < 0.005


def test_closed_answers():
    data = problem(TARGETS)
    model = random_model(TARGETS, noise=0.7, tune="none", predictive="closed")
    model.on_fit_end(data, named_generator(0))
    mean, spread = (value.detach() for value in model.gaussian(data.x))
    variance = spread.diagonal(dim1=1, dim2=2) + 0.49
    p = model.predict(data.x, named_generator(0), 1, 1)
    assert_close(p.log_prob(data.y), Normal(mean, variance.sqrt()).log_prob(data.y).sum(-1), **EXACT)
    assert_close(p.epistemic, spread.diagonal(dim1=1, dim2=2), **EXACT)
    assert_close(p.aleatoric, torch.full((30, 2), 0.49), **EXACT)
    assert torch.equal(p.total, model.predict(data.x, named_generator(1), 4).total)

    classes = random_model(CLASSES, tune="none", predictive="closed")
    classes.on_fit_end(problem(CLASSES), named_generator(0))
    p = classes.predict(data.x, named_generator(0), 1, 1)
    assert_close(p.component, p.entropy(), **EXACT)


@pytest.mark.parametrize("task", [CLASSES, TARGETS], ids=lambda t: t.kind)
def test_dead_units_keep_their_prior(task):
    data = problem(task)
    model = random_model(task, widths=(6,), precision=2.0, tune="none")
    with torch.no_grad():
        model.base_model.network.layers[0].bias[..., 2] = -1e3
    model.on_fit_end(data, named_generator(0))
    block = model.blocks[0]
    covariance = block.output_vectors / block.precisions(model.delta[0])[0] @ block.output_vectors.T
    assert_close(covariance[2], 0.5 * torch.eye(6)[2], **EXACT)
    with torch.no_grad():
        model.base_model.network.layers[0].bias.fill_(
            -1e3
        )  # all of them: no curvature at all in the first layer
    model.fit_curvature(data)
    model._tune()
    assert (
        torch.isfinite(model.delta).all()
        and torch.isfinite(model.predict(data.x, named_generator(0), 4).total).all()
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subset": "first"}, "subset is 'first'"),
        ({"structure": "diag"}, "structure is 'diag'"),
        ({"structure": "full"}, "structure is 'full' with subset 'all'"),
        (FULL | {"damping": "factored"}, "damping is 'factored'"),
        ({"damping": "none"}, "damping is 'none'"),
        ({"tune": "validation"}, "tune is 'validation'"),
        ({"predictive": "probit"}, "predictive is 'probit'"),
        ({"precision": 0.0}, "precision is 0.0"),
        ({"noise": -1.0}, "noise is -1.0"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        build(Method("laplace", **options), 3, TARGETS)
