"""Far noise on any method.

Negligible cost near the data, epistemic uncertainty far from it, saved with the model.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from compound.models import Method, build
from compound.models.distance_aware import DistanceAware
from compound.models.extrapolation import calibration_distances
from compound.models.files import load_model, save_model
from compound.ood.noise import DistanceAwareNoise
from compound.ood.ramp import BUDGET, GRIDS, choose_ramp
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.holdout import holdout_weights
from compound.train.loop import fit
from compound.types import Task, make_dataset

CLASSES, TARGETS = Task("classification", 3), Task("regression", 2)
SHORT = TrainConfig(steps=300, batch_size=50, lr=1e-2)


def learnt(name: str, task: Task, far: float):
    g = named_generator(0)
    x = torch.randn(300, 4, generator=g)
    y = (
        x[:, :3].argmax(1)
        if task.kind == "classification"
        else x[:, :2].sin() + 0.1 * torch.randn(300, 2, generator=g)
    )
    model = build(Method(name, widths=(20,), far=far), 4, task)
    data = make_dataset(x, y, task, holdout_weights(300, model.members, 0.2, 0))
    fit(model, data, SHORT)
    return model, data


@pytest.fixture(scope="module", params=["map", "deep-ensemble"])
def name(request):
    return request.param


@pytest.fixture(scope="module", params=[CLASSES, TARGETS], ids=lambda task: task.kind)
def pair(request, name):
    return learnt(name, request.param, 3.0), learnt(name, request.param, 0.0)[0]


def test_training_is_left_alone(pair):
    (model, _), plain = pair
    assert isinstance(model, DistanceAware) and model.far.fitted and not plain.far.fitted
    for p, q in zip(model.inner.parameters(), plain.inner.parameters(), strict=True):
        assert torch.equal(p, q)


def test_cost_on_held_out_rows_is_within_the_budget(pair):
    (model, data), plain = pair
    held = (data.weight == 0).any(0)
    x, y = data.x[held], data.y[held]
    cost = (
        plain.predict(x, named_generator(1)).log_prob(y).mean()
        - model.predict(x, named_generator(1)).log_prob(y).mean()
    )
    assert (
        cost <= BUDGET + 1e-4
    )  # rows that trained are measured from centres that had not seen them: the ramp is steeper there


@pytest.mark.parametrize("task", [CLASSES, TARGETS], ids=lambda task: task.kind)
@pytest.mark.parametrize("best", [-6.0, -2.0])
def test_the_ramp_is_the_steepest_within_the_budget_of_the_best(task, best):
    """A made-up network that gains by noise up to a certain t_90, one score more than the other.

    All ramps tried one by one.
    """
    far = DistanceAwareNoise(3)
    far.fit(torch.randn(200, 3, generator=named_generator(0)), named_generator(1))
    distance = far.distance(torch.randn(100, 3, generator=named_generator(2)))

    def scores(t):
        t_90 = torch.tensor(-20.0) if t is None else t.quantile(0.9)
        return torch.stack([-0.005 * (t_90 - best).square(), -0.003 * (t_90 - best - 0.2).square()])

    choose_ramp(
        far, GRIDS[task.kind], distance.unsqueeze(0), lambda t: scores(t).unsqueeze(-1).expand(2, 100)
    )  # every row alike: no error
    chosen, (levels, kappas, cap) = far.ramp[:2].tolist(), GRIDS[task.kind]
    tried = {}
    for level in levels:
        for kappa in kappas:
            far.set_ramp(level, kappa, cap)
            tried[level, kappa] = scores(far.from_distance(distance))
    ceiling = torch.stack([scores(None), *tried.values()]).amax(0)
    cheap = [ramp for ramp, score in tried.items() if bool((ceiling - score <= BUDGET).all())]
    assert chosen == pytest.approx(max(cheap, key=lambda ramp: (ramp[0] + 2 * ramp[1], ramp[0])))
    dearer = [ramp for ramp, score in tried.items() if bool((scores(None) - score <= BUDGET).all())]
    assert (
        max(r[0] + 2 * r[1] for r in dearer) > chosen[0] + 2 * chosen[1]
    )  # what counting from silence would have allowed


def test_a_gain_within_its_standard_error_does_not_count():
    """Noise costs 44 rows a little and gains a lot on one.

    On average a gain, but within its standard error of none.
    """
    far, grid = DistanceAwareNoise(3), GRIDS["regression"]
    far.fit(torch.randn(200, 3, generator=named_generator(0)), named_generator(1))
    distance = far.distance.quantiles[:1].expand(1, 45)  # all at the median

    def scores(t):
        t_90 = 0.0 if t is None else t.exp()
        return (torch.full((45,), -10.0).index_fill(0, torch.tensor(7), 600.0) * t_90).unsqueeze(0)

    choose_ramp(far, grid, distance, scores)
    level, highest = float(far.ramp[0]), max(grid.levels)
    assert scores(torch.full((45,), highest)).mean() > 0 and level < highest
    cost = -scores(torch.full((45,), level)).squeeze()
    assert cost.mean() + cost.std() / math.sqrt(45) <= BUDGET


def test_few_calibration_rows_represent_all_rows():
    """However near they happen to be: the farthest for the farthest rows, and all together for all."""
    x = torch.randn(400, 3, generator=named_generator(0))
    data, far = make_dataset(x, x[:, :2], TARGETS), DistanceAwareNoise(3)
    calibration = torch.arange(40)
    own, *shares = calibration_distances(far, data, calibration, named_generator(1))
    cross_fitted, distance = DistanceAwareNoise(3).fit(x, named_generator(1)), torch.stack(shares)
    assert len(shares) == 10 and torch.equal(own, cross_fitted[calibration])
    assert torch.equal(distance.mean(0).argsort(), cross_fitted[calibration].argsort())
    assert_close(distance.flatten().sort().values, torch.quantile(cross_fitted, torch.arange(0.5, 400) / 400))
    assert torch.equal(
        calibration_distances(far, data, torch.arange(300), named_generator(1)),
        cross_fitted[:300].unsqueeze(0),
    )  # nearly all: themselves


def test_uncertainty_far_away_is_epistemic(pair):
    (model, data), plain = pair
    x = 40 * data.x[:50]
    p, q = model.predict(x, named_generator(1)), plain.predict(x, named_generator(1))
    assert (p.aleatoric <= 1e-5 * p.total).all()  # nothing that far away is known to be noise
    if model.task.kind == "classification":
        assert (p.entropy() > 0.95 * math.log(3)).all() and p.probs.amax() < 0.45
        assert torch.equal(p.label, q.label)
    else:
        spread = data.y[(data.weight > 0).any(0)].std(0, correction=0)
        assert_close(
            p.variance - q.variance,
            (3 * spread).square().expand(50, 2),
            rtol=1e-3,
            atol=1e-3 * float(q.variance.max()),
        )
    assert_close(
        p.total, p.entropy() if model.task.kind == "classification" else p.variance, rtol=1e-5, atol=1e-6
    )


def test_is_kept_with_the_model(pair, tmp_path):
    (model, data), _ = pair
    save_model(model, tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert isinstance(again, DistanceAware) and again.far.strength == 3.0
    assert torch.equal(
        again.predict(10 * data.x, named_generator(1), 4).total,
        model.predict(10 * data.x, named_generator(1), 4).total,
    )


def test_a_stopped_fit_goes_on(name, tmp_path):
    class Stop(Exception):
        pass

    def stop(callback):
        raise Stop

    model, data = learnt(name, CLASSES, 3.0)
    broken, resumed = (build(Method(name, widths=(20,), far=3.0), 4, CLASSES) for _ in range(2))
    with pytest.raises(Stop):
        fit(broken, data, SHORT, checkpoint=tmp_path / "checkpoint", save_every=0.0, callback=stop)
    fit(resumed, data, SHORT, checkpoint=tmp_path / "checkpoint")
    for p, q in zip(model.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(p, q)


def test_a_negative_strength_is_refused():
    with pytest.raises(ValueError, match=r"far is -1\.0"):
        build(Method("map", far=-1.0), 3, CLASSES)


@pytest.mark.parametrize("name", ["map", "ml-cdn"])
def test_distances_may_be_those_of_directions(name, tmp_path):
    """Rows of any length in the direction of training rows are near; models come back with their distance."""
    x = torch.randn(200, 4, generator=named_generator(0)) + 3
    y = (x[:, 0] > 3).long()
    options = {"widths": (5,), "far": 3.0} | ({"members": 1} if name == "ml-cdn" else {})
    noises = []
    for far_distance in ("inputs", "directions"):
        model = build(Method(name, **options, far_distance=far_distance), 4, CLASSES)
        weight = holdout_weights(200, model.members, 0.2, 0)
        fit(model, make_dataset(x, y, CLASSES, weight), TrainConfig(steps=5))
        save_model(model, tmp_path / far_distance)
        rows = torch.cat([x[:20], 30 * x[:20], -x[:20]])
        t = model.far.noise(rows)
        assert load_model(tmp_path / far_distance).far.noise(rows).equal(t)
        noises.append(t.view(3, 20))
    by_inputs, by_directions = noises
    assert_close(by_directions[1], by_directions[0], rtol=1e-3, atol=1e-3)
    assert (by_inputs[1] > by_inputs[0] + 5).all()
    for t in noises:
        assert (t[2] > t[0] + 5).all()
    with pytest.raises(ValueError, match="far_distance is 'lengths'"):
        build(Method(name, **options, far_distance="lengths"), 4, CLASSES)
