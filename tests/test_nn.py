"""Layers against the oracle that builds every weight matrix."""

import pytest
import torch
from kernel_checks import assert_all_close, randn
from oracles import draw_map, law, matrix_normals, pre_activations, prior
from torch.distributions import kl_divergence
from torch.testing import assert_close

from compound.nn import Affine, BatchedCompoundLinear, CompoundConfig, MatrixGaussianLinear
from compound.ops.affine import append_ones
from compound.ops.gaussian_noise import standard_normal
from compound.random import named_generator

CONFIGS = {
    "ml": CompoundConfig((4,)),
    "ml-paper": CompoundConfig((4,), parametrization="paper"),
    "vb": CompoundConfig((4,), "tanh", bayes=True),
    "vb-paper": CompoundConfig((4, 3), "tanh", bayes=True, parametrization="paper"),
    "vb-vmg": CompoundConfig((4,), "tanh", bayes=True, basis="vmg"),
}


def layer_of(name: str, inputs: int = 3, outputs: int = 2) -> BatchedCompoundLinear:
    layer = BatchedCompoundLinear(inputs, outputs, CONFIGS[name], named_generator(0, name)).double()
    with torch.no_grad():  # far from the initial values, where heads hardly depend on x
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
    for b, q in enumerate(law(layer, x, layer.hyper(append_ones(x), named_generator(0)))):
        h = append_ones(x)[b]
        assert_close(out.mean[b], h @ q.mean)
        assert_close(out.std[b].square(), h.square() @ q.variance)
        assert_close(out.kl[b], kl_divergence(q, prior(layer)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CONFIGS)
def test_weight_distribution_is_the_law_of_every_row(name):
    layer, x = layer_of(name), inputs_of(5)
    q = layer.weight_distribution(x, named_generator(3))
    laws = law(layer, x, layer.hyper(append_ones(x), named_generator(3)))
    assert q.batch_shape == (5,) and q.event_shape == (4, 2)
    for b, row in enumerate(laws):
        assert_close(q.mean[b], row.mean)
        assert_close(q.variance[b], row.variance)
    out = layer(x, named_generator(3))
    assert_close(out.kl, kl_divergence(q, layer.weight_prior()), rtol=1e-10, atol=1e-10)


def test_posterior_and_prior_of_blocks_give_the_kl():
    bias, variances = randn(6), (0.5, 1.0, 2.0)
    layer = MatrixGaussianLinear(randn(2, 4, 6), (1, 2, 3), -1.0, variances, bias).double()
    with torch.no_grad():
        layer.log_row += randn(2, 3, 4)
        layer.log_col += randn(2, 6)
    pairs = list(zip(layer.posterior(), layer.prior(), strict=True))
    assert_close(layer.kl(), sum(kl_divergence(q, p) for q, p in pairs), rtol=1e-8, atol=1e-8)
    for (q, p), n, variance in zip(pairs, (1, 2, 3), variances, strict=True):
        assert q.batch_shape == (2,) and q.event_shape == p.event_shape == (4, n)
        assert_close(p.variance, torch.full((4, n), variance).double(), rtol=1e-6, atol=0)
    assert_close(torch.cat([p.mean[-1] for _, p in pairs]), bias.float().double())


@pytest.mark.parametrize("kl", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_compiled_layer_is_that_of_float64(name, kl, monkeypatch):
    for module in ("matrix_gaussian", "batched_compound"):
        monkeypatch.setattr(
            f"compound.nn.{module}.row_normal",
            lambda _, shape, like: randn(*shape, seed=6).to(like.dtype),
        )
    layer = BatchedCompoundLinear(9, 4, CONFIGS[name], named_generator(0), (2,))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * randn(*parameter.shape).float()
    results = []
    for dtype in (torch.float32, torch.float64):
        layer.to(dtype)
        x = randn(2, 6, 9).float().to(dtype).requires_grad_()
        out = layer(x, named_generator(1), kl=kl)
        loss = (out.mean * out.std).sum() + (0.1 * out.kl.sum() if kl else 0.0)
        results.append([*out, *torch.autograd.grad(loss, [x, *layer.parameters()])])
    assert_all_close(*results, 1e-4, 1e-5)


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
    """Prediction draws matrices for ψ and V; training draws pre-activations: the same law for a row."""
    layer, n = layer_of(name), 4_000
    x = inputs_of(1)
    with torch.no_grad():
        out = layer(x.expand(n, -1), named_generator(8, "row"), kl=False)
        each = out.draw(standard_normal(named_generator(8, "draw"), out.mean.shape, out.mean))
        generator = named_generator(8, "all")
        outputs = [layer.forward_given(x, layer.draw(generator)) for _ in range(n)]
        one = torch.cat([o.draw(standard_normal(generator, o.mean.shape, o.mean)) for o in outputs])
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
            layer(append_ones(x), named_generator(10, "fast"), shared)
            .unflatten(0, (shared, n))
            .transpose(0, 1)
            .flatten(1)
        )
        (q,) = matrix_normals(layer)
        w = q.rsample((n,), generator=named_generator(10, "slow"))
        slow = (
            torch.stack([append_ones(x[s * n : s * n + 1]) @ w for s in range(shared)], 1)
            .squeeze(2)
            .flatten(1)
        )
    moments_agree(fast, slow)


def test_without_noise_the_layer_is_linear():
    layer, x = layer_of("ml"), inputs_of(6)
    with torch.no_grad():
        *_, heads = layer.hyper.maps
        heads.weight.zero_()
        heads.weight[-1, : layer.inputs + 1] = 1
        heads.weight[-1, layer.inputs + 1 :] = -1e9  # held at the lower clamp
        out = layer(x, named_generator(0))
    assert_close(out.mean, append_ones(x) @ layer.basis, rtol=0, atol=1e-14)
    assert (out.std < 1e-3 * out.mean.abs().mean()).all()


def test_a_layer_sits_on_any_feature_extractor():
    extractor = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh())
    layer = BatchedCompoundLinear(5, 2, CompoundConfig(), named_generator(0))
    out = layer(extractor(torch.randn(7, 3, generator=named_generator(1))), named_generator(2))
    (out.mean.sum() + out.std.sum() + out.kl.sum()).backward()
    assert extractor[0].weight.grad is not None and extractor[0].weight.grad.abs().min() > 0


def test_members_are_independent_layers():
    streams = [named_generator(k, "member") for k in range(3)]
    together = BatchedCompoundLinear(3, 2, CONFIGS["vb"], streams, (3,))
    x = inputs_of(4).float()
    noise = [named_generator(k, "noise") for k in range(3)]
    out = together(x.expand(3, -1, -1), noise)
    for k in range(3):
        single = BatchedCompoundLinear(3, 2, CONFIGS["vb"], named_generator(k, "member"))
        one = single(x, named_generator(k, "noise"))
        for a, b in zip(out, one, strict=True):
            assert_close(a[k], b)
        assert_close(together.kl()[k], single.kl())


def test_affine_maps_draw_themselves():
    layer = Affine(torch.randn(4, 2, generator=named_generator(3)))
    x = torch.randn(4, 3, generator=named_generator(0))
    assert_close(layer(append_ones(x), named_generator(1)), draw_map(layer, x, named_generator(2)))
    assert_close(append_ones(x) @ layer.draw(named_generator(1)), layer(append_ones(x), named_generator(1)))
