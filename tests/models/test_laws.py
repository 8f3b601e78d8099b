"""Laws that every registered method obeys, from one table. A method without a row here fails the suite."""

import copy
import math
import warnings
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import limits
import pytest
import torch
from oracles import floored
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from compound.models import METHODS, Method, build
from compound.models.files import load_model, save_model
from compound.ops.clamp import LIMIT
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import Batch, Task, make_dataset

CLASSES, TARGETS = Task("classification", 3), Task("regression", 2)
SMALL = {"widths": (8,)}
HYPER = SMALL | {"hyper": (4,)}


class Row(NamedTuple):
    """What the laws need to know of a method."""

    cases: list[dict]  # options of the small models the laws are tried on
    random: bool = True  # answers depend on the generator
    prior: bool = True  # part of the loss is divided by the number of rows
    learns: dict = {}  # options for the two problems to be learnt  # noqa: RUF012
    exact: dict = {}  # options under which the loss is linear in one over the number of rows  # noqa: RUF012


TABLE: dict[str, Row] = {
    "ml-cdn": Row(
        [
            HYPER,
            HYPER | {"members": 3, "samples": 3},
            HYPER | {"widths": (6, 5), "parametrization": "paper", "last_layer": "sample"},
        ],
        prior=False,
        learns={"hyper": (10,), "members": 1},
    ),
    "vb-cdn": Row(
        [
            HYPER,
            HYPER | {"members": 2, "samples": 3, "basis": "vmg"},
            HYPER | {"objective": "official", "samples": 2, "basis": "map"},
        ],
        learns={"hyper": (10,), "members": 1},
    ),
    "mnf": Row(
        [
            SMALL | {"flow_hidden": 5},
            {"widths": (6, 5), "flow_hidden": 4, "groups": 3, "samples": 2, "variance": "rows"},
            SMALL | {"flows_q": 0, "flows_r": 1, "flow_hidden": 3, "anneal": 0.5, "prior": 0.5},
        ],
        learns={"groups": 16},
    ),
    "map": Row([SMALL, {"widths": (6, 5), "variance": "rows"}], random=False),
    "bnn-lv": Row(
        [
            SMALL,
            {"widths": (6, 5), "alpha": 0.0, "samples": 3, "latents": 2},
            SMALL | {"alpha": 1.0, "noise": 0.5, "latent_variance": 2.0},
        ],
        learns={"samples": 5},
        exact={"alpha": 0.0},
    ),
    "laplace": Row(
        [
            SMALL,
            {"widths": (6, 5), "damping": "factored", "predictive": "sample"},
            {"widths": (6, 5), "subset": "last", "structure": "full", "noise": 0.5},
        ],
        learns={"precision": 3.0},
    ),
    "deep-ensemble": Row(
        [
            SMALL,
            {"widths": (6, 5), "members": 3, "variance": "one", "adversarial": 0.01},
            SMALL | {"members": 1, "adversarial": 0.05},
        ],
        random=False,
        prior=False,
    ),
    "dpn": Row(
        [
            SMALL,
            {"widths": (6, 5), "smoothing": 0.1, "cross_entropy": 1.0, "concentration": 50.0},
            SMALL | {"divergence": "reverse"},
        ],
        random=False,
        prior=False,
        learns={"divergence": "reverse"},
    ),
    "vib": Row(
        [
            SMALL,
            {"widths": (6, 5), "latent": 2, "samples": 3},
            SMALL | {"latent": 4, "beta": 0.1, "noise": 0.5},
        ],
        prior=False,
    ),
    "vmg": Row(
        [
            SMALL,
            {"widths": (6, 5), "samples": 3, "prior": "scaled"},
            SMALL | {"noise": 0.5, "log_variance": -1.0},
        ]
    ),
    "bbb": Row(
        [SMALL, {"widths": (6, 5), "samples": 3, "prior": "scaled"}, SMALL | {"noise": 0.5, "log_std": -1.0}]
    ),
    "mdn": Row(
        [
            SMALL,
            {"widths": (6, 5), "components": 3},
            SMALL | {"components": 1},
            SMALL | {"components": 2, "experts": True},
        ],
        random=False,
        prior=False,
    ),
    "temperature": Row([SMALL, {"widths": (6, 5), "variance": "rows"}, SMALL | {"noise": 0.5}], random=False),
    "mc-dropout": Row(
        [
            SMALL | {"length_scale": 0.1},
            {"widths": (6, 5), "length_scale": 1.0, "input_rate": 0.1, "variance": "rows"},
            SMALL | {"length_scale": 0.1, "rate": 0.2, "noise": 0.5},
        ],
        learns={"rate": 0.01},
    ),
    "noisy-kfac": Row(
        [
            SMALL,
            {
                "widths": (6, 5),
                "damping": "factored",
                "velocity": "mean",
                "samples": 3,
                "cache": False,
                "stats_every": 4,
            },
            SMALL | {"lam": 0.1, "noise": 0.5, "kl_clip": 0.0},
        ],
    ),
    "noisy-adam": Row(
        [
            SMALL,
            {"widths": (6, 5), "velocity": "mean", "samples": 3, "stats_every": 4},
            SMALL | {"lam": 0.1, "noise": 0.5, "kl_clip": 0.0},
        ],
        learns={"lam": 0.1},
    ),
    "hmc": Row(
        [
            SMALL | {"draws": 8, "members": 2, "warmup": 8, "leapfrog": 3},
            {"widths": (6, 5), "draws": 3, "members": 1, "warmup": 4, "leapfrog": 2, "noise": 0.5},
            SMALL | {"draws": 5, "members": 3, "warmup": 0, "leapfrog": 1, "precision": 3.0},
        ],
        random=False,
        learns={"draws": 20, "members": 2, "warmup": 40, "leapfrog": 10},
    ),
    "bayes-hypernet": Row(
        [
            SMALL | {"flow_hidden": 5},
            {"widths": (6, 5), "flow_hidden": 4, "samples": 2, "variance": "rows", "prior": 0.5},
            SMALL | {"flows": 0, "noise": 0.5},
        ]
    ),
    "implicit": Row(
        [
            SMALL | {"latent": 3, "hyper": 4},
            {"widths": (6, 5), "latent": 2, "hyper": 3, "samples": 2, "variance": "rows", "prior": 0.5},
            SMALL | {"samples": 3, "noise": 0.5},
        ]
    ),
    "hypernet": Row(
        [
            HYPER,
            {"widths": (6, 5), "hyper": (4, 3), "variance": "rows", "precision": 1.0},
            HYPER | {"noise": 0.5, "precision": 0.5},
        ],
        random=False,
        exact={"precision": 1.0},
    ),
    "pbp": Row([SMALL, {"widths": (6, 5)}], random=False, prior=False),
}
CASES = [
    pytest.param(
        name, options, task, id=f"{task.kind}-{name}-{i}", marks=pytest.mark.xdist_group(name)
    )  # one worker, so that fits are shared
    for task in (CLASSES, TARGETS)
    for name, row in TABLE.items()
    if task.kind in METHODS[name].kinds
    for i, options in enumerate(row.cases)
]
CLASSIFIERS = [name for name, method in METHODS.items() if "classification" in method.kinds]
ROUNDING = 32 * torch.finfo(torch.float32).eps  # of a sum of 64 terms of size 1, in whatever order
FAST = TrainConfig(steps=10, batch_size=16, lr=1e-2, n_evals=2)


