"""The α-energy against its site form, the evidence and the evidence bound; the split against closed forms.

Adam row by row.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles import LinearGaussian, floored
from scipy import integrate, stats
from torch.distributions import Categorical, MultivariateNormal, Normal, kl_divergence
from torch.testing import assert_close

from compound.models import Method, build
from compound.models.bnn_lv import BNNLV, Noise, energy
from compound.random import named_generator
from compound.types import Batch, Task, make_dataset

ONE, CLASSES = Task("regression", 1), Task("classification", 3)


def random_posterior(model: BNNLV, seed: int = 0, low: float = 0.3, high: float = 2.0) -> None:
    """Means of about 0.4; variances between sigmoid(low) and sigmoid(high) of the prior's."""
    g = named_generator(seed, "posterior")
    with torch.no_grad():
        for part in (*model.layers, model.latents):
            part.mean.copy_(0.4 * torch.randn(part.mean.shape, generator=g, dtype=torch.float64))
            part.rho.copy_(low + (high - low) * torch.rand(part.rho.shape, generator=g, dtype=torch.float64))


def linear(rows: int, seed: int = 0, **options) -> tuple[BNNLV, Batch]:
    """f = w x + u z + b, whose energy can be integrated; float64."""
    g = named_generator(seed, "rows")
    x, y = torch.randn(rows, 1, generator=g).double(), torch.randn(rows, 1, generator=g).double()
    model = build(Method("bnn-lv", **{"widths": (), "noise": 0.8} | options), 1, ONE).double()
    data = make_dataset(x, y, ONE)
    model.on_fit_start(data, named_generator(0))
    torch.nn.init.constant_(
        model.likelihood.log_noise, math.log(model.config.noise)
    )  # was rounded to float32
    random_posterior(model, seed)
    return model, data


def grid(model: BNNLV, rows: int, points: int) -> tuple[Noise, torch.Tensor]:
    """Gauss-Hermite nodes over all weights and z, with their weights (S,)."""
    (layer,) = model.layers
    node, weight = (torch.from_numpy(v) for v in np.polynomial.hermite_e.hermegauss(points))
    count = layer.mean.numel()
    nodes = torch.cartesian_prod(*[node] * (count + 1))  # (S, weights + 1)
    weights = torch.cartesian_prod(*[weight / weight.sum()] * (count + 1)).prod(1)
    return Noise(
        [nodes[:, :count].view(-1, *layer.mean.shape)], nodes[:, count:].unsqueeze(1).expand(-1, rows, -1)
    ), weights


def integrated(model: BNNLV, data: Batch, alpha: float, points: int) -> torch.Tensor:
    """The model's own loss with every mean over draws replaced by quadrature."""
    noise, weight = grid(model, len(data), points)
    even, own = len(weight) * weight.unsqueeze(-1), model.pairs
    model.config = replace(model.config, alpha=alpha)
    model.noise = lambda rows, generator: noise

    def pairs(batch: Batch, noise: Noise):
        p = own(batch, noise)
        return p._replace(log_prob=p.log_prob * even if alpha == 0 else p.log_prob + even.log() / alpha)

    model.pairs = pairs
    try:
        return model.loss(data, named_generator(0)).total.detach()
    finally:
        del model.noise, model.pairs


