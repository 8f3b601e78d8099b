"""Whatever the inputs, a regression network's own answer stays within what it said about training rows.

The rest is epistemic.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from compound.models import Method, build
from compound.models.limits import LARGEST, MULTIPLE, Limits
from compound.predictive import GaussianPredictive
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.holdout import holdout_weights
from compound.train.loop import fit
from compound.types import Task, make_dataset

DOUBLE = torch.float64


def answer(means: list[float], variances: list[float]) -> GaussianPredictive:
    """One row and target, drawn means of one network each, half of every variance integrated."""
    column = torch.tensor(means, dtype=DOUBLE).reshape(-1, 1, 1, 1)
    half = torch.tensor(variances, dtype=DOUBLE).reshape(-1, 1, 1, 1) / 2
    return GaussianPredictive.from_draws(column, half, half)


@pytest.fixture
def limits():
    y = torch.linspace(-1, 1, 201, dtype=DOUBLE).unsqueeze(-1)  # range ±1, width 2
    fitted = Limits(1)
    fitted.fit(y, answer([-0.1, 0.1], [0.01, 0.03]))  # aleatoric 0.02, in all 0.04
    return fitted


def test_ordinary_answers_keep_their_bits(limits):
    plain = answer([-0.1, 0.15], [0.02, 0.03])
    bounded = limits(plain)
    for name in ("component", "mixing", "posterior", "means", "variances"):
        assert torch.equal(getattr(bounded, name), getattr(plain, name))


@pytest.mark.parametrize(
    "means, variances", [([90.0, 91.0], [0.01] * 2), ([-5.0, 7.0], [0.02] * 2), ([0.2, 0.2], [1e9] * 2)]
)
def test_what_lies_beyond_is_epistemic(limits, means, variances):
    p = limits(answer(means, variances))
    assert (p.means.abs() <= 3 + 1e-12).all()
    assert (p.total <= MULTIPLE**2 * 0.04 + 1e-12).all() and (p.aleatoric <= MULTIPLE * 0.02 + 1e-12).all()
    assert_close(
        p.variances.mean(0) + p.means.var(0, correction=0), p.total
    )  # the mixture is the one whose parts are shown
    if variances[0] > 1:
        assert p.epistemic >= p.aleatoric  # the network never saw such noise: it cannot know it


def test_a_network_that_was_ever_so_wide_is_held_by_the_target(limits):
    limits.fit(torch.linspace(-1, 1, 201, dtype=DOUBLE).unsqueeze(-1), answer([0.0, 0.0], [1e6] * 2))
    assert limits(answer([0.0, 0.0], [1e9] * 2)).total.sqrt() <= LARGEST * math.sqrt(1 / 3 * 1.01)


def test_a_constant_target_has_no_scale_of_its_own():
    limits = Limits(1)
    limits.fit(torch.ones(10, 1, dtype=DOUBLE), answer([1.0, 1.0], [0.01] * 2))
    p = limits(answer([5.0, 1.0], [0.01] * 2))
    assert_close(p.means, torch.ones(2, 1, 1, dtype=DOUBLE)) and (p.total > 0).all()


@pytest.mark.parametrize(
    "name, options",
    [("ml-cdn", {"hyper": (10,)}), ("vb-cdn", {"hyper": (10,)}), ("map", {"variance": "rows", "far": 0.0})],
)
def test_rows_moved_out_of_the_data(name, options):
    """Each column moved by up to a thousand training ranges, with unbounded log-variances."""
    g, task = named_generator(0), Task("regression", 1)
    x = torch.randn(300, 3, generator=g)
    y = x[:, :1].sin() + 0.1 * (1 + x[:, 1:2].abs()) * torch.randn(300, 1, generator=g)
    model = build(Method(name, widths=(20,), **options), 3, task)
    fit(
        model,
        make_dataset(x, y, task, holdout_weights(300, model.members, 0.2, 0)),
        TrainConfig(steps=300, batch_size=50, lr=1e-2),
    )
    low, high = y.amin(), y.amax()
    shares = []
    for distance in (0.1, 1.0, 10.0, 100.0, 1000.0):
        share = []
        for column in range(3):
            moved = x[:40].clone()
            moved[:, column] += distance * (x[:, column].amax() - x[:, column].amin())
            p = model.predict(moved, named_generator(1))
            assert (p.std <= 10 * y.std()).all()
            assert (p.mean >= 2 * low - high - 1e-5).all() and (p.mean <= 2 * high - low + 1e-5).all()
            share.append(p.epistemic / p.total)
        shares.append(float(torch.stack(share).mean()))
    if name != "map":
        assert all(b >= a - 1e-6 for a, b in zip(shares, shares[1:], strict=False)) and shares[-1] > 0.999
    else:  # one network without far noise: what lies beyond its bounds is all it can call epistemic
        assert shares[-1] > 0.3
