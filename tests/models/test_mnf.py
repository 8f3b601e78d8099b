"""Flows against Jacobians, the bound against quadrature and exact KL, moments against draws."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from oracles import LinearGaussian
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from compound.models import Method, build
from compound.nn.flows import MaskedNVP, Planar
from compound.nn.multiplicative import MultiplicativeLinear
from compound.ops.auxiliary_posterior import sample_activations
from compound.ops.gaussian_noise import standard_normal
from compound.ops.multiplicative_linear import Noise
from compound.random import named_generator
from compound.types import Task, make_dataset

ONE, CLASSES = Task("regression", 1), Task("classification", 3)
LIKE = torch.empty(0, dtype=torch.float64)


def shaken(module, seed=1, scale=0.4):
    """In float64, every parameter away from its start."""
    g = named_generator(seed, "shaken")
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter += scale * standard_normal(g, parameter.shape, parameter)
    return module


def layer_of(inputs, outputs, flows=(2, 2), prior=0.7) -> MultiplicativeLinear:
    return shaken(MultiplicativeLinear(inputs, outputs, named_generator(1), flows, 4, prior, log_std=-1.0))


def noise_of(layer, rows, groups, seed=2) -> Noise:
    g = named_generator(seed, "noise")
    return Noise(
        standard_normal(g, (groups, layer.inputs), LIKE),
        layer.flow.masks(groups, g),
        standard_normal(g, (rows, layer.outputs), LIKE),
        standard_normal(g, (groups, layer.outputs), LIKE),
        layer.reverse_flow.masks(groups, g),
    )


class Parts(NamedTuple):
    """The parameters of a layer by their meaning."""

    mean: Tensor
    log_std: Tensor
    bias: Tensor
    bias_log_var: Tensor
    z_mean: Tensor
    z_log_var: Tensor
    reader: Tensor
    reverse_mean: Tensor
    reverse_log_precision: Tensor

    @property
    def start(self) -> Normal:
        return Normal(self.z_mean, (0.5 * self.z_log_var).exp())

    @property
    def b(self) -> Normal:
        return Normal(self.bias, (0.5 * self.bias_log_var).exp())

    def given(self, z: Tensor, prior: float) -> Tensor:
        """KL[q(W | z) q(b) || prior], by torch."""
        normal = Normal(torch.zeros((), dtype=torch.float64), math.sqrt(prior))
        weights = kl_divergence(Normal(z.unsqueeze(-1) * self.mean, self.log_std.exp()), normal)
        return weights.sum((-2, -1)) + kl_divergence(self.b, normal).sum()


def parts(layer) -> Parts:
    return Parts(layer.mean, layer.log_std, *layer.bias, *layer.vectors)


def fill(layer, **values) -> None:
    with torch.no_grad():
        for name, value in values.items():
            getattr(parts(layer), name)[...] = torch.as_tensor(value, dtype=torch.float64)


def slow(layer, x, noise):
    """Out and bound from the definitions, by torch's own distributions."""
    p = parts(layer)
    z, log_det = layer.flow.forward_given(p.z_mean + p.start.stddev * noise.z, noise.masks)
    variances = p.log_std.exp().square()
    out, bound = [], []
    for k, row in enumerate(x):
        std = (row.square() @ variances + p.b.variance).sqrt()
        out.append((row * z[k % len(z)]) @ p.mean + p.bias + std * noise.out[k])
    for k, one in enumerate(z):
        read = (
            p.reader @ (one.unsqueeze(-1) * p.mean)
            + (p.reader.square() @ variances).sqrt() * noise.projection[k]
        )
        level = read.tanh().mean()
        behind, reverse_log_det = layer.reverse_flow.forward_given(
            one[None], noise.reverse_masks[:, k : k + 1]
        )
        reverse = Normal(level * p.reverse_mean, (-0.5 * level * p.reverse_log_precision).exp())
        log_reverse = reverse.log_prob(behind).sum() + reverse_log_det[0]
        bound.append(p.given(one, layer.prior_variance) - p.start.entropy().sum() - log_det[k] - log_reverse)
    return torch.stack(out), torch.stack(bound)


