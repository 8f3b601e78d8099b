"""Far noise: the distance, its quantiles, and what it promises far away."""

import copy
import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from compound import CompoundClassifier, CompoundRegressor
from compound.models import Method, build
from compound.models.observation.last_layer import LastLayerCategorical
from compound.ood import clusters
from compound.ood.distance import Distance
from compound.ood.noise import DistanceAwareNoise
from compound.ood.whitening import RIDGE
from compound.predictive import CategoricalPredictive, GaussianPredictive
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import Task, make_dataset


def blobs(rows: int, features: int, seed: int = 0) -> torch.Tensor:
    g = named_generator(seed, "blobs")
    centres = 3 * torch.randn(4, features, generator=named_generator(99, "centres"))
    scale = torch.linspace(0.2, 2, features)
    return centres[torch.randint(4, (rows,), generator=g)] + scale * torch.randn(rows, features, generator=g)


def test_distance_is_the_ridge_whitened_distance_to_the_nearest_centre():
    x = blobs(500, 5).double()
    distance = Distance(5).double()
    distance.fit(x, named_generator(1))
    covariance = torch.cov(x.T)
    inverse = torch.linalg.inv(
        covariance + RIDGE[0] * covariance.diagonal().mean() * torch.eye(5, dtype=torch.float64)
    )
    values, vectors = torch.linalg.eigh(covariance)
    back = vectors.flip(1) * (values.flip(0) + RIDGE[0] * covariance.diagonal().mean()).sqrt()
    centres = distance.centres @ back.T + x.mean(0)  # in the original coordinates
    y = blobs(20, 5, 3).double()
    gaps = y.unsqueeze(1) - centres
    naive = torch.einsum("bki,ij,bkj->bk", gaps, inverse, gaps).amin(-1).sqrt()
    assert_close(distance(y), naive, rtol=1e-9, atol=1e-9)


def test_wide_inputs_keep_leading_directions_and_lose_little():
    g = named_generator(2)
    low = torch.randn(3000, 12, generator=g) @ torch.randn(12, 300, generator=g)
    x = (low + 0.05 * torch.randn(3000, 300, generator=g)).double()
    distance = Distance(300).double()
    distance.fit(x[:2000], named_generator(1))
    assert distance.whiten.shape[1] < 40
    moved = x[2000:2500] + 0.5 * torch.randn(500, 300, generator=g, dtype=torch.float64)  # off the subspace
    assert distance(moved).min() > distance.quantiles[1] > distance(x[2500:]).quantile(0.97)
    ridge = RIDGE[1] * torch.cov(x[:2000].T).diagonal().mean()
    step = torch.randn(300, generator=g, dtype=torch.float64)
    step -= distance.whiten @ torch.linalg.lstsq(distance.whiten, step.unsqueeze(-1)).solution.squeeze(
        -1
    )  # outside all leading directions
    outside = distance((x.mean(0) + 1e3 * step).unsqueeze(0)).item() / (1e3 * step.norm().item())
    assert (
        abs(
            outside * ridge.sqrt() / distance.residual_precision[distance.centres.norm(dim=1).argmin()].sqrt()
            - 1
        )
        < 0.05
    )


@pytest.mark.parametrize("rows", [60, 400, 3000])
def test_the_99_percent_distance_holds_for_new_rows(rows):
    """Cross-fitted.

    About 1% of new rows lie beyond d99, where centres that know their rows would let 2 to 4% through.
    """
    shares = []
    for seed in range(8):
        distance = Distance(6)
        distance.fit(blobs(rows, 6, seed), named_generator(seed))
        shares.append((distance(blobs(4000, 6, 100 + seed)) > distance.quantiles[1]).float().mean().item())
    share = sum(shares) / len(shares)
    assert share < 0.01 + 5 * math.sqrt(0.01 / (8 * rows)) + 0.006


def test_tensors_lie_as_they_will_be_loaded():
    distance = Distance(6)
    distance.fit(blobs(200, 6), named_generator(0))
    assert all(
        value.is_contiguous() for value in distance.buffers()
    )  # products of another layout differ in the last bit


