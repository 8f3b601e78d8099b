"""The split of uncertainty where the truth is known.

No share is wrong on average, however few the inner draws.
"""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from compound import predictive
from compound.models import Method, build
from compound.ops.gaussian_noise import stratified_normal
from compound.predictive import (
    CategoricalPredictive,
    GaussianPredictive,
    entropy,
    entropy_parts,
    variance_parts,
)
from compound.random import named_generator
from compound.types import Task

DOUBLE = torch.float64
REPETITIONS = 1000  # as rows


def noise(variance: float, shape: tuple[int, ...], seed: int) -> Tensor:
    return math.sqrt(variance) * torch.randn(*shape, generator=named_generator(seed, "split"), dtype=DOUBLE)


def right(values: Tensor, truth: float, bound: float = 0.0) -> bool:
    """Whether the mean of repetitions lies within three standard errors and a bias of the truth."""
    return (
        abs(float(values.mean()) - truth) <= 3 * float(values.std()) / math.sqrt(len(values)) + bound + 1e-12
    )


# component, mixing drawn, mixing integrated, posterior drawn within members, far
PARTS = [
    (0.3, 2.0, 0.0, 0.5, 0.0), (0.0, 0.0, 4.0, 1.0, 0.0), (0.1, 1.0, 4.0, 0.0, 2.0),
    (0.2, 0.0, 0.0, 0.0, 0.0), (1.0, 3.0, 1.0, 0.1, 0.7),
]  # fmt: skip


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize(
    "members, outer, inner", [(1, 20, 5), (1, 20, 20), (3, 4, 5), (5, 1, 20), (2, 10, 1), (1, 1, 20)]
)
def test_variances(parts, members, outer, inner):
    component, mixing, integrated, posterior, far = parts
    posterior = posterior if outer > 1 else 0.0  # one draw of ψ is all there is
    centres = torch.arange(members, dtype=DOUBLE)  # members differ by what they are, not by chance
    rows = (REPETITIONS, 1)
    psi = centres.repeat_interleave(outer)[:, None, None, None] + noise(
        posterior, (members * outer, 1, *rows), 1
    )
    means = psi + noise(mixing, (members * outer, inner, *rows), 2)
    epistemic = posterior + float(centres.var(correction=0))

    drawn, between = variance_parts(means.unflatten(0, (members, -1)))
    if inner > 1:
        assert right(drawn, mixing) and right(between, epistemic)
    else:  # one inner draw cannot tell the two apart
        assert right(drawn + between, mixing + epistemic)

    ones = torch.ones((), dtype=DOUBLE)
    p = GaussianPredictive.from_draws(
        means, component * ones, integrated * ones, far * torch.ones(REPETITIONS, 1, dtype=DOUBLE), members
    )
    assert min(p.component.min(), p.mixing.min(), p.posterior.min()) >= 0
    assert (p.mixing >= integrated * (1 - 1e-12)).all() and (
        p.posterior >= far
    ).all()  # what is known exactly is not corrected away
    assert_close(p.component, torch.full_like(p.component, component))
    assert_close(p.total, component + integrated + far + drawn + between, rtol=1e-12, atol=1e-12)
    assert right(p.variance, component + integrated + far + mixing + epistemic)


@pytest.mark.parametrize("members, groups, size", [(1, 2, 6), (5, 2, 6), (3, 4, 2)])
def test_variances_of_stratified_draws(members, groups, size):
    """Groups of stratified draws of a function with odd and even parts, with repetitions as rows."""
    slopes = torch.tensor([0.5, -1.0, 0.7, 0.2], dtype=DOUBLE)
    shape = (members, REPETITIONS, groups, size, len(slopes))
    z = stratified_normal(named_generator(4, "strata"), shape, slopes)
    f = (z * slopes).sum(-1) + 0.3 * z.square().sum(-1) + 0.4 * z[..., 0] * z[..., 1]
    f = f.flatten(2).permute(0, 2, 1)[:, None, ..., None]  # (members, 1, groups size, rows, 1)
    centres = torch.arange(members, dtype=DOUBLE).reshape(-1, 1, 1, 1, 1)
    mixing, posterior = variance_parts(centres + f, size)
    exact = float(slopes.square().sum()) + 0.09 * 2 * len(slopes) + 0.16
    assert right(mixing, exact) and right(posterior, float(centres.var(correction=0)))
    error = (centres + f).mean((0, 1, 2)).var()
    assert float(error) < 0.6 * exact / (members * groups * size)  # this is what they are for


def test_an_integrated_last_layer_does_not_hide_the_posterior():
    """Posterior variance 1 beside an integrated variance of 4, 40 x 5 draws: nearly every row shows it."""
    means = noise(1.0, (40, 1, REPETITIONS, 1), 3).expand(-1, 5, -1, -1)
    p = GaussianPredictive.from_draws(means, torch.tensor(0.1, dtype=DOUBLE), torch.tensor(4.0, dtype=DOUBLE))
    assert right(p.posterior, 1.0) and (p.posterior > 0.3).all()


NODES, WEIGHTS = (torch.from_numpy(v) for v in np.polynomial.hermite_e.hermegauss(80))
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def binary(p: Tensor) -> Tensor:
    return entropy(torch.stack([p, 1 - p], -1))


def truth(centre: float, posterior: float, hidden: float, logit: float) -> tuple[float, float, float]:
    """Component, mixing and posterior share of sigmoid(centre + noise), by Gauss-Hermite quadrature."""
    psi = centre + math.sqrt(posterior) * NODES
    p = torch.sigmoid(psi[:, None] + math.sqrt(hidden + logit) * NODES)  # (ψ, θ)
    given = p @ WEIGHTS
    component, within, total = (
        float(WEIGHTS @ (binary(p) @ WEIGHTS)),
        float(WEIGHTS @ binary(given)),
        float(binary(WEIGHTS @ given)),
    )
    return component, within - component, total - within