FLOWS = [("nvp", 5), ("planar", 1), ("planar", 3)]


def flow_of(kind, d):
    return shaken(
        MaskedNVP(d, 3, 4, named_generator(1)) if kind == "nvp" else Planar(d, 3, named_generator(1))
    )


@pytest.mark.parametrize(("kind", "d"), FLOWS)
def test_log_determinants_are_those_of_the_jacobian(kind, d):
    flow, z = flow_of(kind, d), standard_normal(named_generator(3), (6, d), LIKE)
    masks = flow.masks(6, named_generator(4))
    out, log_det = flow.forward_given(z, masks)
    for k in range(6):
        jacobian = torch.autograd.functional.jacobian(
            lambda v, k=k: flow.forward_given(v[None], masks[:, k : k + 1])[0][0], z[k]
        )
        assert_close(log_det[k], torch.linalg.slogdet(jacobian)[1], rtol=0, atol=1e-12)
    again = flow(z, named_generator(4))  # draws the same masks
    assert torch.equal(again[0], out) and torch.equal(again[1], log_det)


def test_masked_steps_can_be_undone_and_keep_what_they_say():
    flow, z = flow_of("nvp", 5), standard_normal(named_generator(3), (6, 5), LIKE)
    masks = flow.masks(6, named_generator(4))
    back = flow.forward_given(z, masks)[0]
    hidden = flow.weight.shape[2]
    for coins, a, c, bias in reversed(list(zip(masks, flow.weight, flow.heads, flow.bias, strict=True))):
        mask = (coins > 0).double()
        centre, gate = ((mask * back @ a + bias[:hidden]).tanh() @ c + bias[hidden:]).chunk(2, -1)
        g = gate.sigmoid()
        back = torch.where(mask == 1, back, (back - (1 - g) * centre) / g)
    assert_close(back, z, rtol=0, atol=1e-12)


def test_masks_are_halves_drawn_for_every_draw_and_step():
    masks = (MaskedNVP(50, 2, 3, named_generator(1)).masks(100, named_generator(2)) > 0).float()
    assert abs(masks.mean() - 0.5) < 5 * 0.5 / 100  # 10,000 of them
    rows = masks.flatten(0, 1)
    assert len(rows.unique(dim=0)) == 200


@pytest.mark.parametrize(("w", "u"), [(1.5, 0.8), (1.5, -4.0), (-0.7, 3.0), (1e-3, -2.0)])
def test_planar_flow_is_invertible_and_its_density_adds_up_to_one(w, u):
    flow = shaken(Planar(1, 2, named_generator(1)))
    with torch.no_grad():
        flow.weight[0], flow.direction[0] = w, u  # w u < -1 would fold the line without the correction
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64).unsqueeze(-1)
    out, log_det = flow(z, named_generator(0))
    assert (out.diff(dim=0) > 0).all()
    density = (Normal(0.0, 1.0).log_prob(z[:, 0]) - log_det).exp()
    assert abs(torch.trapezoid(density, out[:, 0]) - 1) < 1e-6


@pytest.mark.parametrize("flows", [(0, 2), (2, 0)])
def test_density_of_the_guess_adds_up_to_one(flows):
    """log r(z | W) from the bound itself: all else in it is known."""
    n, layer = 100_001, layer_of(1, 3, flows)
    p, noise = parts(layer), noise_of(layer, 1, n)
    noise = noise._replace(z=torch.linspace(-30, 30, n, dtype=torch.float64).unsqueeze(-1))
    z, log_det = layer.flow.forward_given(p.z_mean + p.start.stddev * noise.z, noise.masks)
    wanted = torch.tensor([0.3, -0.8, 1.1])  # c^T W, the same for every z
    noise = noise._replace(projection=(wanted - p.reader * z * p.mean) / (p.reader.abs() * p.log_std.exp()))
    with torch.no_grad():
        bound = layer.forward_given(torch.ones(1, 1, dtype=torch.float64), noise)[1]
        log_reverse = p.given(z, layer.prior_variance) - p.start.entropy().sum() - log_det - bound
        assert abs(torch.trapezoid(log_reverse.exp(), z[:, 0]) - 1) < 1e-6