def test_a_step_in_a_constant_column_is_far():
    x = blobs(400, 4)
    x[:, 2] = 7.0
    distance = Distance(4)
    distance.fit(x, named_generator(0))
    moved = x[:50].clone()
    moved[:, 2] += 3.0
    assert distance(moved).min() > distance.quantiles[1]


@pytest.mark.parametrize(
    "x",
    [torch.zeros(1, 3), torch.ones(30, 3), torch.arange(4.0).reshape(2, 2)],
    ids=["one row", "all alike", "two rows"],
)
def test_few_or_equal_rows_are_no_obstacle(x):
    far = DistanceAwareNoise(x.shape[1])
    far.fit(x, named_generator(0))
    far.set_ramp(-6.0, 6.0, 14.0)
    assert torch.isfinite(far(x)).all() and torch.isfinite(far(x + 1e4)).all()
    assert (far(x + 100.0) == 14.0).all()


def test_far_rows_get_full_noise_whatever_the_ramp():
    far = DistanceAwareNoise(6)
    far.fit(blobs(500, 6), named_generator(0))
    far.set_ramp(-8.0, 0.5, 14.0)
    d50, d99, edge = far.distance.quantiles
    assert_close(
        far.from_distance(torch.stack([d50, d99, edge])),
        torch.stack([d50 * 0 - 8.0, d50 * 0 - 7.5, -8 + 0.5 * (edge - d50) / (d99 - d50)]),
    )
    middle = (edge + 2.9 * d99) / 2
    assert_close(
        far.from_distance(torch.stack([middle, 3 * d99])),
        torch.tensor([8 - 6 * math.log(2), 8.0]),
        rtol=1e-4,
        atol=1e-4,
    )


def test_noise_of_targets_grows_linearly_up_to_the_spread_of_the_rows():
    x = torch.cat([torch.linspace(-2, -1, 200), torch.linspace(1, 2, 200)]).unsqueeze(1)
    far = DistanceAwareNoise(1)
    far.fit(x, named_generator(0))
    far.set_ramp(-6.0, 18.0, 0.0)  # a step at the edge, but for the reach
    outside = torch.tensor([[2.3], [2.6], [2.9], [9.0]])
    near, middle, farther, full = far(outside).exp().sqrt().tolist()
    assert full == 1.0
    std = float(x.std(correction=0))
    assert_close(farther - near, 0.6 / std, rtol=0.1, atol=0)  # the ridge of the whitening
    assert_close(middle, (near + farther) / 2, rtol=1e-3, atol=0)


@pytest.mark.parametrize("far", [[0.2] * 5, [0.5, 0.2, 0.1, 0.1, 0.1]], ids=["uniform", "frequencies"])
def test_far_noise_of_classes_is_a_mixture_with_fixed_probabilities(far: list[float]):
    logs = torch.log_softmax(
        3 * torch.randn(4, 3, 50, 5, generator=named_generator(3), dtype=torch.float64), -1
    )
    plain, odds = CategoricalPredictive.from_draws(logs), torch.linspace(-20, 14, 50, dtype=torch.float64)
    y = torch.arange(50) % 5
    found = plain.with_far_noise(odds, torch.tensor(far, dtype=torch.float64))
    for row in range(50):
        share = 1 / (1 + math.exp(-float(odds[row])))
        mixed = [(1 - share) * float(p) + share * q for p, q in zip(plain.probs[row], far, strict=True)]
        assert_close(found.probs[row].tolist(), mixed)
        assert_close(float(found.total[row]), -sum(p * math.log(p) for p in mixed))
        assert_close(float(found.log_prob(y)[row]), math.log(mixed[y[row]]))
    if len(set(far)) == 1:
        assert torch.equal(found.label, plain.label)
    assert_close(
        found.aleatoric, torch.sigmoid(-odds) * plain.aleatoric
    )  # as far as the network is believed; the rest is epistemic
    assert (found.posterior >= plain.posterior).all() and (found.posterior.diff()[-10:] != 0).all()


