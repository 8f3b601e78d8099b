"""Far noise: the distance, its quantiles, and what it promises far away."""

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from compound.models import Method, build
from compound.models.likelihoods import CategoricalLikelihood
from compound.ood import clusters
from compound.ood.noise import DistanceAwareNoise
from compound.ood.whitening import RIDGE
from compound.predictive import CategoricalPredictive
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
    far = DistanceAwareNoise(5).double()
    far.fit(x, named_generator(1))
    covariance = torch.cov(x.T)
    inverse = torch.linalg.inv(
        covariance + RIDGE[0] * covariance.diagonal().mean() * torch.eye(5, dtype=torch.float64)
    )
    values, vectors = torch.linalg.eigh(covariance)
    back = vectors.flip(1) * (values.flip(0) + RIDGE[0] * covariance.diagonal().mean()).sqrt()
    centres = far.centres @ back.T + x.mean(0)  # in the original coordinates
    y = blobs(20, 5, 3).double()
    gaps = y.unsqueeze(1) - centres
    naive = torch.einsum("bki,ij,bkj->bk", gaps, inverse, gaps).amin(-1).sqrt()
    assert_close(far.distance(y), naive, rtol=1e-9, atol=1e-9)


def test_wide_inputs_keep_leading_directions_and_lose_little():
    g = named_generator(2)
    low = torch.randn(3000, 12, generator=g) @ torch.randn(12, 300, generator=g)
    x = (low + 0.05 * torch.randn(3000, 300, generator=g)).double()
    far = DistanceAwareNoise(300).double()
    far.fit(x[:2000], named_generator(1))
    assert far.whiten.shape[1] < 40
    moved = x[2000:2500] + 0.5 * torch.randn(500, 300, generator=g, dtype=torch.float64)  # off the subspace
    assert far.distance(moved).min() > far.ramp[1] > far.distance(x[2500:]).quantile(0.97)
    ridge = RIDGE[1] * torch.cov(x[:2000].T).diagonal().mean()
    step = torch.randn(300, generator=g, dtype=torch.float64)
    step -= far.whiten @ torch.linalg.lstsq(far.whiten, step.unsqueeze(-1)).solution.squeeze(
        -1
    )  # outside all leading directions
    outside = far.distance((x.mean(0) + 1e3 * step).unsqueeze(0)).item() / (1e3 * step.norm().item())
    assert (
        abs(outside * ridge.sqrt() / far.residual_precision[far.centres.norm(dim=1).argmin()].sqrt() - 1)
        < 0.05
    )


@pytest.mark.parametrize("rows", [60, 400, 3000])
def test_the_99_percent_distance_holds_for_new_rows(rows):
    """Cross-fitted: about 1% of new rows lie beyond d99, where centres that know their rows would let 2 to 4% through."""
    shares = []
    for seed in range(8):
        far = DistanceAwareNoise(6)
        far.fit(blobs(rows, 6, seed), named_generator(seed))
        shares.append((far.distance(blobs(4000, 6, 100 + seed)) > far.ramp[1]).float().mean().item())
    share = sum(shares) / len(shares)
    assert share < 0.01 + 5 * math.sqrt(0.01 / (8 * rows)) + 0.006


def test_tensors_lie_as_they_will_be_loaded():
    far = DistanceAwareNoise(6)
    far.fit(blobs(200, 6), named_generator(0))
    assert all(
        value.is_contiguous() for value in far.buffers()
    )  # products of another layout differ in the last bit


def test_a_step_in_a_constant_column_is_far():
    x = blobs(400, 4)
    x[:, 2] = 7.0
    far = DistanceAwareNoise(4)
    far.fit(x, named_generator(0))
    moved = x[:50].clone()
    moved[:, 2] += 3.0
    assert far.distance(moved).min() > far.ramp[1]


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


def test_however_gentle_the_ramp_what_is_far_enough_is_in_full_doubt():
    far = DistanceAwareNoise(6)
    far.fit(blobs(500, 6), named_generator(0))
    far.set_ramp(-8.0, 0.5, 14.0)
    d50, d99, edge, *_ = far.ramp
    assert_close(
        far.at(torch.stack([d50, d99, edge])),
        torch.stack([d50 * 0 - 8.0, d50 * 0 - 7.5, -8 + 0.5 * (edge - d50) / (d99 - d50)]),
    )
    middle = (edge + 2.9 * d99) / 2
    assert_close(
        far.at(torch.stack([middle, 3 * d99])), torch.tensor([8 - 6 * math.log(2), 8.0]), rtol=1e-4, atol=1e-4
    )


