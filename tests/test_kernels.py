"""Compiled loops in single precision against the plain formulas in double precision, gradients included."""

import itertools
import math

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor
from torch.testing import assert_close

from compound.nn import CompoundConfig, CompoundLinear, MatrixGaussianLinear
from compound.nn.flows import MaskedNVP
from compound.nn.mean_field import _Sample, integrated_variance
from compound.nn.multiplicative import MultiplicativeLinear, Noise
from compound.nn.networks import LIMIT, clamp_if_needed, clamp_inputs
from compound.ops import jit as basic
from compound.ops.auxiliary_posterior import auxiliary_posterior
from compound.ops.gaussian_noise import gaussians, standard_normal
from compound.ops.hidden_samples import sample_hidden
from compound.ops.jit import can_use_kernel, largest, launch
from compound.ops.moments import Options, moments
from compound.random import named_generator


@pytest.fixture(autouse=True)
def fresh_memory_is_not_zero():
    """torch fills memory that nobody has written to with NaN: a loop that reads it shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=named_generator(seed, *shape), dtype=torch.float64)


def agree(call, inputs: list[Tensor], rtol: float = 2e-5) -> None:
    """Values and gradients of the compiled form, float32, and of the plain one, float64; inputs round to the same numbers."""
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [value.float().to(dtype).requires_grad_() for value in inputs]
        assert can_use_kernel(*leaves) == (dtype is torch.float32)
        outputs = [out for out in call(*leaves) if out.numel()]
        loss = sum((out.double() * numbers(*out.shape, seed=9)).sum() for out in outputs)
        found.append([*outputs, *torch.autograd.grad(loss, leaves, allow_unused=True)])
    for fast, slow in zip(*found, strict=True):
        assert (fast is None) == (slow is None)
        if fast is not None:
            assert_close(fast.double(), slow, rtol=rtol, atol=rtol * float(slow.detach().abs().max()))


def test_what_runs_without_gaps():
    with pytest.raises(ValueError, match=r"x of loop largest has shape \(3, 2\) with gaps"):
        launch(largest, (torch.zeros(2, 3).T,), 6)


def test_the_largest_number():
    x = torch.tensor([0.5, -3.0, 2.0, -0.0])
    assert (
        launch(largest, (x,), 4) == 3.0
        and launch(largest, (x[3:],), 1) == 0.0
        and launch(largest, (x[:1],), 1) == 0.5
    )
    assert math.isnan(launch(largest, (torch.tensor([torch.inf, torch.nan]),), 2))
    for value, changed in ((-1e4, False), (-1.01e4, True), (1e12, True)):
        rows = torch.tensor([[1.0, value]])
        for given in (rows, rows.double()):
            assert (
                torch.equal(clamp_if_needed(given), clamp_inputs(given))
                and (clamp_if_needed(given) is given) != changed
            )


def each(function):
    """A function of numbers on all of an array."""

    @njit
    def loop(x):
        out = np.empty_like(x)
        for i in range(len(x)):
            out[i] = function(x[i])
        return out

    return loop


@pytest.mark.parametrize(
    ("name", "x", "ulps"),
    [
        ("exp", np.linspace(-87, 88, 20_001), 2),
        ("log", np.geomspace(1e-37, 1e37, 20_001), 2),
        ("log", np.linspace(0.5, 2.0, 20_001), 4),
        ("log1p", np.geomspace(1e-30, 1.0, 20_001), 4),
    ],
)
def test_functions_are_right_to_the_last_bits(name, x, ulps):
    x = x.astype(np.float32)
    exact = getattr(np, name)(x.astype(np.float64))
    error = np.abs(each(getattr(basic, name))(x) - exact) / np.maximum(
        np.spacing(np.abs(exact).astype(np.float32)), np.float32(1e-40)
    )
    assert error.max() <= ulps


def test_the_exponential_stays_within_float32():
    low, high, none = each(basic.exp)(np.array([-1e6, 1e6, np.nan], dtype=np.float32))
    assert 0 <= low < 1e-37 and 1e38 < high < np.inf and np.isnan(none)


def philox(counter: list[int], key: list[int]) -> list[int]:
    for _ in range(7):
        high, low = (divmod(counter[k] * m, 2**32) for k, m in ((2, 0xCD9E8D57), (0, 0xD2511F53)))
        counter = [high[0] ^ counter[1] ^ key[0], high[1], low[0] ^ counter[3] ^ key[1], low[1]]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


def test_noise_is_philox_through_box_and_muller():
    assert philox([0] * 4, [0] * 2) == [
        0x5F6FB709,
        0x0D893F64,
        0x4F121F81,
        0x4F730A48,
    ]  # the authors' own vectors
    assert philox([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2) == [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]
    key, out = 0x1234567_89ABCDEF, torch.empty(4000)
    launch(gaussians, (out,), 1000, key)
    expected = torch.empty(4, 1000, dtype=torch.float64)
    for i in range(1000):
        words = philox([i, 0, 0, 0], [key % 2**32, key >> 32])
        for k in (0, 2):
            radius = math.sqrt(-2 * math.log(((words[k] >> 8) + 1) / 2**24))
            angle = math.pi * (((words[k + 1] ^ 2**31) - 2**31) >> 8) / 2**23  # as a signed number
            expected[k, i], expected[k + 1, i] = radius * math.sin(angle), radius * math.cos(angle)
    assert_close(out.double(), expected.flatten(), rtol=1e-5, atol=2e-6)


def test_noise_is_normal_and_independent():
    from scipy.stats import kstest, kurtosis

    n = 2_000_000
    draws = standard_normal(named_generator(3), (n,), torch.empty(0)).double().numpy()
    assert kstest(draws, "norm").pvalue > 1e-4
    assert abs(draws.mean()) < 5 / math.sqrt(n) and abs(kurtosis(draws)) < 5 * math.sqrt(24 / n)
    for lag in (1, 2, n // 4, n // 2):
        for power in (1, 2):
            a, b = draws[lag:] ** power, draws[:-lag] ** power
            assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(n - lag)


def test_a_stream_goes_on_and_starts_again():
    stream, like = named_generator(1), torch.empty(0)
    first, second = (standard_normal(stream, (5, 3), like) for _ in range(2))
    assert torch.equal(first, standard_normal(named_generator(1), (5, 3), like)) and not torch.equal(
        first, second
    )
    assert torch.equal(
        standard_normal([named_generator(1), named_generator(2)], (2, 7), like)[1],
        standard_normal(named_generator(2), (7,), like),
    )
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize(
    ("kl", "fan_in", "bound"), list(itertools.product((True, False), (True, False), (10.0, 0.7)))
)
def test_moments(kl, fan_in, bound):
    """At 0.7 many log-variances are clamped."""
    inputs = [numbers(2, 5, 4), numbers(2, 5, 11), numbers(2, 4, 3)]
    agree(lambda *a: moments(*a, Options(bound, fan_in, kl)), inputs)


def test_noisy_maps_and_their_kl(monkeypatch):
    fixed = numbers(2, 5, 6, seed=3)
    monkeypatch.setattr(
        "compound.nn.matrix_gaussian.standard_normal", lambda _, shape, like: fixed.to(like.dtype)
    )
    layer = MatrixGaussianLinear(torch.zeros(2, 4, 6), (1, 2, 3), -1.0, (0.5, 1.0, 2.0), numbers(6).float())
    names = ["mean", "log_row", "log_col"]

    def call(wide, *parameters):
        layer.to(wide.dtype)
        given = dict(zip(names, parameters, strict=True))
        return [torch.func.functional_call(layer, given, (wide, named_generator(0)))]

    def divergence(*parameters):
        layer.to(parameters[0].dtype)
        for name, value in zip(names, parameters, strict=True):
            delattr(layer, name) if name in layer._parameters else None
            setattr(layer, name, value)
        return [layer.kl()]

    parameters = [numbers(2, 4, 6), 0.5 * numbers(2, 3, 4), 0.5 * numbers(2, 6)]
    agree(call, [numbers(2, 5, 4), *parameters])
    agree(divergence, parameters)


def test_spread():
    mean, log_std = numbers(7, 5), numbers(7, 5, seed=2) - 3
    for fast, slow in zip(
        integrated_variance(mean.float(), log_std.float()),
        integrated_variance(mean.float().double(), log_std.float().double()),
        strict=True,
    ):
        assert_close(torch.as_tensor(fast).double(), torch.as_tensor(slow).double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("outputs", [3, 20])
def test_factorised_layers(outputs):
    noise = numbers(2, 6, outputs, seed=3)

    def call(h, mean, log_std):
        return _Sample.apply(h, mean, log_std, noise.float().to(h.dtype), 2.5)

    agree(call, [numbers(6, 4), numbers(5, outputs), numbers(5, outputs, seed=2) - 2])


@pytest.mark.parametrize("given", [1, 3])
def test_units(given):
    noise = numbers(2, 3, 5, 4, seed=4)
    mean, std = numbers(2, given, 5, 4), numbers(2, given, 5, 4, seed=5).exp()
    mean[0, 0, 0] = 3 * LIMIT  # saturated: no gradient
    agree(lambda m, s: [sample_hidden(m, s, noise.to(m.dtype))], [mean, std])


FORMS = {
    "ml": CompoundConfig((7,)),
    "ml, paper": CompoundConfig((7, 5), parametrization="paper"),
    "vb": CompoundConfig((7,), "tanh", bayes=True),
    "vb, two maps": CompoundConfig((7, 5), "tanh", bayes=True),
}


@pytest.mark.parametrize("kl", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_the_whole_layer(name, kl, monkeypatch):
    for module in ("ops.fused", "nn.matrix_gaussian"):
        monkeypatch.setattr(
            f"compound.{module}.standard_normal",
            lambda _, shape, like: numbers(*shape, seed=6).to(like.dtype),
        )
    layer = CompoundLinear(9, 4, FORMS[name], named_generator(0), (2,))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * numbers(*parameter.shape).float()
    x = numbers(2, 6, 9).float()
    found = []
    for dtype in (torch.float32, torch.float64):
        layer.to(dtype)
        own = x.to(dtype).requires_grad_()
        out = layer(own, named_generator(1), kl=kl)
        loss = (out.mean * out.std).sum() + (0.1 * out.kl.sum() if kl else 0.0)
        found.append([*out, *torch.autograd.grad(loss, [own, *layer.parameters()])])
    for fast, slow in zip(*found, strict=True):
        if slow.numel():
            assert_close(fast.double(), slow, rtol=1e-4, atol=1e-5 * float(slow.detach().abs().max()))


@pytest.mark.parametrize(("inputs", "draws", "steps"), [(6, 3, 2), (5, 1, 1)])
def test_masked_flows(inputs, draws, steps):
    flow = MaskedNVP(inputs, steps, 4, named_generator(1))
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += 0.5 * numbers(*parameter.shape).float()
        flow.bias[0, -inputs:] = torch.linspace(-30, 30, inputs)  # gates that are shut, and open
    masks = flow.masks(draws, named_generator(2))
    found = []
    for dtype in (torch.float32, torch.float64):
        flow.to(dtype)
        with torch.no_grad():
            out, log_det, kept = flow.at(numbers(draws, inputs).float().to(dtype), masks.to(dtype))
            d_z, gradients = flow.backward(
                kept, numbers(draws, inputs, seed=7).to(dtype), numbers(draws, seed=8).to(dtype)
            )
        found.append([out, log_det, d_z, *gradients])
    for fast, slow in zip(*found, strict=True):
        assert_close(fast.double(), slow, rtol=2e-5, atol=2e-6 * float(slow.detach().abs().max()))


@pytest.mark.parametrize(("rows", "groups", "flows"), [(8, 2, (1, 1)), (7, 3, (0, 0)), (5, 1, (2, 1))])
@pytest.mark.parametrize("loud", [1.0, 40.0])
def test_layers_with_random_scales(rows, groups, flows, loud):
    """Loud: log-precisions of the guess beyond their bound."""
    layer = MultiplicativeLinear(6, 5, named_generator(1), flows, flow_hidden=4, prior=0.7, log_std=-1.0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * numbers(*parameter.shape).float()
        layer.vectors[4] *= loud
    noise = [
        numbers(groups, 6),
        layer.flow.masks(groups, named_generator(2)),
        numbers(rows, 5),
        numbers(groups, 5, seed=3),
    ]
    noise.append(layer.reverse_flow.masks(groups, named_generator(4)))
    found = []
    for dtype in (torch.float32, torch.float64):
        layer.to(dtype)
        x = numbers(rows, 6).float().to(dtype).requires_grad_()
        out, bound = layer.at(x, Noise(*[value.float().to(dtype) for value in noise]))
        loss = (out * numbers(rows, 5, seed=5).to(dtype)).sum() + bound @ numbers(groups, seed=6).abs().to(
            dtype
        )
        found.append([out, bound, *torch.autograd.grad(loss, [x, *layer.parameters()])])
    for fast, slow in zip(*found, strict=True):
        assert_close(fast.double(), slow, rtol=1e-4, atol=2e-5 * float(slow.detach().abs().max()))


def test_the_guess_meets_its_bound():
    layer = MultiplicativeLinear(6, 5, named_generator(1), (0, 0), log_std=-1.0)
    with torch.no_grad():
        layer.vectors[4] = torch.tensor([400.0, -400.0, 0.1, 0.2, 0.3, 0.4])
        layer.mean += 0.5
        _, kept = auxiliary_posterior(
            numbers(2, 6).float(),
            numbers(2, 6, seed=1).float(),
            layer.mean,
            layer.log_std.exp(),
            layer.vectors,
            torch.zeros(2, 5),
        )
        precision = (kept.pull / kept.distance).log()
    assert_close(precision[:, :2].abs(), torch.full((2, 2), 15.0), rtol=1e-5, atol=0)
    assert (precision[:, 2:].abs() < 1).all()