LOGITS = [
    (0.5, 0.6, 0.0, 0.0),
    (0.5, 0.0, 1.0, 0.0),
    (-1.0, 0.3, 0.0, 2.0),
    (0.0, 1.0, 0.5, 0.5),
    (2.0, 0.2, 3.0, 1.0),
]


@pytest.mark.parametrize("parts", LOGITS, ids=str)
@pytest.mark.parametrize("outer, inner", [(20, 5), (20, 20), (40, 1)])
def test_entropies(parts, outer, inner):
    """Logits come in antithetic pairs that share their hidden draw: a pair is one inner draw, not two."""
    centre, posterior, hidden, logit = parts
    pair = noise(logit, (outer, inner, 1, REPETITIONS), 3)
    z = (
        centre
        + noise(posterior, (outer, 1, 1, REPETITIONS), 1)
        + noise(hidden, (outer, inner, 1, REPETITIONS), 2)
    )
    z = (z + torch.cat([pair, -pair], 2)).flatten(1, 2)  # (outer, 2 inner, rows)
    logs = torch.nn.functional.logsigmoid(torch.stack([z, -z], -1))
    p = CategoricalPredictive.from_draws(logs, paired=2)

    component, mixing, epistemic = truth(*parts)
    units = logs.exp().unflatten(1, (-1, 2)).mean(2).unsqueeze(0)
    own = -(logs.exp() * logs).sum(-1).mean((0, 1))
    total = entropy(p.probs)
    drawn, between = entropy_parts(units, own, total)
    low = (
        epistemic + mixing / inner
    ) / outer  # by which the entropy of a mean of draws is too low, to first order
    assert right(own, component)
    if inner > 1:
        assert right(drawn, mixing, mixing / inner**2) and right(
            between, epistemic, 1.5 * low + mixing / inner**2
        )
    else:
        assert right(drawn + between, mixing + epistemic, 1.5 * low)
    assert min(p.component.min(), p.mixing.min(), p.posterior.min()) >= 0
    assert_close(p.posterior, between.clamp_min(0), rtol=1e-9, atol=1e-12)  # shown as estimated, pair by pair
    assert_close(p.total, total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("log_odds", [-20.0, -1.0, 0.0, 30.0])
def test_unknown_inputs_are_epistemic(log_odds):
    """The network's aleatoric entropy counts with its weight 1 - π, also where it is uniform itself."""
    probs = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=DOUBLE)
    p = CategoricalPredictive.from_draws(probs.log()[None, None]).with_far_noise(
        torch.full((2,), log_odds, dtype=DOUBLE), torch.full((2,), 0.5)
    )
    believed = 1 / (1 + math.exp(log_odds))
    assert_close(p.aleatoric, believed * entropy(probs), rtol=1e-9, atol=1e-15)
    assert_close(p.total, entropy(p.probs), rtol=1e-12, atol=1e-12)
    if log_odds == 30:
        assert_close(p.epistemic, torch.full((2,), math.log(2), dtype=DOUBLE), rtol=1e-9, atol=0)


def few_and_many(name: str, kind: str, monkeypatch):
    """A network with random weights and lively noise.

    Shares from few draws, many times over, and once from many.
    """
    options = {"bnn-lv": {"prior_variance": 1.0}}.get(
        name, {"hyper": (8,), "log_col": (-1.0,), "members": 2, "far": 0.0}
    )
    model = build(Method(name, widths=(10,), **options), 3, Task(kind, 2), seed=1).double()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(("log_row", "rho")) and "stack" in parameter_name:
                parameter.fill_(-1.0)  # a wide posterior
    if kind == "regression":
        model.likelihood.on_fit_start(torch.randn(50, 2, generator=named_generator(0), dtype=DOUBLE))
    x = torch.randn(4, 3, generator=named_generator(2), dtype=DOUBLE)
    raw = []

    def spied(parts):
        def spy(*arguments):
            raw.append(torch.stack(parts(*arguments)))
            return parts(*arguments)

        return spy

    monkeypatch.setattr(predictive.gaussian, "variance_parts", spied(variance_parts))
    from_parts = CategoricalPredictive.from_parts

    def spy_on_classes(probs, component, conditional):
        raw.append(torch.stack([conditional - component, entropy(probs) - conditional]))
        return from_parts(probs, component, conditional)

    monkeypatch.setattr(CategoricalPredictive, "from_parts", staticmethod(spy_on_classes))
    for k in range(150):
        model.predict(x, named_generator(k, "few"), 16)
    model.predict(x, named_generator(0, "many"), 1200, 60)
    return torch.stack(raw[:-1]), raw[-1]


@pytest.mark.parametrize("kind", ["regression", "classification"])
@pytest.mark.parametrize("name", ["ml-cdn", "vb-cdn", "bnn-lv"])
def test_methods_that_nest_their_draws(name, kind, monkeypatch):
    """Mixing and posterior before they are cut off at 0.

    On average the same from 16 x 5 draws as from 1,200 x 60.
    """
    few, many = few_and_many(name, kind, monkeypatch)
    error = (
        4 * few.std(0) / math.sqrt(len(few)) * math.sqrt(1 + len(few) * 80 / 72_000)
    )  # many draws err a little, too
    mixing, posterior = many.abs()
    bias = (
        0.0 if kind == "regression" else 1.5 * (posterior + mixing / 5) / 16 + mixing / 5**2
    )  # as `entropy_parts` says
    assert ((few.mean(0) - many).abs() <= error + bias + 1e-9).all()