def natural(mean: torch.Tensor, variance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Natural parameters of Gaussians, and the logs of their normalisers."""
    return (
        mean / variance,
        -0.5 / variance,
        mean.square() / (2 * variance) + 0.5 * (2 * math.pi * variance).log(),
    )


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0])
def test_energy_is_that_of_the_published_site_form(alpha):
    """There q(W) is p(W) f(W)^N and q(z_n) is p(z_n) f_n(z_n), with sites f that are not normalised."""
    model, data = linear(3, prior_variance=1.7, latent_variance=0.6)
    noise, weight = grid(model, 3, 7)
    (layer,), local = model.layers, model.latents
    v, v_z = 1.7 * layer.rho.sigmoid(), 0.6 * local.rho.sigmoid()
    w, z = (
        layer.mean + v.sqrt() * noise.weights[0],
        local.mean + v_z.sqrt() * noise.latents,
    )  # (S, 3, 1), (S, rows, 1)
    zero, ones = torch.zeros(()).double(), torch.ones(()).double()
    (a, b, log_z), (a0, b0, log_z0) = natural(layer.mean, v), natural(zero, 1.7 * ones)
    (c, d, log_zz), (c0, d0, log_zz0) = natural(local.mean, v_z), natural(zero, 0.6 * ones)
    site = ((a - a0) * w + (b - b0) * w.square()).sum((1, 2)) / 3  # (S,) log f(W)
    local_site = ((c - c0) * z + (d - d0) * z.square()).squeeze(-1)  # (S, rows)
    f = w[:, 0] * data.x.T + w[:, 1] * z.squeeze(-1) + w[:, 2]
    log_prob = Normal(f, 0.8).log_prob(data.y.T)
    sums = (weight.log().unsqueeze(-1) + alpha * (log_prob - site.unsqueeze(-1) - local_site)).logsumexp(0)
    published = (log_z0 - log_z).sum() + (log_zz0 - log_zz).sum() - sums.sum() / alpha
    assert_close(3 * integrated(model, data, alpha, 7), published.detach(), rtol=1e-11, atol=0)


def test_alpha_0_is_the_limit_and_the_slope_is_half_the_variance():
    model, data = linear(3)
    bound = integrated(model, data, 0.0, 9)
    noise, weight = grid(model, 3, 9)
    p = model.pairs(data, noise)
    e = p.log_prob + p.weights.unsqueeze(-1) / 3 + p.latents  # (S, rows)
    mean = (weight.unsqueeze(-1) * e).sum(0)
    variance = (weight.unsqueeze(-1) * (e - mean).square()).sum(0)
    assert_close(bound, -mean.mean().detach(), rtol=1e-10, atol=0)
    slope = (integrated(model, data, 1e-5, 9) - bound) / 1e-5
    assert_close(slope, -0.5 * variance.mean().detach(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("seed", [0, 1])
def test_alpha_0_is_evidence_minus_divergence_from_the_exact_posterior(seed):
    """-N E_0 = log p(y) - KL[q(W) || p(W | y)] for any q, where z is too small to matter."""
    model, data = linear(6, seed, latent_variance=1e-30, alpha=0.0)
    (layer,) = model.layers
    exact = LinearGaussian(data.x, data.y, noise=0.64)
    with torch.no_grad():
        layer.mean[1], layer.rho[1] = 0.0, 50.0  # the weight of z stays at its prior
        model.latents.mean.zero_()
        model.latents.rho.fill_(50.0)
    keep = [0, 2]  # weight and bias
    q = MultivariateNormal(layer.mean[keep, 0], torch.diag(layer.rho[keep, 0].sigmoid()))
    divergence = kl_divergence(q, MultivariateNormal(exact.mean[:, 0], exact.covariance))
    assert_close(
        6 * integrated(model, data, 0.0, 3), (divergence - exact.log_evidence).detach(), rtol=1e-9, atol=0
    )


def evidence(x: float, y: float, noise: float, prior: float, latent: float) -> float:
    """p(y) of one row: W integrated on paper, z by adaptive quadrature."""

    def integrand(z: float) -> float:
        return stats.norm.pdf(y, 0, math.sqrt(prior * (x * x + z * z + 1) + noise**2)) * stats.norm.pdf(
            z, 0, math.sqrt(latent)
        )

    return integrate.quad(integrand, -12, 12, epsabs=1e-13)[0]


@pytest.mark.parametrize("seed", [0, 1])
def test_one_row_at_alpha_1_is_the_evidence_whatever_q(seed):
    model, data = linear(1, 3, prior_variance=1.3, latent_variance=0.7)
    random_posterior(model, seed, 1.0, 2.5)
    log_evidence = math.log(evidence(float(data.x), float(data.y), 0.8, 1.3, 0.7))
    assert abs(float(integrated(model, data, 1.0, 22)) + log_evidence) < 1e-6


def test_draws_of_the_loss_estimate_the_evidence():
    model, data = linear(1, 3, prior_variance=1.3, latent_variance=0.7, alpha=1.0, samples=200_000)
    random_posterior(model, 0, 1.0, 2.5)
    truth = evidence(float(data.x), float(data.y), 0.8, 1.3, 0.7)
    p = model.pairs(data, model.noise(1, named_generator(1)))
    ratios = (p.log_prob + p.weights.unsqueeze(-1) + p.latents).detach().exp()
    error = float(ratios.std()) / math.sqrt(200_000)
    assert abs(math.exp(-model.loss(data, named_generator(0)).total.item()) - truth) < 4 * error
    assert error < 0.02 * truth


def test_energy_falls_in_alpha():
    model, data = linear(4)
    values = [float(integrated(model, data, alpha, 8)) for alpha in (0.0, 0.1, 0.5, 1.0, 2.0)]
    assert all(a > b + 1e-4 for a, b in zip(values, values[1:], strict=False))


@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_exact_posterior_makes_every_draw_tell_the_evidence(alpha):
    """y = b + noise: the exponent is the same for every draw, and so is any mean of it."""
    model, _ = linear(1, latent_variance=1e-30, alpha=alpha, samples=4, prior_variance=2.0)
    data = make_dataset(torch.zeros(1, 1).double(), torch.tensor([[1.3]], dtype=torch.float64), ONE)
    (layer,) = model.layers
    share = 2.0 / (2.0 + 0.64)
    with torch.no_grad():
        layer.mean.zero_()
        layer.rho.fill_(50.0)
        layer.mean[2], layer.rho[2] = share * 1.3, math.log(0.64 / 2.0)  # sigmoid is 0.64 / 2.64
        model.latents.mean.zero_()
        model.latents.rho.fill_(50.0)
    p = model.pairs(data, model.noise(1, named_generator(5)))
    log_evidence = stats.norm.logpdf(1.3, 0, math.sqrt(2.64))
    exponents = (p.log_prob + p.weights.unsqueeze(-1) + p.latents).detach()
    assert_close(exponents, torch.full_like(exponents, log_evidence), rtol=1e-10, atol=0)
    assert_close(
        float(model.loss(data, named_generator(6)).total.detach()), -log_evidence, rtol=1e-10, atol=0
    )


def by_hand(model: BNNLV, x: torch.Tensor, z: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """One row through the network, one draw."""
    h = torch.cat([x, z])
    for k, w in enumerate(weights):
        h = torch.cat([h, h.new_ones(1)]) @ w
        h = h.relu() if k + 1 < len(weights) else h
    return h


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("task", [CLASSES, Task("regression", 2)], ids=lambda task: task.kind)
def test_loss_is_the_formula_written_as_loops(task, alpha):
    """A batch of some rows in any order, one of them held out, through two hidden layers."""
    options = {
        "widths": (5, 4),
        "samples": 6,
        "latents": 2,
        "prior_variance": 0.7,
        "latent_variance": 1.4,
        "alpha": alpha,
    }
    model = build(Method("bnn-lv", **options), 3, task, 1).double()
    g = named_generator(2)
    x = torch.randn(9, 3, generator=g).double()
    y = (
        torch.randint(3, (9,), generator=g)
        if task.kind == "classification"
        else torch.randn(9, 2, generator=g).double()
    )
    weight = torch.ones(1, 9).double()
    weight[0, 4] = 0
    data = make_dataset(x, y, task, weight)
    model.on_fit_start(data, named_generator(0))
    random_posterior(model)
    rows = torch.tensor([7, 2, 4, 5])
    loss = model.loss(data.take(rows), [named_generator(3)])
    noise = model.noise(4, named_generator(3))

    def normals(part, prior):
        return Normal(part.mean, (prior * part.rho.sigmoid()).sqrt()), Normal(
            torch.zeros_like(part.mean), math.sqrt(prior)
        )

    laws, (q_z, p_z) = [normals(layer, 0.7) for layer in model.layers], normals(model.latents, 1.4)
    exponents, log_probs = torch.zeros(6, 4).double(), torch.zeros(6, 4).double()
    for s in range(6):
        weights = [q.loc + q.scale * own[s] for (q, _), own in zip(laws, noise.weights, strict=True)]
        ratio = sum((p.log_prob(w) - q.log_prob(w)).sum() for (q, p), w in zip(laws, weights, strict=True))
        for i, n in enumerate(rows.tolist()):
            z = q_z.loc[n] + q_z.scale[n] * noise.latents[s, i]
            f = by_hand(model, x[n], z, weights)
            likelihood = (
                Categorical(logits=f)
                if task.kind == "classification"
                else Normal(f, model.likelihood.variance()[0].sqrt())
            )
            log_probs[s, i] = likelihood.log_prob(y[n]).sum()
            local = (
                Normal(q_z.loc[n], q_z.scale[n]).log_prob(z),
                Normal(torch.zeros(2).double(), math.sqrt(1.4)).log_prob(z),
            )
            exponents[s, i] = log_probs[s, i] + ratio / 8 + (local[1] - local[0]).sum()
    mine = [0, 1, 3]  # not the held-out row
    if alpha:
        total = -(alpha * exponents[:, mine]).exp().mean(0).log().mean() / alpha
        nll = -(alpha * log_probs[:, mine]).exp().mean(0).log().mean() / alpha
    else:
        nll = -log_probs[:, mine].mean()
        total = (
            nll
            + sum(kl_divergence(*law).sum() for law in laws) / 8
            + kl_divergence(q_z, p_z)[rows[mine]].sum(-1).mean()
        )
    assert_close(loss.total.detach(), total.detach(), rtol=1e-10, atol=0)
    assert_close(loss.nll, nll.detach().reshape(1), rtol=1e-10, atol=0)
    assert_close(loss.kl, (total - nll).detach().reshape(1), rtol=1e-9, atol=0)


def test_small_alpha_is_not_lost_to_rounding():
    values = torch.randn(25, 7, generator=named_generator(0)) - 300
    assert_close(energy(values, 1e-6).double(), energy(values.double(), 0.0), rtol=1e-6, atol=0)
    assert_close(energy(values, 0.5), energy(values.double(), 0.5).float(), rtol=1e-7, atol=0)


def test_split_of_a_linear_model_is_the_closed_form():
    """f = w x + u z + b: Var_z f = g u², and the mean over z of f varies with w and b alone.

    Q(z_n) has no part in it.
    """
    model, _ = linear(5, latent_variance=2.5, latents=2, prior_variance=0.5)
    with torch.no_grad():
        model.latents.mean.fill_(40.0)
    (layer,) = model.layers
    x, outer, inner = torch.tensor([[-2.0], [0.0], [1.5]]).double(), 8000, 5
    p = model.predict(x, named_generator(1), outer, inner)
    mean, variance = (
        layer.mean.detach().squeeze(-1),
        (0.5 * layer.rho.sigmoid()).detach().squeeze(-1),
    )  # w, u, u', b
    epistemic = variance[0] * x.square() + variance[3]
    square = mean[1:3].square() + variance[1:3]  # E u²
    mixing = (2.5 * square.sum()).expand(3, 1)
    # Var[Var_z f] = g² Var[u² + u'²]; sample variances of Gaussians scatter by sqrt(2 / draws) of themselves
    scatter = 2.5 * (2 * variance[1:3].square() + 4 * mean[1:3].square() * variance[1:3]).sum().sqrt()
    assert_close(p.component, torch.full_like(p.component, 0.64), rtol=1e-10, atol=0)
    assert ((p.mixing - mixing).abs() < 4 * (scatter + mixing) / math.sqrt(outer)).all()
    assert ((p.epistemic - epistemic).abs() < 4 * math.sqrt(3 / outer) * (epistemic + mixing / inner)).all()
    assert (4 * math.sqrt(3 / outer) * (epistemic + mixing / inner) < mixing / inner)[
        1
    ]  # uncorrected draws would be seen
    expected = mean[0] * x + mean[3]
    assert ((p.mean - expected).abs() < 4 * ((epistemic + mixing / inner) / outer).sqrt()).all()
    assert_close(p.aleatoric + p.epistemic, p.variance, rtol=1e-10, atol=0)


def test_noise_is_all_there_is_without_x_and_z():
    model, _ = linear(2, noise=30.0)
    with torch.no_grad():
        for layer in model.layers:
            layer.mean.zero_()
            layer.rho.fill_(-80.0)
    p = model.predict(torch.zeros(2, 1).double(), named_generator(0), 10)
    assert_close(p.aleatoric, torch.full((2, 1), 900.0).double(), rtol=1e-12, atol=0)
    assert p.epistemic.max() < 1e-12


def test_classes_average_probabilities_over_z_and_then_over_weights():
    model = build(Method("bnn-lv", widths=(4,), latent_variance=3.0), 2, CLASSES, 0).double()
    random_posterior(model)
    x, g = torch.randn(6, 2, generator=named_generator(1)).double(), named_generator(7)
    p = model.predict(x, named_generator(7), 30, 8)
    probs = torch.zeros(30, 8, 6, 3).double()
    for s in range(30):
        weights = []
        for layer in model.layers:
            noise = torch.randn(layer.mean.shape, generator=g, dtype=torch.float64)
            weights.append((layer.mean + layer.rho.sigmoid().sqrt() * noise).detach())
        z = math.sqrt(3.0) * torch.randn(8, 1, 1, generator=g, dtype=torch.float64)
        for t in range(8):
            probs[s, t] = torch.stack([by_hand(model, row, z[t, 0], weights).softmax(-1) for row in x])
    assert_close(p.probs, probs.mean((0, 1)), rtol=1e-10, atol=0)
    assert_close(p.total, torch.from_numpy(stats.entropy(p.probs.numpy(), axis=-1)), rtol=1e-10, atol=0)
    inner = torch.from_numpy(stats.entropy(probs.numpy(), axis=-1)).mean((0, 1))
    of_means = torch.from_numpy(stats.entropy(probs.mean(1).numpy(), axis=-1)).mean(0)
    assert_close(p.component, inner, rtol=1e-10, atol=0)
    without = torch.stack(
        [probs[:, [k for k in range(8) if k != t]].mean(1) for t in range(8)]
    )  # the jackknife, draw by draw
    corrected = 8 * of_means - 7 * torch.from_numpy(stats.entropy(without.numpy(), axis=-1)).mean((0, 1))
    assert_close(p.mixing, corrected - inner, rtol=1e-10, atol=0)
    assert (p.epistemic > 0).all()


def test_learnt_noise_starts_small():
    model = floored(build(Method("bnn-lv"), 3, Task("regression", 2)))
    assert_close(model.likelihood.variance().log(), torch.full((1, 2), -5.0), rtol=1e-6, atol=0)


class TestRows:
    """q(z_n) moves when row n is in the batch, and only then."""

    def test_every_row_walks_as_adam_would_on_its_own_batches(self):
        model, _ = linear(6)
        optimizer = model.optimizer(type("Settings", (), {"lr": 0.01})())
        batches = [[0, 1], [0, 2], [1, 0], [5, 0, 2], [0, 3]]
        g = named_generator(4)
        alone = [model.latents.mean[n].detach().clone().requires_grad_() for n in range(6)]
        theirs = [torch.optim.Adam([row], lr=1.0) for row in alone]
        for rows in batches:
            gradient = torch.zeros(6, 1).double()
            gradient[rows] = torch.randn(len(rows), 1, generator=g, dtype=torch.float64)
            model.latents.mean.grad = gradient
            optimizer.step()
            for n in rows:
                theirs[n].param_groups[0]["lr"] = 0.01 * 6 / len(rows)  # N / B
                alone[n].grad = gradient[n]
                theirs[n].step()
        assert_close(model.latents.mean.detach(), torch.stack(alone).detach(), rtol=1e-9, atol=1e-12)
        assert torch.equal(model.latents.mean[4], alone[4])

    def test_other_rows_stay_and_weights_move(self):
        model, data = linear(6)
        optimizer = model.optimizer(type("Settings", (), {"lr": 0.01})())

        def step(rows):
            optimizer.zero_grad(set_to_none=True)
            model.loss(data.take(torch.tensor(rows)), named_generator(1)).total.backward()
            before = [
                p.detach().clone()
                for p in (model.latents.mean, model.latents.rho, model.layers[0].mean, model.layers[0].rho)
            ]
            optimizer.step()
            return before, [model.latents.mean, model.latents.rho, model.layers[0].mean, model.layers[0].rho]

        step(list(range(6)))  # now every row has momentum
        before, after = step([4, 1])
        for old, new in zip(before[:2], after[:2], strict=True):
            moved = (old != new).any(1)
            assert moved.tolist() == [False, True, False, False, True, False]
        assert all(bool((old != new).all()) for old, new in zip(before[2:], after[2:], strict=True))

    def test_rates_count_rows_that_are_trained_on(self):
        model, data = linear(6)
        model.on_fit_start(replace(data, weight=torch.tensor([1.0, 1, 0, 1, 0, 1])), named_generator(0))
        optimizer = model.optimizer(type("Settings", (), {"lr": 0.01})())
        model.latents.mean.grad = torch.tensor([[0.0], [3.0], [0.0], [0.0], [0.0], [-2.0]]).double()
        optimizer.step()
        assert_close(
            model.latents.mean[[1, 5], 0].detach(), torch.tensor([-0.02, 0.02]).double(), rtol=1e-6, atol=0
        )  # 4 / 2 of the rate

    def test_fresh_model_takes_any_number_of_rows(self):
        model, data = linear(6)
        fresh = build(Method("bnn-lv", widths=(), noise=0.8), 1, ONE, seed=9).double()
        fresh.load_state_dict(model.state_dict())
        assert torch.equal(
            fresh.loss(data, named_generator(1)).total, model.loss(data, named_generator(1)).total
        )
        fresh.on_fit_start(data.take(torch.arange(3)), named_generator(0))
        assert len(fresh.latents.mean) == 3
        wider = build(Method("bnn-lv", widths=(), noise=0.8, latents=2), 1, ONE).double()
        with pytest.raises(RuntimeError, match="size mismatch"):
            wider.load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": -0.5}, "alpha is -0.5"),
        ({"samples": 0}, "samples is 0"),
        ({"latents": 0}, "latents is 0"),
        ({"prior_variance": 0.0}, "prior_variance is 0.0"),
        ({"latent_variance": -1.0}, "latent_variance is -1.0"),
        ({"noise": -1.0}, "noise is -1.0"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        build(Method("bnn-lv", **options), 3, ONE)