def test_every_method_has_its_row():
    assert set(TABLE) == set(METHODS)


def data_of(task: Task, rows: int = 40, features: int = 3, seed: int = 0, members: int = 1) -> Batch:
    g = named_generator(seed, "data")
    x = torch.randn(rows, features, generator=g)
    y = (
        torch.randint(task.size, (rows,), generator=g)
        if task.kind == "classification"
        else torch.randn(rows, task.size, generator=g)
    )
    weight = torch.ones(members, rows)
    weight[:, : rows // 5] = 0
    return make_dataset(x, y, task, weight, x_ood=3 + torch.rand(rows, features, generator=g))


def fitted(name: str, options: dict, task: Task, seed: int = 0):
    model = build(Method(name, **options), 3, task, seed)
    data = data_of(task, members=model.members)
    fit(model, data, FAST, seed)
    return model, data


@cache
def _shared(name: str, options: str, task: Task):
    return fitted(name, next(case for case in TABLE[name].cases if repr(case) == options), task)


def shared(name: str, options: dict, task: Task):
    """A fitted model that several laws look at and none changes."""
    return _shared(name, repr(options), task)


def numbers(predictive) -> list[torch.Tensor]:
    values = [predictive.component, predictive.mixing, predictive.posterior]
    return (
        [*values, predictive.probs]
        if hasattr(predictive, "probs")
        else [*values, predictive.means, predictive.variances]
    )


@pytest.mark.parametrize(("name", "options", "task"), CASES)
class TestLaws:
    def test_equal_seeds_give_equal_bits_and_leave_the_global_stream_alone(self, name, options, task):
        before = torch.get_rng_state()
        (a, data), (b, _) = fitted(name, options, task), fitted(name, options, task)
        for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True):
            assert torch.equal(p, q)
        for p, q in zip(
            numbers(a.predict(data.x, named_generator(1), 4)),
            numbers(b.predict(data.x, named_generator(1), 4)),
            strict=True,
        ):
            assert torch.equal(p, q)
        assert torch.equal(before, torch.get_rng_state())
        other = fitted(name, options, task, seed=1)[0]
        assert any(not torch.equal(p, q) for p, q in zip(a.parameters(), other.parameters(), strict=True))
        same = torch.equal(
            a.predict(data.x, named_generator(1), 4).total, a.predict(data.x, named_generator(2), 4).total
        )
        assert same != TABLE[name].random

    def test_a_row_does_not_know_its_neighbours(self, name, options, task):
        model, data = shared(name, options, task)
        together = model.predict(data.x, named_generator(1), 4, 3)
        alone = model.predict(data.x[5:6], named_generator(1), 4, 3)
        chunks = model.predict(data.x, named_generator(1), 4, 3, memory=1)  # one row at a time
        for whole_, one, parts in zip(numbers(together), numbers(alone), numbers(chunks), strict=True):
            axis = 1 if whole_.ndim == 3 else 0
            slack = ROUNDING * max(1.0, float(whole_.abs().max()))
            assert_close(whole_.narrow(axis, 5, 1), one, rtol=0, atol=slack)
            assert_close(whole_, parts, rtol=0, atol=slack)

    def test_many_draws_of_many_rows_are_those_of_one_row(self, name, options, task):
        """Draws are computed in blocks whose size depends on the rows; the noise of a draw does not."""
        model, _ = shared(name, options, task)
        x = torch.randn(1500, 3, generator=named_generator(9))
        together, alone = (
            model.predict(x, named_generator(1), 12),
            model.predict(x[700:701], named_generator(1), 12),
        )
        assert_close(together.total[700:701], alone.total, rtol=1e-5, atol=1e-6)

    def test_parts_are_not_negative_and_add_up(self, name, options, task):
        model, data = shared(name, options, task)
        for x in (data.x, 100 * data.x):
            p = model.predict(x, named_generator(1), 4)
            for part in (p.component, p.mixing, p.posterior):
                assert (part >= 0).all()
            total = p.entropy() if task.kind == "classification" else p.variance
            assert_close(p.aleatoric + p.epistemic, total, rtol=2e-5, atol=1e-6)

    def test_shares_are_those_it_says_it_has(self, name, options, task):
        model, data = shared(name, options, task)
        p = model.predict(3 * data.x, named_generator(1), 10)
        for part in ("component", "mixing", "posterior"):
            said = part in METHODS[name].components
            assert said or getattr(p, part).max() <= ROUNDING * p.total.max()
            if options is TABLE[name].cases[0]:
                assert not said or getattr(p, part).max() > ROUNDING * p.total.max()

    def test_answers_have_gradients_of_their_inputs(self, name, options, task):
        """Attacks follow them. Along a random direction they are what differences say."""
        model, data = shared(name, options, task)
        model = copy.deepcopy(model).double()
        # beside the training rows: some of them are centres of far noise, and a distance has a kink at 0
        x = data.x.double() + 0.01 * torch.randn(
            data.x.shape, generator=named_generator(3), dtype=torch.float64
        )
        y = data.y if task.kind == "classification" else data.y.double()
        step = 1e-6 * torch.randn(x.shape, generator=named_generator(2), dtype=torch.float64)

        def score(x):
            return model.predict_chunk(x, 4, 3, named_generator(1)).log_prob(y)  # (rows,)

        (slope,) = torch.autograd.grad(score(x.requires_grad_()).sum(), x)
        found = (score(x + step) - score(x - step)).detach() / 2
        wrong = (found - (slope * step).sum(1)).abs() > 1e-4 * (slope * step).abs().sum(1) + 1e-12
        assert wrong.sum() <= 1  # a kink may lie between

    def test_save_and_load_give_equal_bits(self, name, options, task, tmp_path):
        model, data = shared(name, options, task)
        save_model(model, tmp_path / "model")
        again = load_model(tmp_path / "model")
        assert type(again) is type(model) and again.config == model.config
        for p, q in zip(
            numbers(model.predict(data.x, named_generator(1), 4)),
            numbers(again.predict(data.x, named_generator(1), 4)),
            strict=True,
        ):
            assert torch.equal(p, q)

    def test_a_stopped_fit_goes_on_where_it_was(self, name, options, task, tmp_path):
        class Stop(Exception):
            pass

        def stop(callback):
            if callback.step >= 6:
                raise Stop

        straight, data = shared(name, options, task)
        model = build(Method(name, **options), 3, task, 0)
        with pytest.raises(Stop):
            fit(model, data, FAST, 0, tmp_path / "checkpoint", save_every=0.0, callback=stop)
        resumed = build(Method(name, **options), 3, task, 0)
        fit(resumed, data, FAST, 0, tmp_path / "checkpoint", save_every=0.0)
        for p, q in zip(straight.state_dict().values(), resumed.state_dict().values(), strict=True):
            assert torch.equal(p, q)

    def test_numbers_stay_numbers(self, name, options, task):
        model, data = shared(name, options, task)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for scale in (1e4, 1e8, 1e12):
                p = model.predict(scale * data.x, named_generator(1), 4)
                assert all(bool(torch.isfinite(value).all()) for value in numbers(p))
                assert bool(torch.isfinite(p.log_prob(data.y)).all())
            constant = replace(data, x=torch.full_like(data.x, 3.0))
            wild = replace(data, x=1e12 * data.x, x_ood=-1e12 * data.x)
            for odd in (constant, wild):
                fresh = build(Method(name, **options), 3, task, 0)
                fit(fresh, odd, FAST, 0)
                assert all(
                    bool(torch.isfinite(value).all())
                    for value in numbers(fresh.predict(odd.x, named_generator(1), 4))
                )

    def test_wild_rows_teach_what_saturated_ones_do(self, name, options, task):
        wild = data_of(task)
        wild = replace(wild, x=1e6 * wild.x, x_ood=-1e6 * wild.x, weight=None)
        clamped = replace(wild, x=wild.x.clamp(-LIMIT, LIMIT), x_ood=wild.x_ood.clamp(-LIMIT, LIMIT))
        model = build(Method(name, **options), 3, task, 0)
        model.on_fit_start(clamped, named_generator(0))
        a, b = (
            model.loss(batch, [named_generator(k, "noise") for k in range(model.members)])
            for batch in (wild, clamped)
        )
        assert torch.isfinite(a.total) and torch.equal(a.total, b.total)

    def test_smallest_data(self, name, options, task):
        y = torch.zeros(1, dtype=torch.long) if task.kind == "classification" else torch.ones(1, task.size)
        one = make_dataset(torch.ones(1, 1), y, task, x_ood=torch.zeros(1, 1))
        model = build(Method(name, **options), 1, task, 0)
        fit(model, one, FAST, 0)
        p = model.predict(torch.tensor([[1.0], [-50.0]]), named_generator(1), 4)
        assert all(bool(torch.isfinite(value).all()) for value in numbers(p))

    def test_replicated_rows_change_only_what_is_divided_by_their_number(self, name, options, task):
        model = build(Method(name, **options | TABLE[name].exact), 3, task, 0).double()
        data = data_of(task)
        y = data.y if task.kind == "classification" else data.y.double()
        data = replace(data, x=data.x.double(), y=y, x_ood=data.x_ood.double(), weight=None)
        model.on_fit_start(data, named_generator(0))
        once, twice, often = (
            model.loss(
                replace(data, size=k * float(data.size)),
                [named_generator(k, "noise") for k in range(model.members)],
            )
            for k in (1, 2, 4)
        )
        assert_close(once.nll, twice.nll)
        falls = once.total - twice.total
        assert_close(falls, 2 * (twice.total - often.total), rtol=1e-6, atol=1e-10)
        assert bool(falls.abs() > 1e-8) == TABLE[name].prior

    def test_limit_is_the_plain_network(self, name, options, task):
        if options is not TABLE[name].cases[0]:
            return  # limits bring their own options
        pair = getattr(limits, name.replace("-", "_"))(task)
        if pair is None:
            return  # no such limit on this task: said in limits.py
        model, plain = map(floored, pair)
        x = data_of(task).x.to(next(plain.parameters()).dtype)
        y = data_of(task).y
        ours, reference = model.predict(x, named_generator(1), 4), plain.predict(x, named_generator(1), 1, 1)
        assert_close(ours.log_prob(y), reference.log_prob(y), rtol=1e-4, atol=1e-5)
        assert_close(ours.total, reference.total, rtol=1e-4, atol=1e-5)

    def test_bad_questions_are_refused_with_the_argument_named(self, name, options, task):
        model, data = shared(name, options, task)
        for x, words in (
            (torch.full((2, 3), math.nan), "x holds nan at row 0, column 0"),
            (torch.full((2, 3), math.inf), "x holds inf"),
            (torch.zeros(2, 4), r"x has shape \(2, 4\)"),
            (torch.zeros(3), "x has shape"),
            (torch.zeros(0, 3), "x has no rows"),
        ):
            with pytest.raises(ValueError, match=words):
                model.predict(x, named_generator(0), 2)
        with pytest.raises(ValueError, match="n_samples is 0: ask for at least one draw"):
            model.predict(data.x, named_generator(0), 0)
        with pytest.raises(ValueError, match="n_inner is 0: ask for at least one draw"):
            model.predict(data.x, named_generator(0), 4, 0)


