"""What tables add to a method: members that differ, stopping by their mixture, far noise to frequencies."""

import math

import pytest
import torch
from torch.testing import assert_close

from compound import Method, Task, TrainConfig, make_dataset, named_generator
from compound.estimators.calibration import PRIOR_SCALE, TemperatureScaler
from compound.nn import PiecewiseLinearEncoding
from compound.ood.ramp import BUDGET
from compound.train.evaluation import held_out_nll

TASK = Task("classification", 3)
SMALL = Method("ml-cdn", widths=(8,), hyper=(4,), members=3, log_col=(0.0,))  # draws differ much


def rows(count: int = 300):
    x = torch.randn(count, 2, generator=named_generator(0, "x"))
    return x, (x[:, 0] > 0).long() + (x.sum(1) > 1.5).long()


@pytest.fixture(scope="module")
def model():
    x, _ = rows()
    return SMALL.build(2, TASK, 0, PiecewiseLinearEncoding.fit(x, "classification"))


def test_each_member_sees_the_encoding_at_its_own_scales(model):
    x, _ = rows(20)
    found = model._encode(x)
    for k in range(3):
        assert_close(found[k], model.encoding(x) * model.encoding.member_scales(3)[k])
    assert not torch.equal(found[0], found[1])
    regression = SMALL.build(2, Task("regression", 1), 0, PiecewiseLinearEncoding.fit(x))
    assert_close(regression._encode(x), regression.encoding(x).expand(3, -1, -1), rtol=0, atol=0)


def test_stopping_is_by_the_nll_of_the_mixture_on_the_weighted_rows(model):
    x, y = rows()
    batch, config = make_dataset(x, y, TASK, torch.arange(300).remainder(4).float()), TrainConfig()
    draws = config.eval_samples * 3
    probs = model.predict(x, named_generator(1, "check"), draws, 1).probs.double()
    weight = batch.weight.double()
    expected = -sum(w * math.log(p[label]) for w, p, label in zip(weight, probs, y, strict=True))
    assert held_out_nll(model, batch, config, 1) == pytest.approx(float(expected / weight.sum()), rel=1e-5)
    members = model.nll(batch, config.eval_samples, named_generator(1, "check")).mean()
    assert held_out_nll(model, batch, config, 1) < members  # Jensen: the mixture is better than its members


def test_far_from_the_data_classes_have_their_frequencies(model):
    x, y = rows()
    model.on_fit_start(make_dataset(x, y, TASK), named_generator(0))
    counts = [float((y == label).sum()) + 1 for label in range(3)]
    assert_close(model.far.far_params.tolist(), [c / sum(counts) for c in counts], rtol=1e-6, atol=0)
    assert model.far.budget < BUDGET
    wrapped = Method("map", widths=(4,), far=3.0).build(2, TASK, 0, model.encoding)
    plain = Method("map", widths=(4,), far=3.0).build(2, TASK, 0)
    for each in (wrapped, plain):
        each.on_fit_start(make_dataset(x, y, TASK), named_generator(0))
    assert_close(wrapped.far.far_params, model.far.far_params)
    assert_close(plain.far.far_params.tolist(), [1 / 3] * 3, rtol=1e-6, atol=0)
    assert plain.far.budget == BUDGET


def test_temperature_has_the_highest_posterior_density_under_a_cauchy_prior():
    logits = 4 * torch.randn(60, 3, generator=named_generator(2), dtype=torch.float64)
    y = torch.randint(3, (60,), generator=named_generator(3))
    probs = torch.softmax(logits, -1)

    def log_posterior(t: float) -> float:
        log_probs = torch.log_softmax(logits / math.exp(t), -1)
        return float(log_probs[torch.arange(60), y].sum()) - math.log1p((t / PRIOR_SCALE) ** 2)

    found = math.log(TemperatureScaler.fit(probs, y).value)
    grid = torch.linspace(-1.5, 1.5, 121, dtype=torch.float64).tolist()
    assert found == pytest.approx(max(grid, key=log_posterior), abs=1e-9) and found != 0