@pytest.mark.parametrize("inputs", [1, 4])
@pytest.mark.parametrize(
    ("rows", "groups", "flows"), [(6, 3, (2, 2)), (7, 3, (2, 1)), (2, 3, (0, 2)), (5, 1, (1, 0))]
)
def test_layer_and_its_gradient_are_those_of_the_definitions(inputs, rows, groups, flows):
    layer = layer_of(inputs, 3, flows)
    noise, x = (
        noise_of(layer, rows, groups),
        standard_normal(named_generator(5), (rows, inputs), LIKE).requires_grad_(),
    )
    shares = (
        standard_normal(named_generator(6), (rows, 3), LIKE),
        standard_normal(named_generator(7), (groups,), LIKE),
    )
    wanted = [x, *layer.parameters()]
    ours, theirs = layer.forward_given(x, noise), slow(layer, x, noise)
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, rtol=1e-10, atol=1e-10)
    gradients = (
        torch.autograd.grad(
            sum((s * v).sum() for s, v in zip(shares, each, strict=True)), wanted, allow_unused=True
        )
        for each in (ours, theirs)
    )
    for a, b in zip(*gradients, strict=True):
        assert_close(a, b, rtol=1e-9, atol=1e-9)


def hermite(n=60):
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())


def expected_bound(layer) -> torch.Tensor:
    """Over z and W of a layer with one weight and no flows, by quadrature."""
    nodes, weights = hermite()
    z, read = torch.cartesian_prod(nodes, nodes).split(1, 1)
    noise = Noise(z, torch.empty(0), torch.zeros(1, 1, dtype=torch.float64), read, torch.empty(0))
    bound = layer.forward_given(torch.ones(1, 1, dtype=torch.float64), noise)[1]
    return bound @ torch.outer(weights, weights).flatten()


def scalar_layer(v, mean, std) -> MultiplicativeLinear:
    """W = z M + S e with z ~ N(0, v), without flows; the bias at its prior."""
    layer = MultiplicativeLinear(1, 1, named_generator(1), (0, 0)).double()
    fill(
        layer, mean=mean, log_std=math.log(std), bias=0.0, bias_log_var=0.0, z_mean=0.0, z_log_var=math.log(v)
    )
    fill(layer, reader=1e-4, reverse_mean=0.0, reverse_log_precision=0.0)
    return layer


def test_bound_is_the_exact_divergence_if_the_guess_is_the_posterior_of_z():
    v, std = 1.25, 0.6
    mean = std * math.sqrt(1 - 1 / v)  # so that z given W has variance 1
    layer = scalar_layer(v, mean, std)
    fill(layer, reverse_mean=mean / std**2 / 1e-4)  # E[z | W] = W M / S²; tanh(c W) is c W for a small c
    total = math.sqrt(std**2 + v * mean**2)
    with torch.no_grad():
        assert_close(
            expected_bound(layer),
            kl_divergence(Normal(LIKE.new_zeros(()), total), Normal(0.0, 1.0)),
            rtol=0,
            atol=1e-7,
        )


def test_bound_is_loose_by_the_information_that_a_blind_guess_misses():
    mean, std = 0.9, 0.6
    layer = scalar_layer(1.0, mean, std)  # r(z) = N(0, 1) = q(z), whatever W
    exact = kl_divergence(Normal(LIKE.new_zeros(()), math.hypot(mean, std)), Normal(0.0, 1.0))
    with torch.no_grad():
        assert_close(
            expected_bound(layer) - exact,
            exact.new_tensor(0.5 * math.log(1 + mean**2 / std**2)),
            rtol=0,
            atol=1e-10,
        )