class LiveBytes(TorchDispatchMode):
    """The peak of the memory that torch operations inside the context allocate."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        storages = [leaf.untyped_storage() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.live |= {storage.data_ptr(): (StorageWeakRef(storage), storage.nbytes()) for storage in storages}
        self.live = {key: entry for key, entry in self.live.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return out


@pytest.mark.parametrize(
    ("name", "task"),
    [pytest.param(name, Task("classification", 10), id=f"{name}-classes") for name in CLASSIFIERS]
    + [pytest.param(name, Task("regression", 2), id=f"{name}-targets") for name in METHODS],
)
def test_floats_per_row_bound_the_memory_of_a_prediction(name, task):
    rows, inputs = 2048, 100  # from 2048 rows on draws are computed one by one
    model = floored(build(name, inputs, task))
    x = torch.randn(rows, inputs, generator=named_generator(0))
    for counts in ((1, 1), (3, 4)):
        with torch.no_grad(), LiveBytes() as memory:
            model.predict_chunk(x, *counts, named_generator(1))
        assert memory.peak < 4 * rows * model.floats_per_row(*counts) < 40 * memory.peak


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_learns_a_separable_problem(name):
    g = named_generator(3)
    y = torch.randint(3, (300,), generator=g)
    centres = torch.tensor([[2.0, 0.0], [-2.0, 1.0], [0.0, -3.0]])
    x = centres[y] + 0.3 * torch.randn(300, 2, generator=g)
    model = build(Method(name, widths=(20,), **TABLE[name].learns), 2, CLASSES, 0)
    outside = 10 * torch.randn(300, 2, generator=g)
    fit(
        model,
        make_dataset(x, y, CLASSES, x_ood=outside),
        TrainConfig(steps=400, batch_size=100, lr=1e-2, final_lr_ratio=0.0),
        0,
    )
    p = model.predict(x, named_generator(1), 10)
    assert (p.label == y).float().mean() >= 0.99
    assert -p.log_prob(y).mean() < 0.1


@pytest.mark.parametrize("name", METHODS)
def test_learns_a_curve_and_its_noise(name):
    g = named_generator(4)
    x = torch.randn(400, 1, generator=g)
    y = (2 * x).sin() + 0.1 * torch.randn(400, 1, generator=g)
    task = Task("regression", 1)
    model = build(Method(name, widths=(30,), **TABLE[name].learns), 1, task, 0)
    outside = 8 * torch.randn(400, 1, generator=g).sign()
    fit(model, make_dataset(x, y, task, x_ood=outside), TrainConfig(steps=1500, batch_size=100), 0)
    x = torch.linspace(-1.8, 1.8, 100).unsqueeze(-1)  # where the data are dense
    p = model.predict(x, named_generator(1), 10)
    assert (p.mean - (2 * x).sin()).square().mean().sqrt() < 0.08
    assert 0.07 < p.std.median() < 0.2


@pytest.mark.parametrize(
    ("x", "y", "task", "words"),
    [
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), CLASSES, "x has no rows"),
        (torch.zeros(2, 3), torch.tensor([0, 7]), CLASSES, "y holds label 7"),
        (torch.zeros(2, 3), torch.tensor([0, -1]), CLASSES, "y holds label -1"),
        (torch.zeros(2, 3), torch.zeros(2), CLASSES, "y has dtype"),
        (torch.zeros(2, 3), torch.zeros(2), TARGETS, r"y has shape \(2,\)"),
        (torch.zeros(2, 3), torch.full((2, 2), math.nan), TARGETS, "y holds nan"),
        (torch.full((2, 3), math.nan), torch.zeros(2, 2), TARGETS, "x holds nan"),
        (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 2), TARGETS, "x has dtype"),
    ],
)
def test_bad_data_are_refused_before_any_work(x, y, task, words):
    with pytest.raises(ValueError, match=words):
        make_dataset(x, y, task)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lam": -1.0}, "lam is -1.0"),
        ({"samples": 0}, "samples"),
        ({"parametrization": "other"}, "parametrization is 'other'"),
        ({"basis": "vmg"}, "needs vb-cdn"),
        ({"last_layer": "half"}, "last_layer is 'half'"),
        ({"far": -1.0}, "far is -1.0"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        build(Method("ml-cdn", **options), 3, CLASSES)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="choose one of ml-cdn"):
        Method("mlcdn")
    with pytest.raises(ValueError, match="has no option 'lamda'"):
        Method("ml-cdn", lamda=1)
