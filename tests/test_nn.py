"""The fast layers against the oracle that builds every weight matrix."""

import math

import pytest
import torch
from oracles import draw_map, law, matrix_normals, pre_activations, prior, wide
from torch.distributions import kl_divergence
from torch.testing import assert_close

from compound.distributions import MatrixNormal
from compound.nn import Affine, CompoundConfig, CompoundLinear, MatrixGaussianLinear
from compound.nn.matrix_gaussian import correlated_noise
from compound.ops.gaussian_noise import standard_normal
from compound.ops.moments import Options, moments
from compound.ops.softmax import expected_softmax
from compound.random import named_generator

FORMS = {
    "ml": CompoundConfig((4,)),
    "ml-paper": CompoundConfig((4,), parametrization="paper"),
    "vb": CompoundConfig((4,), "tanh", bayes=True),
    "vb-paper": CompoundConfig((4, 3), "tanh", bayes=True, parametrization="paper"),
    "vb-vmg": CompoundConfig((4,), "tanh", bayes=True, basis="vmg"),
}


def layer_of(name: str, inputs: int = 3, outputs: int = 2) -> CompoundLinear:
    layer = CompoundLinear(inputs, outputs, FORMS[name], named_generator(0, name)).double()
    with torch.no_grad():  # away from the start, where heads hardly depend on x
        for k, parameter in enumerate(layer.parameters()):
            parameter += 0.3 * torch.randn(
                parameter.shape, generator=named_generator(1, name, k), dtype=torch.float64
            )
    return layer


def inputs_of(rows: int, features: int = 3) -> torch.Tensor:
    return torch.randn(rows, features, generator=named_generator(2, "x"), dtype=torch.float64)