def test_without_spread_of_z_the_bound_is_the_divergence_of_independent_weights():
    layer = layer_of(4, 3, (0, 0))
    v = 1e-6
    fill(layer, mean=layer.mean.detach().abs(), z_mean=1.0, z_log_var=math.log(v))
    fill(layer, reader=1e4, reverse_mean=1.0, reverse_log_precision=-math.log(v))  # tanh is 1: r = N(1, v)
    z = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).expand(
        2, 4
    )  # noise with the moments of a Gaussian
    x = torch.ones(1, 4, dtype=torch.float64)
    with torch.no_grad():
        bound = layer.forward_given(x, noise_of(layer, 1, 2)._replace(z=z))[1].mean()
        exact = parts(layer).given(torch.ones(4, dtype=torch.float64), layer.prior_variance)
        assert_close(
            bound - 0.5 * v * layer.mean.square().sum() / layer.prior_variance, exact, rtol=1e-9, atol=0
        )


def weights(layer, n, z, seed=8):
    """Whole draws of W and b."""
    g, p = named_generator(seed, "weights"), parts(layer)
    w = z.unsqueeze(-1) * p.mean + p.log_std.exp() * standard_normal(g, (n, *p.mean.shape), LIKE)
    return w.detach(), (p.bias + p.b.stddev * standard_normal(g, (n, layer.outputs), LIKE)).detach()


def assert_alike(a, b):
    """Two samples (n, ...) have equal means and variances, as far as five standard errors tell."""
    for one, other in ((a, b), ((a - b.mean(0)).square(), (b - b.mean(0)).square())):
        error = (one.var(0) / len(one) + other.var(0) / len(other)).sqrt()
        assert ((one.mean(0) - other.mean(0)).abs() < 5 * error).all()


@torch.no_grad()
def test_draws_of_a_layer_are_those_of_drawn_weights():
    n, layer = 100_000, layer_of(3, 2, (0, 0))
    z = torch.tensor([[0.4, -1.3, 2.0]], dtype=torch.float64)
    fill(layer, z_mean=z[0], z_log_var=-80.0)
    x, noise = torch.tensor([[0.5, -1.0, 0.8]], dtype=torch.float64), noise_of(layer, n, 1)
    w, b = weights(layer, n, z)
    assert_alike(layer.forward_given(x.expand(n, -1), noise)[0], (x @ w)[:, 0] + b)
    mean, std = layer.means(x[None], z)[0, 0], layer.std(x)[0]
    assert_alike(mean + std * standard_normal(named_generator(9), (n, 2), LIKE), (x @ w)[:, 0] + b)
    p, projection = parts(layer), noise_of(layer, 1, n).projection
    activations = sample_activations(z, p.mean, (2 * p.log_std).exp(), p.reader, projection)
    assert_alike(activations, (p.reader @ w).tanh())


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 9])
def test_answers_are_those_of_drawn_networks(rows):
    n = 20_000
    model = build(Method("mnf", widths=(3,), flow_hidden=4, noise=0.5, log_std=-1.0), 2, ONE).double()
    shaken(model.stack, scale=0.2)
    for layer in model.layers:
        fill(layer, z_mean=2.5)  # far from 1, where z² would not show
    x = torch.tensor([[0.7, -1.2]], dtype=torch.float64)
    h = x.expand(n, 1, -1)
    for k, layer in enumerate(model.layers):
        w, b = weights(layer, n, layer.draw(n, named_generator(k, "z")), seed=k)
        h = torch.baddbmm(b.unsqueeze(1), h.relu() if k else h, w)
    p = model.predict(x.expand(rows, -1), named_generator(1), n, 1)
    assert_alike(p.means[:, -1], h[:, 0])
    assert_close(p.component[-1], torch.tensor([0.25], dtype=torch.float64))
    assert_close(p.posterior[-1], p.means[:, -1].var(0))