@pytest.mark.parametrize("t", [-30.0, -1.0, 0.0])
def test_far_noise_turns_aleatoric_variance_into_epistemic(t):
    ones = torch.ones(3, 4, 2, 1, dtype=torch.float64)
    means = torch.randn(3, 4, 2, 1, generator=named_generator(1), dtype=torch.float64)
    without = GaussianPredictive.from_draws(means, ones, 2 * ones)
    p = without.with_far_noise(torch.full((2,), t, dtype=torch.float64), torch.tensor([3.0]).double())
    assert_close(p.total, without.total + 9 * math.exp(t), rtol=1e-12, atol=0)
    assert_close(p.aleatoric, (1 - math.exp(t)) * without.aleatoric, rtol=1e-9, atol=1e-12)
    assert_close(p.variances, without.variances + 9 * math.exp(t), rtol=1e-12, atol=0)


def test_log_densities_of_members_are_those_of_their_own_predictives():
    likelihood, far = LastLayerCategorical(5, "sample", 2), torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1]).double()
    logits = torch.randn(
        3, 4, 2, 40, 5, generator=named_generator(4), dtype=torch.float64
    )  # (members, outer, inner, rows, classes)
    y, t = torch.arange(40) % 5, torch.linspace(-20, 14, 40, dtype=torch.float64)
    log_prob = likelihood.far_log_prob((logits, torch.zeros_like(logits)), y, far)
    for k in range(3):
        one = logits[k : k + 1]
        p = likelihood.draws_predictive((one, torch.zeros_like(one)))
        assert_close(log_prob(None)[k], p.log_prob(y))
        assert_close(log_prob(t)[k], p.with_far_noise(t, far).log_prob(y))


@pytest.fixture(scope="module")
def classifier():
    g = named_generator(0, "classes")
    y = torch.randint(4, (1000,), generator=g)
    centres = 2 * torch.randn(4, 6, generator=g)
    x = centres[y] + 0.7 * torch.randn(1000, 6, generator=g)
    task = Task("classification", 4)
    models = {}
    for name in ("ml-cdn", "vb-cdn"):
        weight = (torch.arange(1000) >= 200).float()
        model = build(Method(name, widths=(30,), hyper=(10,)), 6, task, 0)
        fit(
            model,
            make_dataset(x, y, task, weight),
            TrainConfig(steps=600, lr=3e-3, final_lr_ratio=0.0, clip_value=5.0),
        )
        models[name] = model
    return models, x, y


def moved(model, x: torch.Tensor, factor: float, seed: int) -> torch.Tensor:
    """Rows moved in random directions until their distance is `factor` times d99."""
    direction = torch.randn(x.shape, generator=named_generator(seed, "direction"))
    low, high = torch.zeros(len(x), 1), torch.full((len(x), 1), 1e4)
    for _ in range(60):
        middle = 0.5 * (low + high)
        beyond = (model.distance(x + middle * direction) > factor * model.distance.quantiles[1]).unsqueeze(-1)
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    return x + high * direction


def without_far_noise(model):
    model = copy.deepcopy(model)
    model.far.noise = DistanceAwareNoise(model.inputs)
    return model


@pytest.mark.parametrize("name", ["ml-cdn", "vb-cdn"])
@pytest.mark.parametrize("factor", [3, 10, 100])
def test_entropy_of_classes_is_high_far_away(classifier, name, factor):
    models, x, _ = classifier
    model = models[name]
    moved_x = moved(model, x[:100], factor, factor)
    p = model.predict(moved_x, named_generator(1))
    assert p.entropy().min() >= 0.85 * math.log(4)
    without = without_far_noise(model).predict(moved_x, named_generator(1))
    assert_close(
        p.aleatoric, torch.sigmoid(-model.far.noise(moved_x)) * without.aleatoric, rtol=1e-3, atol=1e-5
    )  # the rest is epistemic
    assert (p.posterior >= without.posterior).all()


@pytest.mark.parametrize("name", ["ml-cdn", "vb-cdn"])
def test_far_noise_costs_no_more_than_its_budget(classifier, name):
    models, x, y = classifier
    model = models[name]
    with_noise = model.predict(x[:200], named_generator(2), 40)
    without = without_far_noise(model).predict(x[:200], named_generator(2), 40)
    cost = (without.log_prob(y[:200]) - with_noise.log_prob(y[:200])).mean()
    assert cost <= 0.003 + 0.002  # other draws than those the ramp was chosen with
    assert torch.equal(with_noise.label, without.label)