def test_doubt_is_a_mixture_with_all_classes_alike():
    logs = torch.log_softmax(
        3 * torch.randn(4, 3, 50, 5, generator=named_generator(3), dtype=torch.float64), -1
    )
    plain, odds = CategoricalPredictive.from_draws(logs), torch.linspace(-20, 14, 50, dtype=torch.float64)
    y = torch.arange(50) % 5
    found = plain.mix_with_uniform(odds)
    for row in range(50):
        share = 1 / (1 + math.exp(-float(odds[row])))
        mixed = [(1 - share) * float(p) + share / 5 for p in plain.probs[row]]
        assert_close(found.probs[row].tolist(), mixed)
        assert_close(float(found.total[row]), -sum(p * math.log(p) for p in mixed))
        assert_close(float(found.log_prob(y)[row]), math.log(mixed[y[row]]))
    assert torch.equal(found.label, plain.label)
    assert_close(
        found.aleatoric, torch.sigmoid(-odds) * plain.aleatoric
    )  # as far as the network is believed; the rest is epistemic
    assert (found.posterior >= plain.posterior).all() and (found.posterior.diff()[-10:] != 0).all()


def test_scores_of_members_are_those_of_their_own_answers():
    likelihood = CategoricalLikelihood(5, "sample", 2)
    logits = torch.randn(
        3, 4, 2, 40, 5, generator=named_generator(4), dtype=torch.float64
    )  # (members, outer, inner, rows, classes)
    y, t = torch.arange(40) % 5, torch.linspace(-20, 14, 40, dtype=torch.float64)
    for loud in (None, t):
        draws = (logits, torch.zeros_like(logits))
        each, together = likelihood.under_noise(draws, y)(loud)
        assert_close(together, likelihood.predictive(draws, loud).log_prob(y))
        for k in range(3):
            one = logits[k : k + 1]
            assert_close(each[k], likelihood.predictive((one, torch.zeros_like(one)), loud).log_prob(y))


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
        beyond = (model.far.distance(x + middle * direction) > factor * model.far.ramp[1]).unsqueeze(-1)
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    return x + high * direction


@pytest.mark.parametrize("name", ["ml-cdn", "vb-cdn"])
@pytest.mark.parametrize("factor", [3, 10, 100])
def test_classes_far_away_are_doubtful(classifier, name, factor):
    models, x, _ = classifier
    model = models[name]
    ramp, moved_x = model.far.ramp, moved(model, x[:100], factor, factor)
    p = model.predict(moved_x, 100, named_generator(1))
    assert p.entropy().min() >= 0.85 * math.log(4)
    model.far.ramp = torch.tensor([0.0, 1.0, 1.0, -20.0, 0.0, -20.0])
    silent = model.predict(moved_x, 100, named_generator(1))
    model.far.ramp = ramp
    assert_close(
        p.aleatoric, torch.sigmoid(-model.far(moved_x)) * silent.aleatoric, rtol=1e-3, atol=1e-5
    )  # the rest is epistemic
    assert (p.posterior >= silent.posterior).all()


@pytest.mark.parametrize("name", ["ml-cdn", "vb-cdn"])
def test_far_noise_costs_no_more_than_its_budget(classifier, name):
    models, x, y = classifier
    model = models[name]
    with_noise = model.predict(x[:200], 200, named_generator(2))
    ramp, model.far.ramp = model.far.ramp, torch.tensor([0.0, 1.0, 1.0, -20.0, 0.0, -20.0])
    without = model.predict(x[:200], 200, named_generator(2))
    model.far.ramp = ramp
    cost = (without.log_prob(y[:200]) - with_noise.log_prob(y[:200])).mean()
    assert cost <= 0.003 + 0.002  # other draws than those the ramp was chosen with
    assert torch.equal(with_noise.label, without.label)


@pytest.mark.parametrize("name", ["ml-cdn", "vb-cdn"])
def test_targets_far_away_have_the_spread_that_was_asked_for(name):
    g = named_generator(5)
    x = torch.randn(500, 3, generator=g)
    y = 4 * (x[:, :1].sin() + 0.1 * torch.randn(500, 1, generator=g))
    task = Task("regression", 1)
    model = build(Method(name, widths=(20,), hyper=(10,), members=1, far=3.0), 3, task, 0)
    fit(model, make_dataset(x, y, task, (torch.arange(500) >= 100).float()), TrainConfig(steps=500))
    own = y.std()
    for factor in (3, 30, 100):
        p = model.predict(moved(model, x[:50], factor, factor), 50, named_generator(1))
        assert p.std.min() >= 1.5 * own
    start, direction = x[:20], torch.randn(20, 3, generator=named_generator(7))
    scale = (moved(model, start, 3, 8) - start).norm(dim=-1, keepdim=True) / direction.norm(
        dim=-1, keepdim=True
    )
    path = torch.stack(
        [
            model.predict(start + u * scale * direction, 50, named_generator(1)).posterior.squeeze(-1)
            for u in torch.linspace(0, 1, 12)
        ]
    )
    assert (path[1:] >= 0.7 * path[:-1] - 0.02 * own**2).float().mean() > 0.97
    assert (path[-1] >= 0.98 * path[0]).all() and (path[-1] > 2 * path[0]).float().mean() > 0.8


