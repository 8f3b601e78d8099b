"""The prior network against other libraries' distributions, integrals, draws and conjugate posteriors."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, special, stats
from torch.distributions import Dirichlet, Gamma, MultivariateNormal, Wishart, kl_divergence
from torch.testing import assert_close

from compound.models import Method, build
from compound.models.dirichlet import bounded, concentrations, expected_entropy
from compound.models.normal_wishart import NormalWishart, student_nodes
from compound.random import named_generator
from compound.types import Task, make_dataset

ALPHAS = torch.tensor(
    [[0.3, 0.7, 2.0], [1.0, 1.0, 1.0], [910.0, 45.0, 45.0], [4.0, 0.1, 60.0]], dtype=torch.float64
)


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=named_generator(seed), dtype=torch.float64)


def labels(seed: int, rows: int, classes: int) -> torch.Tensor:
    return torch.randint(classes, (rows,), generator=named_generator(seed))


def constant(method: Method, x: torch.Tensor, y: torch.Tensor, task: Task):
    """A model without hidden layers and its data; rows from outside do not count."""
    model = build(method, x.shape[1], task).double()
    data = make_dataset(x, y, task, x_ood=torch.zeros_like(x))
    model.on_fit_start(data, named_generator(0))
    return model, data


def to_the_minimum(model, data) -> None:
    optimizer = torch.optim.LBFGS(
        model.parameters(),
        max_iter=500,
        tolerance_grad=1e-13,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        total = model.loss(data, named_generator(0)).total
        total.backward()
        return total

    for _ in range(4):
        optimizer.step(closure)


class TestDirichlet:
    @pytest.mark.parametrize("divergence", ["forward", "reverse"])
    def test_divergences_are_those_of_another_library(self, divergence):
        likelihood = build(
            Method("dpn", divergence=divergence, cross_entropy=1.0), 2, Task("classification", 4)
        ).likelihood
        f, y = numbers(1, 1, 12, 4), labels(2, 7, 4)
        taught = torch.cat([likelihood.targets[y], torch.ones(5, 4, dtype=torch.float64)])
        ours, theirs = Dirichlet(f[0].exp()), Dirichlet(taught)
        expected = kl_divergence(theirs, ours) if divergence == "forward" else kl_divergence(ours, theirs)
        nll, kl = likelihood.nll_and_kl(f, y)
        assert_close(kl[0], expected, rtol=1e-11, atol=1e-10)
        assert_close(nll.mean(), torch.nn.functional.cross_entropy(f[0, :7], y))
        _, none = likelihood.nll_and_kl(taught.log().unsqueeze(0), y)
        assert none.abs().max() < 1e-10
        assert torch.autograd.gradcheck(lambda f: likelihood.nll_and_kl(f, y), (f.requires_grad_(),))

    @pytest.mark.parametrize("divergence", ["forward", "reverse"])
    def test_loss_is_the_weighted_sum_of_both_kinds_of_rows(self, divergence):
        options = {"divergence": divergence, "ood_weight": 0.7, "cross_entropy": 20.0, "concentration": 40.0}
        model = build(Method("dpn", widths=(5,), **options), 3, Task("classification", 4)).double()
        weight = torch.tensor([1.0, 0.0, 2.0, 1.0, 0.0, 1.0, 1.0])
        batch = make_dataset(numbers(1, 7, 3), labels(2, 7, 4), model.task, weight, x_ood=numbers(3, 5, 3))
        inside, outside = (Dirichlet(model.network(x)[0].exp()) for x in (batch.x, batch.x_ood))
        taught, flat = (
            Dirichlet(model.likelihood.targets[batch.y]),
            Dirichlet(torch.ones(5, 4, dtype=torch.float64)),
        )
        pairs = (
            [(taught, inside), (flat, outside)]
            if divergence == "forward"
            else [(inside, taught), (outside, flat)]
        )
        (in_kl, out_kl), share = (kl_divergence(a, b) for a, b in pairs), weight.double() / weight.sum()
        nll = share @ torch.nn.functional.cross_entropy(model.network(batch.x)[0], batch.y, reduction="none")
        loss = model.loss(batch, [named_generator(0)])
        assert_close(loss.total, (share @ in_kl + 0.7 * out_kl.mean() + 20 * nll) / 40, rtol=1e-10, atol=0)
        assert_close(loss.nll.sum(), nll.detach(), rtol=1e-10, atol=0)

    def test_targets_have_the_concentrations_asked_for(self):
        forward = build(Method("dpn"), 2, Task("classification", 5)).likelihood.targets
        assert_close(forward.sum(-1), torch.tensor([1000.0] * 5 + [5.0], dtype=torch.float64))
        assert_close(forward[2], 1000 * torch.tensor([0.01, 0.01, 0.96, 0.01, 0.01], dtype=torch.float64))
        reverse = build(Method("dpn", divergence="reverse"), 2, Task("classification", 5)).likelihood.targets
        assert_close(reverse.sum(-1), torch.tensor([105.0] * 5 + [5.0], dtype=torch.float64))
        assert_close(reverse[2], torch.tensor([1.0, 1.0, 101.0, 1.0, 1.0], dtype=torch.float64))

    def test_expected_entropy_is_the_integral_over_the_simplex(self):
        def plogp(*p):
            return -sum(special.xlogy(q, q) for q in p)

        for a, b in ((2.0, 3.5), (0.7, 1.2)):
            exact, _ = integrate.quad(
                lambda p, a=a, b=b: stats.beta.pdf(p, a, b) * plogp(p, 1 - p), 0, 1, epsabs=1e-11, limit=200
            )
            assert abs(float(expected_entropy(torch.tensor([a, b], dtype=torch.float64))) - exact) < 1e-8
        alpha = np.array([2.0, 3.0, 1.5])
        weight = math.exp(special.gammaln(alpha.sum()) - special.gammaln(alpha).sum())

        def inner(q, p):
            r = max(0.0, 1 - p - q)
            return weight * p ** (alpha[0] - 1) * q ** (alpha[1] - 1) * r ** (alpha[2] - 1) * plogp(p, q, r)

        exact, _ = integrate.dblquad(inner, 0, 1, 0, lambda p: 1 - p, epsabs=1e-10)
        assert abs(float(expected_entropy(torch.from_numpy(alpha))) - exact) < 1e-8

    def test_mutual_information_is_that_of_draws(self):
        likelihood = build(Method("dpn"), 2, Task("classification", 3)).likelihood
        p = likelihood.predictive(ALPHAS.log())
        gamma = np.random.default_rng(0).standard_gamma(ALPHAS.numpy(), (500_000, 4, 3))
        draws = torch.from_numpy(gamma / gamma.sum(-1, keepdims=True))
        mean = ALPHAS / ALPHAS.sum(-1, keepdim=True)
        each = (torch.xlogy(draws, draws) - draws * mean.log()).sum(
            -1
        )  # KL to the mean, whose expectation is the information
        assert ((p.posterior - each.mean(0)).abs() < 4 * each.std(0) / math.sqrt(len(each))).all()
        assert_close(p.component + p.posterior, -torch.xlogy(mean, mean).sum(-1), rtol=0, atol=1e-12)
        assert_close(p.probs, mean, rtol=1e-12, atol=0)
        assert (p.mixing == 0).all()

    def test_mutual_information_of_sharp_laws_is_small_and_positive(self):
        likelihood = build(Method("dpn"), 2, Task("classification", 3)).likelihood
        for total in (1e4, 1e6, 1e8):
            f = (total * torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)).log()
            assert_close(
                likelihood.predictive(f).posterior,
                torch.tensor([1 / total], dtype=torch.float64),
                rtol=1e-3,
                atol=0,
            )

    def test_labels_that_disagree_flatten_forward_and_sharpen_reverse(self):
        """b = (101, 1, 1) and (1, 101, 1) at one input.

        Forward matches E log p, reverse averages the concentrations.
        """
        b = np.array([[101.0, 1.0, 1.0], [1.0, 101.0, 1.0]])
        wanted = special.digamma(b).mean(0) - special.digamma(103.0)
        solution = optimize.root(
            lambda f: special.digamma(np.exp(f)) - special.digamma(np.exp(f).sum()) - wanted,
            np.zeros(3),
            tol=1e-12,
        )
        for options, alpha in (
            ({"concentration": 103.0, "smoothing": 1 / 103}, np.exp(solution.x)),
            ({"divergence": "reverse", "concentration": 100.0}, b.mean(0)),
        ):
            method = Method("dpn", widths=(), ood_weight=0.0, **options)
            model, data = constant(
                method,
                torch.zeros(2, 1, dtype=torch.float64),
                torch.tensor([0, 1]),
                Task("classification", 3),
            )
            to_the_minimum(model, data)
            found = concentrations(model.network(data.x)[0].detach())
            assert_close(found[0], torch.from_numpy(alpha), rtol=1e-3, atol=0)

    def test_learns_the_concentrations_it_is_taught(self):
        method = Method("dpn", widths=(), ood_weight=0.0, smoothing=0.1)
        model, data = constant(
            method, torch.eye(2, dtype=torch.float64), torch.tensor([2, 0]), Task("classification", 3)
        )
        to_the_minimum(model, data)
        found = concentrations(model.network(data.x)[0].detach())
        assert_close(
            found,
            torch.tensor([[100.0, 100.0, 800.0], [800.0, 100.0, 100.0]], dtype=torch.float64),
            rtol=1e-3,
            atol=0,
        )

    def test_a_float32_network_has_divergences_in_float64(self):
        """Nearly equal sharp Dirichlets: float32 would be wrong in the first digit."""
        method = Method("dpn", widths=(), concentration=1e6, smoothing=0.1, ood_weight=0.0)
        small, x = build(method, 1, Task("classification", 3)), torch.zeros(3, 1)
        with torch.no_grad():
            small.network.layers[0].bias.copy_(
                small.likelihood.targets[1].log() + torch.tensor([1e-3, -1e-3, 0.0])
            )
        large = build(method, 1, Task("classification", 3)).double()
        large.load_state_dict(small.state_dict())
        y = torch.ones(3, dtype=torch.long)
        a = small.loss(make_dataset(x, y, small.task, x_ood=x), named_generator(0)).kl
        b = large.loss(make_dataset(x.double(), y, small.task, x_ood=x.double()), named_generator(0)).kl
        assert_close(a, b, rtol=1e-6, atol=0)

    def test_huge_logits_keep_their_probabilities(self):
        f = torch.tensor(
            [[30.0, 28.0, 1.0], [1e5, -1e5, 0.0], [-1e5, -1e5, -1e5 - 2]],
            dtype=torch.float64,
            requires_grad=True,
        )
        alpha = concentrations(f)
        probs = build(Method("dpn"), 2, Task("classification", 3)).likelihood.predictive(f.detach()).probs
        assert_close(probs, torch.softmax(f.detach(), -1))
        assert_close(alpha[0] / alpha[0].sum(), torch.softmax(f[0], -1))
        assert (alpha > math.exp(-52)).all() and (alpha < math.exp(21)).all()
        alpha.log().sum().backward()
        assert (f.grad.abs().amax(-1) > 0).all()  # beyond the bounds there is still a way back
        inside = numbers(5, 100) * 10
        assert torch.equal(bounded(inside, -50.0, 50.0), inside)


class TestNormalWishart:
    def law(self, seed: int, targets: int) -> NormalWishart:
        u = torch.rand((2, 2 * targets + 2), generator=named_generator(seed), dtype=torch.float64)
        mean, b, kappa, a = u.split([targets, targets, 1, 1], -1)
        return NormalWishart(4 * mean, 0.1 + 0.2 * kappa, 2.0 + 3 * a, 0.3 + b)

    def test_one_target_is_a_normal_gamma(self):
        p, q = self.law(1, 1), self.law(2, 1)
        normal = 0.5 * (
            q.kappa / p.kappa - 1 - (q.kappa / p.kappa).log() + q.kappa * (p.mean - q.mean) ** 2 * p.a / p.b
        )
        assert_close(
            p.kl(q), (kl_divergence(Gamma(p.a, p.b), Gamma(q.a, q.b)) + normal)[:, 0], rtol=1e-11, atol=0
        )
        assert_close(p.kl(p), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-13)
        y = numbers(3, 2, 1)
        square = (y - p.mean) ** 2 * p.a / p.b
        expected = 0.5 * (torch.digamma(p.a) - p.b.log() - math.log(2 * math.pi) - 1 / p.kappa - square)
        assert_close(p.expected_log_prob(y), expected[:, 0], rtol=1e-12, atol=0)

    @pytest.mark.parametrize("targets", [1, 3])
    def test_divergence_and_expectation_are_those_of_draws(self, targets):
        p, q, y = self.law(4, targets), self.law(5, targets), numbers(6, 2, targets)
        count, half = 100_000, 0.5 * (targets - 1)
        wisharts = [Wishart(2 * (law.a[0] + half).squeeze(), torch.diag(0.5 / law.b[0])) for law in (p, q)]
        df, scale = wisharts[0].df.item(), wisharts[0].covariance_matrix.numpy()
        precision = torch.from_numpy(
            stats.wishart.rvs(df, scale, count, np.random.default_rng(0)).reshape(count, targets, targets)
        )
        noise = torch.linalg.solve_triangular(
            torch.linalg.cholesky(precision).mT, numbers(7, count, targets, 1), upper=True
        )[..., 0]
        mu = p.mean[0] + noise / p.kappa[0].sqrt()
        logs = MultivariateNormal(mu, precision_matrix=precision).log_prob(y[0])
        assert abs(p.expected_log_prob(y)[0] - logs.mean()) < 4 * logs.std() / math.sqrt(count)
        normals = [
            MultivariateNormal(law.mean[0], precision_matrix=law.kappa[0] * precision).log_prob(mu)
            for law in (p, q)
        ]
        ratios = wisharts[0].log_prob(precision) - wisharts[1].log_prob(precision) + normals[0] - normals[1]
        assert abs(p.kl(q)[0] - ratios.mean()) < 4 * ratios.std() / math.sqrt(count)
        assert_close(p.precision()[0], wisharts[0].mean.diagonal())
        ratio, square = (q.kappa / p.kappa)[0], (p.mean - q.mean)[0].square() @ wisharts[0].mean.diagonal()
        exact = kl_divergence(*wisharts) + 0.5 * (targets * (ratio - 1 - ratio.log()) + q.kappa[0] * square)
        assert_close(p.kl(q)[:1], exact, rtol=1e-10, atol=0)

    def test_minimum_is_the_conjugate_posterior_of_so_many_observations(self):
        strength, kappa = 30.0, 0.5
        y = numbers(8, 9, 1)
        method = Method("dpn", widths=(), ood_weight=0.0, concentration=strength, kappa=kappa)
        model, data = constant(method, torch.zeros(9, 1, dtype=torch.float64), y, Task("regression", 1))
        shifted = replace(data, y=y + 3)  # the prior has seen other rows
        to_the_minimum(model, shifted)
        law = NormalWishart(
            *(part[0].detach() for part in model.likelihood.normal_wishart(model.network(data.x)[0]))
        )
        m0, m, a0 = y.mean(), shifted.y.mean(), 0.5 * kappa + 1.5
        assert_close(law.kappa, torch.tensor([kappa + strength], dtype=torch.float64), rtol=1e-5, atol=0)
        assert_close(law.a, torch.tensor([a0 + strength / 2], dtype=torch.float64), rtol=1e-5, atol=0)
        assert_close(law.mean[0], (kappa * m0 + strength * m) / (kappa + strength), rtol=1e-6, atol=0)
        away = kappa * strength / (kappa + strength) * (m - m0) ** 2
        b = a0 * y.var(correction=0) + 0.5 * (strength * y.var(correction=0) + away)
        assert_close(law.b[0], b, rtol=1e-5, atol=0)

    def test_prior_is_that_of_the_training_rows_and_of_outputs_0(self):
        model = build(Method("dpn"), 2, Task("regression", 3)).double()
        y, weight = numbers(9, 20, 3) * torch.tensor([1.0, 5.0, 0.1]), torch.ones(20)
        weight[:8] = 0
        model.on_fit_start(
            make_dataset(numbers(10, 20, 2), y, model.task, weight, x_ood=numbers(11, 4, 2)),
            named_generator(0),
        )
        prior = model.likelihood.prior()
        assert_close(prior.mean, y[8:].mean(0))
        assert_close(prior.precision(), 1 / y[8:].var(0, correction=0))
        assert_close(2 * prior.a + 2, torch.tensor([0.01 + 3 + 2], dtype=torch.float64))  # ν = κ + D + 2
        nll, kl = model.likelihood.nll_and_kl(torch.zeros(1, 4, 8, dtype=torch.float64), y[:1])
        assert kl.abs().max() < 1e-7  # but for the floor of the variance
        assert_close(nll[0], -prior.expected_log_prob(y[:1]), rtol=1e-6, atol=0)

    def test_loss_is_the_weighted_sum_of_both_kinds_of_rows(self):
        model = build(
            Method("dpn", widths=(5,), ood_weight=0.7, concentration=40.0), 3, Task("regression", 2)
        ).double()
        batch = make_dataset(numbers(1, 7, 3), numbers(2, 7, 2), model.task, x_ood=numbers(3, 5, 3))
        model.on_fit_start(batch, named_generator(0))
        inside, outside = (
            model.likelihood.normal_wishart(model.network(x)[0]) for x in (batch.x, batch.x_ood)
        )
        prior = model.likelihood.prior()
        nll = -inside.expected_log_prob(batch.y).mean()
        loss = model.loss(batch, named_generator(0))
        assert_close(
            loss.total,
            nll + (inside.kl(prior).mean() + 0.7 * outside.kl(prior).mean()) / 40,
            rtol=1e-12,
            atol=0,
        )
        f = numbers(4, 1, 6, 6).requires_grad_()
        assert torch.autograd.gradcheck(lambda f: model.likelihood.nll_and_kl(f, batch.y[:4]), (f,))

    def answer(self, targets: int):
        model = build(Method("dpn", widths=(6,)), 3, Task("regression", targets), seed=3).double()
        x, y = numbers(1, 12, 3), numbers(2, 12, targets)
        model.on_fit_start(make_dataset(x, y, model.task, x_ood=x), named_generator(0))
        return (
            model.likelihood.normal_wishart(model.network(x)[0].detach()),
            model.predict(x, named_generator(0), 1, 1),
            y,
        )

    def test_answer_is_the_student_t(self):
        law, p, y = self.answer(1)
        scale = (law.b * (1 + law.kappa) / (law.a * law.kappa)).sqrt()
        theirs = stats.t(2 * law.a.numpy(), law.mean.numpy(), scale.numpy())
        points = torch.cat([y, law.mean + 10 * scale])
        twice = replace(
            p,
            means=p.means.repeat(1, 2, 1),
            variances=p.variances.repeat(1, 2, 1),
            log_weights=p.log_weights.repeat(1, 2, 1),
        )
        expected = stats.t(
            np.tile(theirs.args[0], (2, 1)), np.tile(theirs.args[1], (2, 1)), np.tile(theirs.args[2], (2, 1))
        )
        assert np.abs(twice.log_prob(points).numpy() - expected.logpdf(points.numpy())[:, 0]).max() < 1e-4
        assert_close(p.variance, torch.from_numpy(theirs.var()), rtol=1e-12, atol=0)
        assert_close(p.component + p.posterior, p.variance, rtol=1e-12, atol=0)
        assert_close(p.component, law.b / (law.a - 1), rtol=1e-12, atol=0)
        assert_close(p.posterior, p.component / law.kappa, rtol=1e-12, atol=0)
        for q in (0.001, 0.05, 0.5, 0.975):
            assert np.abs((p.quantile(q).numpy() - theirs.ppf(q)) / scale.numpy()).max() < 1e-3
            assert np.abs(p.cdf(torch.from_numpy(theirs.ppf(q))).numpy() / q - 1).max() < 1e-4

    def test_several_targets_are_one_multivariate_t(self):
        law, p, y = self.answer(2)
        scale = law.b * (1 + law.kappa) / (law.a * law.kappa)
        for row in range(len(y)):
            theirs = stats.multivariate_t(
                law.mean[row].numpy(), np.diag(scale[row].numpy()), df=2 * law.a[row].item()
            )
            assert abs(p.log_prob(y)[row].item() - theirs.logpdf(y[row].numpy())) < 1e-4

    def test_nodes_hold_for_all_degrees_of_freedom(self):
        a = torch.cat([torch.linspace(1.025, 3, 80), torch.logspace(0.5, 7, 80)]).double()
        log_weights, ratios = student_nodes(a)
        weights = log_weights.exp()
        assert (ratios > 0).all()
        assert_close((weights * ratios).sum(0), torch.ones_like(a), rtol=1e-12, atol=0)
        variances = ratios * a / (a - 1)  # of a scale of 1
        for y in (0.0, 0.5, 1.0, 2.0, 5.0, 10.0):
            logs = torch.logsumexp(
                log_weights - 0.5 * (2 * math.pi * variances).log() - 0.5 * y**2 / variances, 0
            )
            assert np.abs(logs.numpy() - stats.t.logpdf(y, 2 * a.numpy())).max() < 1e-4

    def test_shares_are_those_of_draws(self):
        law, p, _ = self.answer(1)
        count = 200_000
        rate = np.random.default_rng(0).standard_gamma(law.a.numpy()[:, 0], (count, 12)) / law.b.numpy()[:, 0]
        tail = law.a[:, 0] > 2.5  # draws of 1/Λ have a variance
        noise = torch.from_numpy(1 / rate)
        mu = numbers(3, count, 12) * (noise / law.kappa[:, 0]).sqrt()
        for share, each in ((p.component, noise), (p.posterior, mu.square())):
            error = 4.5 * each.std(0) / math.sqrt(count)
            assert ((share[:, 0] - each.mean(0)).abs() < error)[tail].all()
        assert tail.sum() >= 3


def test_rows_from_outside_are_needed():
    model = build(Method("dpn"), 2, Task("classification", 3))
    data = make_dataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), model.task)
    with pytest.raises(ValueError, match="dpn needs x_ood"):
        model.on_fit_start(data, named_generator(0))
    with pytest.raises(ValueError, match="dpn needs x_ood"):
        model.loss(data, named_generator(0))


@pytest.mark.parametrize(
    ("options", "task", "words"),
    [
        ({"divergence": "both"}, Task("classification", 3), "divergence is 'both'"),
        (
            {"divergence": "forward"},
            Task("regression", 1),
            "divergence is 'forward': for regression use 'reverse'",
        ),
        ({"concentration": 0.0}, Task("classification", 3), "concentration is 0.0"),
        ({"kappa": -1.0}, Task("regression", 3), "kappa is -1.0"),
        ({"ood_weight": -1.0}, Task("classification", 3), "ood_weight is -1.0"),
        ({"cross_entropy": -1.0}, Task("classification", 3), "cross_entropy is -1.0"),
        ({"smoothing": 0.34}, Task("classification", 3), "smoothing is 0.34"),
        ({"smoothing": 0.0}, Task("classification", 3), "smoothing is 0.0"),
    ],
)
def test_bad_options_are_refused(options, task, words):
    with pytest.raises(ValueError, match=words):
        build(Method("dpn", **options), 2, task)