@pytest.mark.parametrize("name", ["ml-cdn", "vb-cdn"])
def test_targets_far_away_have_the_requested_standard_deviation(name):
    g = named_generator(5)
    x = torch.randn(500, 3, generator=g)
    y = 4 * (x[:, :1].sin() + 0.1 * torch.randn(500, 1, generator=g))
    task = Task("regression", 1)
    model = build(Method(name, widths=(20,), hyper=(10,), members=1, far=3.0), 3, task, 0)
    fit(model, make_dataset(x, y, task, (torch.arange(500) >= 100).float()), TrainConfig(steps=500))
    own = y.std()
    for factor in (3, 30, 100):
        p = model.predict(moved(model, x[:50], factor, factor), named_generator(1), 10)
        assert p.std.min() >= 1.5 * own
    start, direction = x[:20], torch.randn(20, 3, generator=named_generator(7))
    scale = (moved(model, start, 3, 8) - start).norm(dim=-1, keepdim=True) / direction.norm(
        dim=-1, keepdim=True
    )
    path = torch.stack(
        [
            model.predict(start + u * scale * direction, named_generator(1), 10).posterior.squeeze(-1)
            for u in torch.linspace(0, 1, 12)
        ]
    )
    assert (path[1:] >= 0.7 * path[:-1] - 0.02 * own**2).float().mean() > 0.97
    assert (path[-1] >= 0.98 * path[0]).all() and (path[-1] > 2 * path[0]).float().mean() > 0.8


def test_rows_are_measured_as_if_they_were_new(monkeypatch):
    """Five rows, one centre.

    Each from the mean of the others, by their covariance, in units that they would have standardised.
    """
    monkeypatch.setattr(
        clusters, "k_means", lambda u, count, seed: u.mean(0, keepdim=True)
    )  # exact, where mini-batches are not
    raw = blobs(5, 3).double()
    x = (raw - raw.mean(0)) / raw.std(0, correction=0)
    found = Distance(3).double().fit(x, named_generator(0))
    for row in range(5):
        others = torch.cat([raw[:row], raw[row + 1 :]])
        shift, scale = others.mean(0), others.std(0, correction=0)
        covariance = torch.cov(((others - shift) / scale).T)
        gap = (raw[row] - shift) / scale
        ridge = RIDGE[0] * covariance.diagonal().mean() * torch.eye(3, dtype=torch.float64)
        assert_close(found[row], (gap @ torch.linalg.solve(covariance + ridge, gap)).sqrt())


def test_unfitted_far_noise_is_none():
    assert not DistanceAwareNoise(3).fitted
    assert torch.equal(DistanceAwareNoise(3)(torch.zeros(4, 3)), torch.full((4,), -torch.inf))
    with pytest.raises(ValueError, match="the distance is not fitted: call fit"):
        DistanceAwareNoise(3).distance(torch.zeros(4, 3))
    model = build(Method("ml-cdn", far=0.0), 3, Task("classification", 2), 0)
    x = torch.randn(30, 3, generator=named_generator(0))
    fit(model, make_dataset(x, (x[:, 0] > 0).long(), model.task), TrainConfig(steps=3, n_evals=0))
    assert not model.far.fitted


def test_folds_have_as_many_centres_as_the_final_fit(monkeypatch):
    """From as many centres as the whole has, and at most a twentieth of a small table's rows is missing."""
    seen = []
    k_means = clusters.k_means

    def watched(u: torch.Tensor, count: int, seed: int) -> torch.Tensor:
        seen.append((len(u), count))
        return k_means(u, count, seed)

    monkeypatch.setattr(clusters, "k_means", watched)
    Distance(2).fit(torch.randn(100, 2, generator=named_generator(0)), named_generator(1))
    assert seen == 20 * [(95, 33)] + [(100, 33)]


