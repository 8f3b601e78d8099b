"""What tables of targets add to ML-CDN: shared scales, weights of rows, calibration that may widen."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

from compound import Method, Task, make_dataset, named_generator
from compound.estimators.encoder import Encoder
from compound.models.cdn import MAX_COMMON, MIN_COMMON, TABLE_MAX_TAU
from compound.models.cdn_config import TABLE_DEFAULTS
from compound.nn import PiecewiseLinearEncoding

TASK = Task("regression", 1)
SMALL = {"widths": (6,), "hyper": (4,), "members": 2, "lam": 0.0, "far": 0.0}


def rows(count: int = 300):
    """Two numbers, a category of three between them; the variance of y grows with the first number."""
    g = named_generator(0, "rows")
    x = torch.randn(count, 2, generator=g)
    labels = torch.nn.functional.one_hot(torch.randint(3, (count,), generator=g), 3).float()
    y = x[:, :1] + x[:, :1].exp() * torch.randn(count, 1, generator=g)
    return torch.cat([x[:, :1], labels, x[:, 1:]], 1), y


def encoding():
    return PiecewiseLinearEncoding.fit(rows()[0], "regression", [0, 1, 1, 1, 2])


def table_model(**options):
    model = Method("ml-cdn", **{**SMALL, **options}).build(5, TASK, 0, encoding())
    x, y = rows()
    model.on_fit_start(make_dataset(x, y, TASK), named_generator(0))
    return model


def test_numbers_of_a_column_are_a_group_and_its_bins_another():
    found = encoding()
    bins = torch.bincount(found.column, minlength=5)[[0, 4]].tolist()
    assert found.counts.tolist() == [1, 3, 1, *bins]
    without = PiecewiseLinearEncoding.fit(rows()[0])
    assert without.counts.tolist() == [1, 1, 1, 1, 1, *bins]
    constant = torch.cat([torch.zeros(300, 1), rows()[0]], 1)  # left out, and of no group
    assert PiecewiseLinearEncoding.fit(constant, "regression", [0, 0, 1, 1, 1, 2]).counts.equal(found.counts)


def test_encoded_numbers_know_their_column():
    table = pd.DataFrame({"a": [1.0, 2.0, np.nan, 4.0] * 10, "b": ["x", "y", "z", "x"] * 10, "c": range(40)})
    assert Encoder.fit(table).sources == [0, 0, 1, 1, 1, 2, 3]


def test_inputs_of_a_group_share_scale_and_variance_in_the_first_layer_of_ml_cdn():
    model = table_model()
    first, last = model.layers
    assert last.counts is None and first.counts.tolist() == [*model.encoding.counts.tolist(), 1]
    assert first.hyper.heads == (len(first.counts), len(first.counts), 6)
    h = model._encode(rows()[0][:7])
    law = first.weight_distribution(h, named_generator(0))
    scale = law.mean / first.basis.unsqueeze(1)  # (members, rows, in + 1, out)
    for start, count in zip(np.cumsum([0, *first.counts.tolist()[:-1]]), first.counts.tolist(), strict=True):
        group = slice(int(start), int(start + count))
        assert_close(scale[..., group, :], scale[..., group, :1][..., :1, :].expand_as(scale[..., group, :]))
        assert_close(law.row[..., group], law.row[..., group][..., :1].expand_as(law.row[..., group]))
    out = first(h, named_generator(0))
    h_aug = torch.cat([h, h.new_ones((2, 7, 1))], -1)
    assert_close(out.mean, torch.einsum("mbi,mbio->mbo", h_aug, law.mean))
    assert_close(out.std, (h_aug * law.row).square().sum(-1, keepdim=True).sqrt() * law.col)
    with torch.no_grad():
        for compute in (first.forward_given, first.rows_given):
            given = compute(h, first.draw(named_generator(0)))
            assert_close(given.mean, out.mean)
            assert_close(given.std, out.std)
    assert Method("vb-cdn", members=1).build(5, TASK, 0, encoding()).layers[0].counts is None


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_rows_count_by_their_variance_to_the_power_beta(beta):
    """By loops over members and rows, in float64; the reported NLL is that of equal weights."""
    model = table_model(beta=beta, samples=3).double()
    x, y = (value[:12].double() for value in rows())
    weight = torch.tensor([[1.0] * 12, [1.0] * 8 + [0.0] * 4], dtype=torch.float64)
    batch = replace(make_dataset(x, y, TASK, weight), progress=0.0)
    generators = tuple(named_generator(k, "noise") for k in range(2))
    last, _ = model._last_layer(x, generators, False)
    noise = model.likelihood.variance()
    for k in range(2):
        logs, weights = [], []
        for b in range(12):
            draws = torch.distributions.Normal(
                last.mean[k, :, b, 0], (last.std[k, :, b, 0].square() + noise[k, 0]).sqrt()
            )
            logs.append(draws.log_prob(y[b, 0]).exp().mean().log())
            variance = draws.variance.mean() + draws.mean.var(correction=0)
            weights.append(weight[k, b] * variance.detach() ** beta)
        expected = -sum(w * log for w, log in zip(weights, logs, strict=True)) / sum(weights)
        log_prob = model._log_prob(last, y, generators)
        assert_close(model._weighted_nll(last, log_prob, batch)[k], expected)
    loss = model.loss(batch, tuple(named_generator(k, "noise") for k in range(2)))
    assert_close(loss.total, model._weighted_nll(last, log_prob, batch).sum())
    assert_close(loss.nll, -(weight * log_prob).sum(1) / weight.sum(1))
    (gradient,) = torch.autograd.grad(loss.total, model.layers[0].basis)
    assert gradient.isfinite().all()


def test_beta_is_for_targets_alone():
    with pytest.raises(ValueError, match="only targets have a variance"):
        Method("ml-cdn", beta=0.5).build(2, Task("classification", 2), 0)
    with pytest.raises(ValueError, match="beta is 2"):
        Method("ml-cdn", beta=2.0).build(2, TASK, 0)


def test_defaults_of_a_table_and_hypernetworks_by_hand():
    defaults = TABLE_DEFAULTS["regression"]
    config = Method("ml-cdn").build(5, TASK, 0, encoding()).config
    assert (config.hyper, config.last_hyper, config.beta) == (
        defaults["hyper"],
        defaults["last_hyper"],
        defaults["beta"],
    )
    plain = Method("ml-cdn").build(5, TASK, 0).config
    assert plain.last_hyper == plain.hyper and plain.beta == 0
    by_hand = Method("ml-cdn", hyper=(7,)).build(5, TASK, 0, encoding())
    assert by_hand.config.last_hyper == (7,)
    bayes = Method("vb-cdn").build(5, Task("classification", 2), 0).config
    assert bayes.last_hyper == bayes.hyper == (100,)


def made_draws(spread: float, count: int = 400):
    """Draws of two members whose means are 0 and variances spread² less the noise that the model adds."""
    shape = (2, 1, 1, count, 1)
    return torch.zeros(shape), torch.full(shape, spread**2)


def test_a_predictive_that_is_too_narrow_is_widened_on_tables_alone():
    y = torch.randn(400, 1, generator=named_generator(1))
    held = torch.ones(2, 400, dtype=torch.bool)
    for model, expected in ((table_model(), 2.0), (Method("ml-cdn", **SMALL).build(5, TASK, 0), 1.0)):
        model.likelihood.set_floor(torch.zeros(1))
        model.likelihood.log_noise.data.fill_(-20.0)
        model.likelihood.calibrate(made_draws(0.5), y, held)
        assert float(model.likelihood.tau) == pytest.approx(expected, rel=0.08)
    table = table_model()
    table.likelihood.set_floor(torch.zeros(1))
    table.likelihood.log_noise.data.fill_(-20.0)
    assert table.likelihood.max_tau == TABLE_MAX_TAU
    table.likelihood.calibrate(made_draws(0.01), y, held)
    assert float(table.likelihood.tau) == TABLE_MAX_TAU


def test_training_stops_by_the_log_density_after_calibration():
    model = table_model()
    model.likelihood.requires_grad_(False)
    y = torch.randn(400, 1, generator=named_generator(1))
    draws, held = made_draws(0.4), torch.ones(2, 400)
    found = model.likelihood.stopping_log_prob(draws, y, held)
    model.likelihood.calibrate(draws, y, held.bool())
    best = model.likelihood.member_log_prob(draws, y)  # at the τ of the finer grid
    assert abs(float((found - best).mean())) < 0.01
    model.likelihood.tau = torch.ones(())
    assert float((found - model.likelihood.member_log_prob(draws, y)).mean()) > 0.5
    plain = Method("ml-cdn", **SMALL).build(5, TASK, 0).requires_grad_(False)
    plain.likelihood.set_floor(torch.zeros(1))
    found = plain.likelihood.stopping_log_prob(draws, y, held)
    assert_close(found, plain.likelihood.member_log_prob(draws, y))


def test_rows_that_all_members_held_out_calibrate_their_mixture():
    """Members disagree, each too narrow: their mixture is wide enough."""
    model = table_model()
    model.likelihood.set_floor(torch.zeros(1))
    model.likelihood.log_noise.data.fill_(-20.0)
    y = torch.randn(MIN_COMMON, 1, generator=named_generator(1))
    means = torch.tensor([-0.8, 0.8]).view(2, 1, 1, 1, 1).expand(2, 1, 1, MIN_COMMON, 1)
    draws = means, torch.full_like(means, 0.36)  # 0.64 + 0.36: variance 1

    def mixture_nll(tau: float) -> float:  # a member's own spread about its mean is scaled, not the means
        total = 0.0
        for value in y[:, 0].tolist():
            density = sum(
                math.exp(-((value - m) ** 2) / (2 * 0.36 * tau**2)) / (0.6 * tau) for m in (-0.8, 0.8)
            )
            total -= math.log(density)
        return total

    model.likelihood.calibrate(draws, y, None)
    mixture = float(model.likelihood.tau)
    grid = np.geomspace(0.1, TABLE_MAX_TAU, 69)
    assert mixture == pytest.approx(min(grid, key=mixture_nll))
    model.likelihood.calibrate(draws, y, torch.ones(2, MIN_COMMON, dtype=torch.bool))
    assert float(model.likelihood.tau) > 1.3 * mixture
    seen = []
    x, y = rows(MIN_COMMON + 50)
    weight = torch.ones(2, len(x))
    weight[:, :MIN_COMMON] = 0
    model.likelihood.calibrate = lambda draws, y, held_out: seen.append((len(y), held_out))
    model.on_fit_end(make_dataset(x, y, TASK, weight), named_generator(0))
    weight[0, 0] = 1  # one row too few
    model.on_fit_end(make_dataset(x, y, TASK, weight), named_generator(0))
    assert seen[0] == (MIN_COMMON, None) and seen[1][1] is not None and MIN_COMMON < MAX_COMMON