@pytest.mark.parametrize("name", ["ml", "ml-paper"])
def test_mean_std_and_kl_are_those_of_the_written_out_law(name):
    layer, x = layer_of(name), inputs_of(5)
    out = layer(x, named_generator(0))
    for b, q in enumerate(law(layer, x, layer.hyper(wide(x), named_generator(0)))):
        h = wide(x)[b]
        assert_close(out.mean[b], h @ q.mean)
        assert_close(out.std[b].square(), h.square() @ q.variance)
        assert_close(out.kl[b], kl_divergence(q, prior(layer)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kl", [True, False])
@pytest.mark.parametrize("bound", [10.0, 0.05])  # at 0.05 most log-variances are clamped
def test_gradients_of_the_fused_layer(kl, bound):
    g = named_generator(3)
    x, heads, basis = (
        torch.randn(*s, generator=g, dtype=torch.float64).requires_grad_()
        for s in ((2, 5, 4), (2, 5, 10), (2, 4, 2))
    )
    for fan_in in (True, False):
        torch.autograd.gradcheck(
            lambda *a, f=fan_in: [t for t in moments(*a, Options(bound, f, kl)) if t.numel()],
            (x, heads, basis),
        )


@pytest.mark.parametrize(
    ("scale", "logs"), [(1.0, 0.2), (1.0, -0.2), (9.0, 0.01), (1.0, 0.01)]
)  # too high, too low, only s large
def test_log_variances_are_held_within_their_bound(scale, logs):
    x, heads, basis = (
        standard_normal(named_generator(k), shape, torch.empty(0).double())
        for k, shape in enumerate(((1, 5, 4), (1, 5, 10), (1, 4, 2)))
    )
    s, log = scale * heads[..., :4], logs * heads[..., 4:].abs()
    found = moments(x, torch.cat([s, log], -1), basis, Options(0.1, True, True))
    expected = moments(x, torch.cat([s, log.clamp(-0.1, 0.1)], -1), basis, Options(20.0, True, True))
    assert bool((log.abs() > 0.1).any()) == (abs(logs) == 0.2)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_gradients_of_the_noisy_map_and_of_its_kl():
    g = named_generator(4)
    make = lambda *s: torch.randn(*s, generator=g, dtype=torch.float64)  # noqa: E731
    layer = MatrixGaussianLinear(make(2, 3, 6), (1, 2, 3), -1.0, (0.5, 1.0, 2.0), make(6)).double()
    x = make(2, 4, 3).requires_grad_()
    parameters = tuple(layer.parameters())

    def call(x, *p):
        own = dict(zip(dict(layer.named_parameters()), p, strict=True))
        return torch.func.functional_call(layer, own, (x, named_generator(5)))

    torch.autograd.gradcheck(call, (x, *parameters))

    class Divergence(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.map = layer

        def forward(self):
            return self.map.kl()

    names = list(dict(Divergence().named_parameters()))
    torch.autograd.gradcheck(
        lambda *p: torch.func.functional_call(Divergence(), dict(zip(names, p, strict=True)), ()), parameters
    )


@pytest.mark.parametrize("kl", [True, False])
@pytest.mark.parametrize("name", ["ml", "ml-paper", "vb", "vb-paper"])
def test_the_fused_layer_is_the_hypernetwork_followed_by_the_moments(name, kl):
    """In value and in gradient; the gradients of the pieces are checked by differences above."""
    layer = layer_of(name)

    def run(fused: bool) -> list[torch.Tensor]:
        x = inputs_of(5).requires_grad_()
        heads = layer.hyper(wide(x), named_generator(3))
        apart = moments(wide(x), heads, layer.basis, Options(layer.form.bound, layer.form.scaled, kl))
        out = layer(x, named_generator(3), kl=kl) if fused else apart
        loss = (out.mean * out.std).sum() + (out.kl.square().sum() if kl else 0.0)
        return [*out, *torch.autograd.grad(loss, [x, *layer.parameters()])]

    for a, b in zip(run(True), run(False), strict=True):
        assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_kl_of_blocks_is_the_sum_of_their_matrix_normals():
    g = named_generator(6)
    make = lambda *s: torch.randn(*s, generator=g, dtype=torch.float64)  # noqa: E731
    bias, variances = make(6), (0.5, 1.0, 2.0)
    layer = MatrixGaussianLinear(make(4, 6), (1, 2, 3), -1.0, variances, bias).double()
    with torch.no_grad():
        layer.log_row += make(3, 4)
        layer.log_col += make(6)
    total = torch.zeros((), dtype=torch.float64)
    for q, centre, variance in zip(matrix_normals(layer), bias.split((1, 2, 3)), variances, strict=True):
        mean = torch.cat([torch.zeros(3, len(centre), dtype=torch.float64), centre.unsqueeze(0)])
        total += kl_divergence(
            q,
            MatrixNormal(
                mean, math.sqrt(variance) * torch.ones(4).double(), torch.ones(len(centre)).double()
            ),
        )
    assert_close(layer.kl(), total, rtol=1e-8, atol=1e-8)


def test_kl_is_zero_at_the_prior():
    layer = MatrixGaussianLinear(
        torch.tensor([[0.0]] * 3 + [[1.0]]).expand(4, 5).clone(), log_variance=0.0, prior_bias=torch.ones(5)
    )
    assert_close(layer.kl(), torch.zeros(()))


def moments_agree(fast: torch.Tensor, slow: torch.Tensor) -> None:
    """Means and covariances of two samples of vectors within five standard errors."""
    n = len(fast)
    error = ((fast.var(0) + slow.var(0)) / n).sqrt()
    assert ((fast.mean(0) - slow.mean(0)).abs() < 5 * error).all()
    a, b = fast - fast.mean(0), slow - slow.mean(0)
    products = a.unsqueeze(-1) * a.unsqueeze(-2), b.unsqueeze(-1) * b.unsqueeze(-2)
    error = ((products[0].var(0) + products[1].var(0)) / n).sqrt()
    assert ((products[0].mean(0) - products[1].mean(0)).abs() < 5 * error).all()


def kolmogorov_smirnov(fast: torch.Tensor, slow: torch.Tensor) -> float:
    from scipy.stats import ks_2samp

    return min(ks_2samp(fast[:, j].numpy(), slow[:, j].numpy()).pvalue for j in range(fast.shape[1]))


@pytest.mark.parametrize("name", ["ml", "vb", "vb-paper"])
def test_pre_activations_have_the_law_of_the_oracle(name):
    layer, n = layer_of(name), 20_000
    x = inputs_of(1).expand(n, -1)
    with torch.no_grad():
        out = layer(x, named_generator(7, "fast"), kl=False)
        fast = out.draw(standard_normal(named_generator(7, "draw"), out.mean.shape, out.mean))
        slow = pre_activations(layer, x, named_generator(7, "slow"))
    moments_agree(fast, slow)
    assert kolmogorov_smirnov(fast, slow) > 1e-4


@pytest.mark.parametrize("name", ["vb", "vb-vmg"])
def test_one_psi_for_all_rows_has_the_law_of_psi_per_row(name):
    """Prediction draws whole matrices for ψ and V; training draws pre-activations: the same law for a row."""
    layer, n = layer_of(name), 4_000
    x = inputs_of(1)
    with torch.no_grad():
        out = layer(x.expand(n, -1), named_generator(8, "row"), kl=False)
        each = out.draw(standard_normal(named_generator(8, "draw"), out.mean.shape, out.mean))
        generator = named_generator(8, "all")
        whole = [layer.at(x, layer.draw(generator)) for _ in range(n)]
        one = torch.cat([o.draw(standard_normal(generator, o.mean.shape, o.mean)) for o in whole])
    moments_agree(each, one)
    assert kolmogorov_smirnov(each, one) > 1e-4


def test_gradients_of_the_mean_loss_agree_with_the_oracle():
    layer, n = layer_of("vb"), 1_500
    x = inputs_of(1).expand(n, -1)

    def gradient(draws: torch.Tensor) -> torch.Tensor:
        layer.zero_grad()
        draws.tanh().square().mean().backward()
        return torch.cat([p.grad.flatten() for p in layer.parameters() if p.grad is not None])

    def fast(seed: int) -> torch.Tensor:
        out = layer(x, named_generator(seed, "fast"), kl=False)
        return gradient(out.draw(standard_normal(named_generator(seed, "draw"), out.mean.shape, out.mean)))

    def slow(seed: int) -> torch.Tensor:
        return gradient(pre_activations(layer, x, named_generator(seed, "slow")))

    a, b = torch.stack([fast(k) for k in range(12)]), torch.stack([slow(k) for k in range(12)])
    error = ((a.var(0) + b.var(0)) / 12).sqrt() + 1e-9
    z = (a.mean(0) - b.mean(0)) / error  # Student with about 20 degrees of freedom
    assert z.abs().max() < 6 and z.square().mean().sqrt() < 1.5


def test_shared_rows_have_the_joint_law_of_one_common_matrix():
    g = named_generator(9)
    make = lambda *s: torch.randn(*s, generator=g, dtype=torch.float64)  # noqa: E731
    layer = MatrixGaussianLinear(make(4, 2), log_variance=-0.5).double()
    shared, n = 3, 30_000
    x = make(shared, 1, 3).expand(shared, n, 3).reshape(-1, 3)  # part s of every row has input s
    with torch.no_grad():
        fast = (
            layer(wide(x), named_generator(10, "fast"), shared)
            .unflatten(0, (shared, n))
            .transpose(0, 1)
            .flatten(1)
        )
        (q,) = matrix_normals(layer)
        w = q.rsample((n,), generator=named_generator(10, "slow"))
        slow = torch.stack([wide(x[s * n : s * n + 1]) @ w for s in range(shared)], 1).squeeze(2).flatten(1)
    moments_agree(fast, slow)


def test_equal_inputs_that_share_a_matrix_give_equal_outputs():
    noise = standard_normal(named_generator(11), (6, 4), torch.empty(0, dtype=torch.float64))
    x = torch.ones(2, 3, dtype=torch.float64).repeat(3, 1)
    out = correlated_noise(x, torch.ones(3, dtype=torch.float64), noise, 3).unflatten(0, (3, 2))
    assert_close(out[0], out[2], atol=1e-3, rtol=0)


def test_without_noise_the_layer_is_linear():
    layer, x = layer_of("ml"), inputs_of(6)
    with torch.no_grad():
        *_, heads = layer.hyper.maps
        heads.weight.zero_()
        heads.weight[-1, : layer.inputs + 1] = 1
        heads.weight[-1, layer.inputs + 1 :] = -1e9  # held at the lower clamp
        out = layer(x, named_generator(0))
    assert_close(out.mean, wide(x) @ layer.basis, rtol=0, atol=1e-14)
    assert (out.std < 1e-3 * out.mean.abs().mean()).all()


def test_a_layer_sits_on_any_feature_extractor():
    extractor = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh())
    layer = CompoundLinear(5, 2, CompoundConfig(), named_generator(0))
    out = layer(extractor(torch.randn(7, 3, generator=named_generator(1))), named_generator(2))
    (out.mean.sum() + out.std.sum() + out.kl.sum()).backward()
    assert extractor[0].weight.grad is not None and extractor[0].weight.grad.abs().min() > 0


def test_members_are_independent_layers():
    streams = [named_generator(k, "member") for k in range(3)]
    together = CompoundLinear(3, 2, FORMS["vb"], streams, (3,))
    x = inputs_of(4).float()
    noise = [named_generator(k, "noise") for k in range(3)]
    out = together(x.expand(3, -1, -1), noise)
    for k in range(3):
        alone = CompoundLinear(3, 2, FORMS["vb"], named_generator(k, "member"))
        one = alone(x, named_generator(k, "noise"))
        for a, b in zip(out, one, strict=True):
            assert_close(a[k], b)
        assert_close(together.kl()[k], alone.kl())


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 10.0, 30.0])
def test_expected_softmax_against_a_fine_grid_and_monte_carlo(scale):
    g = named_generator(12)
    mean = 2 * torch.randn(2, 5, generator=g, dtype=torch.float64)
    std = scale * torch.rand(2, 5, generator=g, dtype=torch.float64) + 1e-2
    out = expected_softmax(mean, std)
    assert_close(out.sum(-1), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-8)
    n = 200_000
    draws = torch.softmax(mean + std * torch.randn(n, 2, 5, generator=g, dtype=torch.float64), -1)
    assert ((out - draws.mean(0)).abs() < 5 * draws.std(0) / math.sqrt(n) + 1e-9).all()


def test_expected_softmax_of_two_classes_is_the_logistic_normal_integral():
    mean, std = (
        torch.tensor([[0.7, -0.4]], dtype=torch.float64),
        torch.tensor([[1.3, 0.8]], dtype=torch.float64),
    )
    gap, spread = 1.1, math.sqrt(1.3**2 + 0.8**2)
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    exact = torch.trapezoid(
        torch.sigmoid(gap + spread * z) * torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi), z
    )
    assert_close(expected_softmax(mean, std)[0, 0], exact, rtol=0, atol=1e-9)


def test_affine_maps_draw_themselves():
    layer = Affine(torch.randn(4, 2, generator=named_generator(3)))
    x = torch.randn(4, 3, generator=named_generator(0))
    assert_close(layer(wide(x), named_generator(1)), draw_map(layer, x, named_generator(2)))
    assert_close(wide(x) @ layer.draw(named_generator(1)), layer(wide(x), named_generator(1)))