def test_rows_are_measured_as_if_they_were_new(monkeypatch):
    """Five rows, one centre: each from the mean of the others, by their covariance, in units that they would have standardised."""
    monkeypatch.setattr(
        clusters, "k_means", lambda u, count, seed: u.mean(0, keepdim=True)
    )  # exact, where mini-batches are not
    raw = blobs(5, 3).double()
    x = (raw - raw.mean(0)) / raw.std(0, correction=0)
    found = DistanceAwareNoise(3).double().fit(x, named_generator(0))
    for row in range(5):
        others = torch.cat([raw[:row], raw[row + 1 :]])
        shift, scale = others.mean(0), others.std(0, correction=0)
        covariance = torch.cov(((others - shift) / scale).T)
        gap = (raw[row] - shift) / scale
        ridge = RIDGE[0] * covariance.diagonal().mean() * torch.eye(3, dtype=torch.float64)
        assert_close(found[row], (gap @ torch.linalg.solve(covariance + ridge, gap)).sqrt())


def test_unfitted_far_noise_is_silent():
    assert not DistanceAwareNoise(3).fitted
    assert torch.equal(DistanceAwareNoise(3)(torch.zeros(4, 3)), torch.full((4,), -torch.inf))
    with pytest.raises(ValueError, match="far noise knows no rows yet"):
        DistanceAwareNoise(3).distance(torch.zeros(4, 3))
    model = build(Method("ml-cdn", far=0.0), 3, Task("classification", 2), 0)
    x = torch.randn(30, 3, generator=named_generator(0))
    fit(model, make_dataset(x, (x[:, 0] > 0).long(), model.task), TrainConfig(steps=3, n_evals=0))
    assert not model.far.fitted


def test_folds_are_measured_as_new_rows_will_be(monkeypatch):
    """From as many centres as the whole has, and at most a twentieth of a small table's rows is missing."""
    seen = []
    k_means = clusters.k_means

    def watched(u: torch.Tensor, count: int, seed: int) -> torch.Tensor:
        seen.append((len(u), count))
        return k_means(u, count, seed)

    monkeypatch.setattr(clusters, "k_means", watched)
    DistanceAwareNoise(2).fit(torch.randn(100, 2, generator=named_generator(0)), named_generator(1))
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


def test_distance_in_the_shape_of_a_cluster_is_that_of_its_own_rows():
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


def test_what_only_another_cluster_does_is_far():
    """A step of one length, along the direction in which the cluster's own rows differ, and along that of the other's."""
    x, which = leaning(2000, 0)
    far = DistanceAwareNoise(70).double()
    far.fit(x, named_generator(0))
    some = x[which == 0][:50]
    step = torch.zeros(70, dtype=torch.float64)
    step[1] = 3.0
    assert far.distance(some + step).min() > far.ramp[1]
    assert far.distance(some + step.roll(-1)).median() < far.ramp[1]


def test_rows_together_are_measured_as_one_by_one_and_under_a_trace():
    x, _ = leaning(500, 0)
    far = DistanceAwareNoise(70).double()
    far.fit(x, named_generator(0))
    asked = leaning(60, 1)[0]
    together = far.distance(asked)
    assert_close(torch.cat([far.distance(row.unsqueeze(0)) for row in asked]), together)
    traced = make_fx(lambda rows: far.distance(rows))(asked)
    other = leaning(60, 2)[0]  # near to other centres
    assert_close(traced(other), far.distance(other))
    assert torch.autograd.gradcheck(far.distance, asked[:9].requires_grad_())


def test_shapes_are_loaded_as_they_were_saved():
    far, again = DistanceAwareNoise(70), DistanceAwareNoise(70)
    far.fit(leaning(500, 0)[0].float(), named_generator(0))
    again.load_state_dict(far.state_dict())
    asked = leaning(60, 1)[0].float()
    assert len(again.precision_roots) and torch.equal(again.distance(asked), far.distance(asked))


@pytest.mark.parametrize("mine,theirs", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_a_loaded_state_has_the_dtype_of_the_module(mine, theirs):
    far, again = DistanceAwareNoise(70), DistanceAwareNoise(70).to(mine)
    far.fit(leaning(500, 0)[0].float(), named_generator(0))
    again.load_state_dict({name: value.to(theirs) for name, value in far.state_dict().items()})
    assert {value.dtype for value in again.buffers()} == {mine}
    asked = leaning(60, 1)[0]
    assert_close(again.distance(asked.to(mine)).float(), far.distance(asked.float()), rtol=1e-4, atol=1e-4)


def test_a_file_without_shapes_is_measured_without_them():
    far = DistanceAwareNoise(70).double()
    far.fit(leaning(500, 0)[0], named_generator(0))
    old = {
        name: value
        for name, value in far.state_dict().items()
        if name not in ("precision_roots", "residual_precision")
    }
    far.load_state_dict(old)
    asked = leaning(20, 1)[0]
    u, outside = far.whitening(asked)
    assert_close(far.distance(asked), (torch.cdist(u, far.centres).amin(1).square() + outside).sqrt())