def regression():
    g = named_generator(11)
    x = standard_normal(g, (12, 2), LIKE)
    y = x @ torch.tensor([[0.8], [-1.5]], dtype=torch.float64) + 0.4 + 0.5 * standard_normal(g, (12, 1), LIKE)
    return x, y


def evidence_bound(options, state, n=4000, repeats=10) -> tuple[float, float]:
    """Mean and standard error."""
    x, y = regression()
    model = build(Method("mnf", **options | {"samples": n, "groups": n}), 2, ONE).double()
    model.load_state_dict(state)
    data = make_dataset(x, y, ONE)
    with torch.no_grad():
        values = torch.stack(
            [-12 * model.loss(data, named_generator(k, "noise")).total for k in range(repeats)]
        )
    return float(values.mean()), float(values.std() / math.sqrt(repeats))


def test_bound_stays_below_the_evidence_of_linear_regression_and_training_closes_the_gap():
    x, y = regression()
    exact = float(LinearGaussian(x, y, 0.25, 0.7).log_evidence)
    options = {"widths": (), "noise": 0.5, "prior": 0.7, "flow_hidden": 4, "log_std": -2.0}
    model = build(Method("mnf", **options, groups=12), 2, ONE).double()
    shaken(model.stack, scale=0.2)
    start, error = evidence_bound(options, model.state_dict())
    assert start < exact - 5 * error
    data, optimizer = make_dataset(x, y, ONE), torch.optim.Adam(model.parameters())
    for step in range(400):
        optimizer.param_groups[0]["lr"] = 0.06 * (1 - step / 400)
        optimizer.zero_grad()
        model.loss(data, named_generator(step, "training")).total.backward()
        optimizer.step()
    end, error = evidence_bound(options, model.state_dict())
    assert exact - 1.0 < end < exact + 4 * error


def test_loss_is_the_mean_over_draws_plus_the_bound_over_n():
    model = shaken(
        build(Method("mnf", widths=(4,), flow_hidden=3, groups=3, samples=2, log_std=-1.0), 3, CLASSES)
    )
    g = named_generator(12)
    x, y = standard_normal(g, (5, 3), LIKE), torch.randint(3, (5,), generator=g)
    weight = torch.tensor([1.0, 0.0, 2.0, 1.0, 0.0])
    h, total, g = x.repeat(2, 1), 0, named_generator(0)
    for k, layer in enumerate(model.layers):
        h, bound = layer(h.relu() if k else h, 3, g)
        total = total + bound.mean()
    logs = torch.log_softmax(h, -1)[torch.arange(10), y.repeat(2)].view(2, 5).mean(0)
    data = make_dataset(x, y, CLASSES, weight)
    loss, turned = (
        model.loss(replace(data, x=v), named_generator(0)) for v in (x, x.T.contiguous().T)
    )  # whatever the order in memory
    assert_close(turned.total, loss.total)
    assert_close(loss.nll, -(weight * logs).sum() / 4)
    assert_close(loss.kl, total / 4)
    assert_close(loss.total, (loss.nll + loss.kl).sum())


def test_weight_of_the_divergence_rises():
    data = make_dataset(torch.ones(3, 2), torch.zeros(3, dtype=torch.long), CLASSES)
    model, plain = (
        build(Method("mnf", widths=(), flow_hidden=3, anneal=anneal), 2, CLASSES) for anneal in (0.5, 0.0)
    )
    shares = [
        model.loss(replace(data, progress=at), named_generator(0)).kl
        / plain.loss(data, named_generator(0)).kl
        for at in (0.0, 0.125, 0.5, 0.9)
    ]
    assert_close(torch.stack(shares), torch.tensor([0.0, 0.25, 1.0, 1.0]))


@pytest.mark.parametrize(
    "options",
    [
        {"flows_q": -1},
        {"flows_r": -1},
        {"flow_hidden": 0},
        {"groups": 0},
        {"samples": 0},
        {"prior": 0.0},
        {"anneal": 1.5},
        {"noise": -1.0},
    ],
)
def test_bad_options_are_refused(options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        build(Method("mnf", **options), 2, ONE)