def leaning(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of two clusters, each long in a direction of its own; and which cluster each is of."""
    g = named_generator(seed, "leaning")
    which = torch.randint(2, (rows,), generator=g)
    scale = torch.full((2, 70), 0.1)
    scale[0, 0] = scale[1, 1] = 2.0
    start = torch.zeros(2, 70)
    start[0, 2], start[1, 2] = 5.0, -5.0
    return (start[which] + scale[which] * torch.randn(rows, 70, generator=g)).double(), which


def test_distance_in_the_covariance_of_a_cluster_is_that_of_its_rows():
    """Against sums over rows and an inverse written out."""
    x, _ = leaning(400, 0)
    found = clusters.Clusters.fit(x, 3, True, 0)
    asked = leaning(20, 1)[0] + torch.randn(20, 70, generator=named_generator(2), dtype=torch.float64)
    outside = torch.rand(20, generator=named_generator(3), dtype=torch.float64)
    owner = torch.cdist(x, found.centres).argmin(1)
    shared = sum(torch.outer(v, v) for v in x - found.centres[owner]) / len(x)
    for row, beyond, distance in zip(asked, outside, found.distance(asked, outside), strict=True):
        k = int((row - found.centres).norm(dim=1).argmin())
        own = x[owner == k] - found.centres[k]
        shape = (sum(torch.outer(v, v) for v in own) + 20 * shared) / (len(own) + 20) + 0.1 * torch.eye(
            70, dtype=torch.float64
        )
        gap = row - found.centres[k]
        assert_close(distance, (gap @ torch.linalg.solve(shape, gap) + beyond * 70 / shape.trace()).sqrt())


def test_variation_of_another_cluster_is_far():
    """Steps of one length, along the direction in which the cluster's rows differ, and along the other's."""
    x, which = leaning(2000, 0)
    distance = Distance(70).double()
    distance.fit(x, named_generator(0))
    some = x[which == 0][:50]
    step = torch.zeros(70, dtype=torch.float64)
    step[1] = 3.0
    assert distance(some + step).min() > distance.quantiles[1]
    assert distance(some + step.roll(-1)).median() < distance.quantiles[1]


def test_rows_together_are_measured_as_one_by_one_and_under_a_trace():
    x, _ = leaning(500, 0)
    distance = Distance(70).double()
    distance.fit(x, named_generator(0))
    asked = leaning(60, 1)[0]
    together = distance(asked)
    assert_close(torch.cat([distance(row.unsqueeze(0)) for row in asked]), together)
    traced = make_fx(lambda rows: distance(rows))(asked)
    other = leaning(60, 2)[0]  # near to other centres
    assert_close(traced(other), distance(other))
    assert torch.autograd.gradcheck(distance, asked[:9].requires_grad_())


def test_covariances_are_loaded_as_they_were_saved():
    distance, again = Distance(70), Distance(70)
    distance.fit(leaning(500, 0)[0].float(), named_generator(0))
    again.load_state_dict(distance.state_dict())
    asked = leaning(60, 1)[0].float()
    assert len(again.precision_roots) and torch.equal(again(asked), distance(asked))


@pytest.mark.parametrize("mine,theirs", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_a_loaded_state_has_the_dtype_of_the_module(mine, theirs):
    distance, again = Distance(70), Distance(70).to(mine)
    distance.fit(leaning(500, 0)[0].float(), named_generator(0))
    again.load_state_dict({name: value.to(theirs) for name, value in distance.state_dict().items()})
    assert {value.dtype for value in again.buffers()} == {mine}
    asked = leaning(60, 1)[0]
    assert_close(again(asked.to(mine)).float(), distance(asked.float()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("estimator", [CompoundRegressor, CompoundClassifier])
def test_estimators_fit_one_distance_for_far_noise_and_detector(estimator, monkeypatch):
    calls = []
    fit_distance = Distance.fit
    monkeypatch.setattr(Distance, "fit", lambda self, *data: calls.append(self) or fit_distance(self, *data))
    x = blobs(120, 3).numpy()
    y = x[:, 0] if estimator is CompoundRegressor else (x[:, 0] > 0).astype(int)
    with_noise = estimator("ml-cdn", max_epochs=1, random_state=0).fit(x, y)
    assert len(calls) == 1 and with_noise.ood_detector_.distance is with_noise.model_.distance
    scores = with_noise.ood_score(x)
    assert (scores > with_noise.threshold_).mean() <= 0.05 and with_noise.is_ood(x + 100).all()
    without = estimator("map", max_epochs=1, random_state=0).fit(x, y)
    assert len(calls) == 2 and without.model_.distance is None
