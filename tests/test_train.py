"""Training: exact resume, clipping, batches, hold-out, early stopping, learning rate, divergence."""

import copy
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

import compound
from compound import CompoundRegressor
from compound.io.bundle import digest
from compound.io.checkpoint_file import load_checkpoint, save_checkpoint, unpack
from compound.models.base import Loss, Model
from compound.ops.gaussian_noise import standard_normal
from compound.predictive import GaussianPredictive, Predictive
from compound.random import member_seed, named_generator
from compound.train import loop, progress
from compound.train.config import TrainConfig, default_train_config
from compound.train.gradients import clip_gradients, flush_denormals, make_clipper
from compound.train.history import COLUMNS, History
from compound.train.holdout import holdout_weights, last_of_class, stratified_sample
from compound.train.loop import fit
from compound.train.progress import FitProgress, progress_bar
from compound.types import Batch, Task, make_dataset

TASK = Task("regression", 1)


@dataclass(frozen=True)
class Config:
    noise: float = 0.1


class Small(Model):
    """A hidden layer with input noise and stacked members; records batches and weights."""

    def __init__(
        self,
        members: int = 1,
        config: Config = Config(),  # noqa: B008
        dtype: torch.dtype = torch.float32,
        pause: float = 0.0,
    ):
        super().__init__()
        self.inputs, self.task, self.members, self.config, self.pause = 3, TASK, members, config, pause
        streams = [named_generator(member_seed(9, k), "weights") for k in range(members)]
        like = torch.zeros(1, dtype=dtype)
        self.first = nn.Parameter(0.5 * standard_normal(streams, (members, 3, 8), like))
        self.last = nn.Parameter(0.5 * standard_normal(streams, (members, 8, 1), like))
        self.log_noise = nn.Parameter(torch.zeros(members, dtype=dtype))
        self.register_buffer("centre", torch.zeros(1, dtype=dtype))
        self.register_buffer("far", torch.zeros(0, dtype=dtype))
        self.batches: list[Batch] = []
        self.weights: list[list[Tensor]] = []  # before each loss
        self.stop_at = -1

    def on_fit_start(self, data: Batch, generator: torch.Generator) -> None:
        self.centre.copy_(data.x.mean() + torch.rand(1, generator=generator))

    def on_fit_end(self, data: Batch, generator: torch.Generator) -> None:
        self.far = (
            data.x[: 4 + len(data) % 3, 0] + self.last.detach().sum() + torch.rand(1, generator=generator)
        )

    def _load_from_state_dict(self, state, prefix, *others):
        self.far = torch.empty_like(state[prefix + "far"])
        super()._load_from_state_dict(state, prefix, *others)

    def lr_multipliers(self) -> dict[str, float]:
        return {"log_noise": 5.0}

    def values(self, x: Tensor, y: Tensor) -> Tensor:  # (members, rows)
        mean = ((x - self.centre) @ self.first).tanh() @ self.last
        return 0.5 * (
            (y - mean).square().squeeze(-1) * (-2 * self.log_noise).exp().unsqueeze(-1)
        ) + self.log_noise.unsqueeze(-1)

    def loss(self, batch: Batch, generator) -> Loss:
        if len(self.batches) == self.stop_at:
            raise InterruptedError
        self.batches.append(batch)
        self.weights.append([p.detach().clone() for p in self.parameters()])
        time.sleep(self.pause)
        noise = standard_normal(generator, (self.members, len(batch), 3), batch.x)
        nll = weighted_mean(self.values(batch.x + self.config.noise * noise, batch.y), batch.weight)
        kl = self.first.square().mean((1, 2))
        return Loss((nll + 0.01 * kl).sum(), nll.detach(), kl.detach())

    def nll(self, batch: Batch, n_samples: int, generator: torch.Generator) -> Tensor:
        with torch.no_grad():
            return weighted_mean(
                self.values(batch.x + self.config.noise * torch.randn(3, generator=generator), batch.y),
                batch.weight,
            )

    def predict_chunk(
        self, x: Tensor, n_samples: int, n_inner: int, generator: torch.Generator
    ) -> Predictive:
        mean = ((x - self.centre) @ self.first).tanh() @ self.last  # (members, rows, 1)
        noise = (2 * self.log_noise).exp().reshape(-1, 1, 1, 1)
        return GaussianPredictive.from_draws(mean.unsqueeze(1), noise, torch.zeros_like(noise))

    def floats_per_row(self, n_samples: int, n_inner: int) -> int:
        return 20 * self.members


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    return values.mean(-1) if weight is None else (values * weight).sum(-1) / weight.sum(-1)


def make_data(rows: int = 40, weight: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Batch:
    x = torch.randn(rows, 3, generator=named_generator(1, "x"), dtype=torch.float64)
    y = x[:, :1].sin() + 0.1 * torch.randn(rows, 1, generator=named_generator(1, "y"), dtype=torch.float64)
    return make_dataset(x.to(dtype), y.to(dtype), TASK, weight)


def state_digest(model: Model) -> str:
    return digest("", model.state_dict())


def history_repr(history: History) -> str:
    return repr((history.columns, history.best_step))  # NaN equals NaN here


class Momentum(Small):
    """Another optimizer, with options and state of many types."""

    def optimizer(self, settings):
        optimizer = torch.optim.RMSprop(self.parameters(), lr=1.0, momentum=0.9)
        optimizer.param_groups[0]["notes"] = {
            "seen": [1, None, "x", (True, 0.5)],
            3: torch.ones(2, dtype=torch.float32),
        }
        return optimizer


class Overfitting(Small):
    """The held-out NLL rises while the training NLL falls."""

    def nll(self, batch: Batch, n_samples: int, generator: torch.Generator) -> Tensor:
        return -super().nll(batch, n_samples, generator)


CASES = {
    "early stopping": (
        Overfitting,
        TrainConfig(steps=10, batch_size=100, n_evals=10, patience=4),
        lambda: holdout_weights(40, 3, 0.2, 0),
    ),
    "averaged weights": (Small, TrainConfig(steps=10, batch_size=8), lambda: None),
    "best evaluation": (
        Small,
        TrainConfig(steps=10, batch_size=8, n_evals=5, patience=2),
        lambda: holdout_weights(40, 3, 0.2, 0),
    ),
    "full batch": (
        Small,
        TrainConfig(steps=10, batch_size=100, ema_decay=0.0, n_evals=3),
        lambda: holdout_weights(40, 3, 0.2, 0),
    ),
    "other optimizer": (
        Momentum,
        TrainConfig(steps=10, batch_size=16, clip_norm=None, clip_value=0.1, ema_decay=0.5),
        lambda: None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_interrupted_at_any_step_resumes_to_the_same_bits(case, tmp_path):
    kind, config, weight = CASES[case]
    data = make_data(40, weight())
    uninterrupted = kind(3)
    history = fit(uninterrupted, data, config, seed=4)
    assert len(uninterrupted.batches) == (5 if case == "early stopping" else 10)
    for stop in range(len(uninterrupted.batches)):
        first, second = kind(3), kind(3)
        first.stop_at = stop
        path = tmp_path / f"{stop}"
        with pytest.raises(InterruptedError):
            fit(first, data, config, seed=4, checkpoint=path, save_every=0)
        resumed = fit(second, data, config, seed=4, checkpoint=path, save_every=0)
        assert len(second.batches) == len(uninterrupted.batches) - stop  # it was resumed, not started again
        third = kind(3)
        for model, seen in ((second, resumed), (third, fit(third, data, config, seed=4, checkpoint=path))):
            assert state_digest(model) == state_digest(uninterrupted) and history_repr(seen) == history_repr(
                history
            )


def test_a_finished_run_is_not_repeated(tmp_path):
    data, config = make_data(40, holdout_weights(40, 1, 0.2, 0)), TrainConfig(steps=5, n_evals=2)
    model = Small()
    history = fit(model, data, config, checkpoint=tmp_path / "c")
    again = Small()
    again.on_fit_start = again.on_fit_end = again.loss = None  # any call would fail
    assert history_repr(fit(again, data, config, checkpoint=tmp_path / "c")) == history_repr(history)
    assert state_digest(again) == state_digest(model) and again.far.shape == (5,)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    data, config = make_data(), TrainConfig(steps=3)
    fit(Small(), data, config, checkpoint=tmp_path / "c")
    other = replace(data, y=data.y.clone())
    other.y[20] += 1e-6
    for arguments, word in (
        ((Small(), data, replace(config, lr=0.02)), "lr 0.01, this one has 0.02"),
        ((Small(), data, config, 1), "seed 0"),
        ((Small(), other, config), "data"),
        ((Small(config=Config(noise=0.2)), data, config), "noise=0.1"),
        ((Small(2), data, config), "does not fit"),
    ):
        with pytest.raises(ValueError, match=word):
            fit(*arguments, checkpoint=tmp_path / "c")
    save_checkpoint(tmp_path / "d", {}, {})
    with pytest.raises(ValueError, match="not a checkpoint of a fit"):
        fit(Small(), data, config, checkpoint=tmp_path / "d")


LONG = TrainConfig(steps=120, batch_size=8, n_evals=12, patience=0)


def train_slowly(path: str) -> None:
    """Run in the killed process: every step is saved, so that many kills interrupt a save."""
    torch.set_num_threads(1)
    fit(
        Small(2, pause=0.004),
        make_data(40, holdout_weights(40, 2, 0.2, 0)),
        LONG,
        seed=2,
        checkpoint=path,
        save_every=0,
    )


def test_a_killed_process_resumes_to_the_same_bits(tmp_path):
    path, root = tmp_path / "c", Path(compound.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    reached = [0]
    for _ in range(3):
        before = path.stat().st_mtime_ns if path.exists() else None
        child = subprocess.Popen([sys.executable, __file__, str(path)], env=environment)
        while child.poll() is None and (not path.exists() or path.stat().st_mtime_ns == before):
            time.sleep(0.002)
        time.sleep(random.Random(len(reached)).uniform(0, 0.1))  # 120 steps take at least 0.48 s
        child.send_signal(signal.SIGKILL)
        assert child.wait(60) == -signal.SIGKILL
        reached.append(unpack(load_checkpoint(path))["state"]["step"])
    assert (
        reached == sorted(set(reached)) and reached[-1] < LONG.steps
    )  # it was resumed after each kill, and was not complete
    expected, again = Small(2), Small(2)
    history = fit(expected, make_data(40, holdout_weights(40, 2, 0.2, 0)), LONG, seed=2)
    assert history_repr(
        fit(again, make_data(40, holdout_weights(40, 2, 0.2, 0)), LONG, seed=2, checkpoint=path)
    ) == history_repr(history)
    assert state_digest(again) == state_digest(expected) and len(again.batches) == LONG.steps - reached[-1]


def naive_clip(gradients: list[Tensor], members: int, value: float | None, norm: float | None) -> int:
    bad = 0
    for k in range(members):
        member_gradients = [g[k] if members > 1 else g for g in gradients]
        numbers = [float(entry) for g in member_gradients for entry in g.flatten()]
        if not all(map(math.isfinite, numbers)):
            bad += 1
            for g in member_gradients:
                g.zero_()
            continue
        length = math.sqrt(sum(number**2 for number in numbers))
        for g in member_gradients:
            if norm is not None and length > norm:
                g.mul_(norm / length)
            if value is not None:
                g.clamp_(-value, value)
    return bad


@pytest.mark.parametrize("members", [1, 4])
@pytest.mark.parametrize("value, norm", [(None, 1.0), (0.3, None), (0.3, 1.0), (None, None)])
@pytest.mark.parametrize("trouble", ["", "nan", "inf", "huge", "small", "transposed"])
def test_clipping_equals_that_of_a_naive_loop(members, value, norm, trouble):
    gradients = [
        torch.randn(members, *shape, generator=named_generator(3)) for shape in ((3, 5), (2,), (), (4, 1))
    ]
    gradients[0][0] *= 0.01
    where = gradients[0][-1]
    if trouble in ("nan", "inf", "huge"):
        where[1, 2] = {"nan": math.nan, "inf": -math.inf, "huge": 1e30}[trouble]
    if trouble == "small":
        for g in gradients:
            g *= 1e-3
    if trouble == "transposed":
        gradients[0] = gradients[0].transpose(1, 2)
        gradients[0][0, 0, 0] = math.inf  # zeros must reach memory of any layout
    if members == 1:
        gradients.append(torch.tensor(0.7))
    expected = copy.deepcopy(gradients)
    assert clip_gradients(gradients, members, value, norm) == naive_clip(expected, members, value, norm)
    assert_close(gradients, expected)


def test_shared_parameters_are_clipped_as_a_group_of_their_own():
    stacked, shared, idle = (nn.Parameter(torch.zeros(shape)) for shape in ((2, 3), (5,), (2, 2)))
    stacked.grad, shared.grad = torch.tensor([[3.0, 0, 0], [0, 0.1, 0]]), torch.full((5,), math.inf)
    assert make_clipper([stacked, shared, idle], 2, None, 1.0)() == 1
    assert_close(stacked.grad, torch.tensor([[1.0, 0, 0], [0, 0.1, 0]]))
    assert_close(shared.grad, torch.zeros(5))


class FaultyMember(Small):
    """Member 1 has an infinite loss at steps 2 and 3."""

    def loss(self, batch: Batch, generator) -> Loss:
        loss = super().loss(batch, generator)
        if len(self.batches) in (3, 4):
            return loss._replace(total=loss.total + self.first[1].sum() * math.inf)
        return loss


@pytest.mark.parametrize(
    "config", [TrainConfig(steps=8, clip_norm=1.0), TrainConfig(steps=8, clip_norm=None, clip_value=5.0)]
)
def test_a_member_with_an_infinite_gradient_skips_the_step(config):
    model, healthy = FaultyMember(3), Small(3)
    history = fit(model, make_data(), config)
    fit(healthy, make_data(), config)
    assert sum(history["skipped"]) == 2
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    for a, b in zip(model.parameters(), healthy.parameters(), strict=True):
        assert torch.equal(a[[0, 2]], b[[0, 2]]) and not torch.equal(a[1], b[1])


def test_members_trained_together_equal_members_trained_separately():
    data, config = make_data(dtype=torch.float64), TrainConfig(steps=30, batch_size=40)
    together = Small(3, dtype=torch.float64)
    separate = [Small(dtype=torch.float64) for _ in range(3)]
    for k, model in enumerate(separate):
        for alone, stacked in zip(model.parameters(), together.parameters(), strict=True):
            alone.data = stacked.data[k : k + 1].clone()
        model.on_fit_start = together.on_fit_start = lambda data, generator: None
        fit(model, data, config, seed=member_seed(6, k))
    fit(together, data, config, seed=6)
    for k, model in enumerate(separate):
        for alone, stacked in zip(model.parameters(), together.parameters(), strict=True):
            assert_close(alone[0], stacked[k], rtol=1e-9, atol=1e-11)


def test_the_global_generator_is_unchanged(tmp_path):
    before = torch.get_rng_state()
    fit(
        Small(2),
        make_data(40, holdout_weights(40, 2, 0.2, 0)),
        TrainConfig(steps=6, batch_size=8, n_evals=2),
        checkpoint=tmp_path / "c",
        save_every=0,
    )
    assert torch.equal(before, torch.get_rng_state())


def test_an_epoch_has_every_training_row_once_and_no_other():
    weight = torch.rand(2, 43, generator=named_generator(0))
    weight[:, ::6] = 0
    weight[0, 1] = 0  # member 1 still trains on it
    x_ood = torch.arange(30.0).reshape(10, 3)
    data = replace(make_data(43, weight), x_ood=x_ood)
    model = Small(2)
    fit(model, data, TrainConfig(steps=8, batch_size=8, n_evals=0))
    trained = (weight > 0).any(0).nonzero().squeeze(1).tolist()  # 35 rows, 4 batches per epoch
    assert 0 not in trained and 1 in trained
    epochs = [torch.cat([b.index for b in model.batches[i : i + 4]]).tolist() for i in (0, 4)]
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch) == 32 and set(epoch) <= set(trained)
    assert epochs[0] != epochs[1]
    for step, batch in enumerate(model.batches):
        assert torch.equal(batch.x, data.x[batch.index]) and torch.equal(batch.y, data.y[batch.index])
        assert torch.equal(batch.weight, weight[:, batch.index])
        assert batch.size is data.size and batch.progress == step / 8
        assert len(batch.x_ood) == 8 and torch.equal(batch.x_ood, x_ood[(batch.x_ood[:, 0] / 3).long()])
    assert not torch.equal(model.batches[0].x_ood, model.batches[1].x_ood)


def test_a_full_batch_is_not_copied():
    model, data = Small(), make_data(40)
    fit(model, data, TrainConfig(steps=2, batch_size=40))
    assert all(b.x is data.x and b.y is data.y for b in model.batches)
    data = make_data(40, holdout_weights(40, 1, 0.1, 0))
    fit(model, data, TrainConfig(steps=2, batch_size=40, n_evals=0))
    assert model.batches[-1].x is model.batches[-2].x and torch.equal(
        model.batches[-1].index, (data.weight[0] > 0).nonzero().squeeze(1)
    )


@pytest.mark.parametrize("batch", [8, 100])
def test_held_out_rows_do_not_affect_the_weights(batch):
    weight = holdout_weights(40, 2, 0.2, 0)
    data, config = make_data(40, weight), TrainConfig(steps=12, batch_size=batch, n_evals=4, patience=0)
    changed = replace(data, y=torch.where(weight[0].unsqueeze(1) == 0, data.y + 7, data.y))
    one, other = Small(2), Small(2)
    fit(one, data, config)
    fit(other, changed, config)
    for before, after in zip(one.weights, other.weights, strict=True):
        assert all(torch.equal(a[0], b[0]) for a, b in zip(before, after, strict=True))
    assert not torch.equal(one.weights[-1][0][1], other.weights[-1][0][1])  # member 1 trains on those rows


def test_a_row_of_weight_two_counts_as_two_rows():
    data = make_data(20, dtype=torch.float64)
    twice = torch.cat([torch.arange(20), torch.tensor([4, 7])])
    weight = torch.bincount(twice).double()
    models = [Small(config=Config(noise=0.0), dtype=torch.float64) for _ in range(3)]
    for model, rows in zip(
        models,
        (make_dataset(data.x, data.y, TASK, weight), make_dataset(data.x[twice], data.y[twice], TASK), data),
        strict=True,
    ):
        model.on_fit_start = lambda data, generator: None
        fit(model, rows, TrainConfig(steps=20))
    assert_close(models[0].first, models[1].first, rtol=1e-9, atol=1e-11)
    assert not torch.allclose(models[0].first, models[2].first)


class Scripted(Small):
    """Takes held-out NLLs from a list and records the evaluated weights."""

    def __init__(self, nlls: list[float], members: int = 1):
        super().__init__(members)
        self.nlls, self.evaluated, self.evaluations = nlls, [], []
        self.register_buffer("running", torch.zeros(()))  # as for the factors of a natural gradient

    def loss(self, batch: Batch, generator) -> Loss:
        self.running.add_(1)
        return super().loss(batch, generator)

    def nll(self, batch: Batch, n_samples: int, generator: torch.Generator) -> Tensor:
        self.evaluated.append([p.detach().clone() for p in self.parameters()])
        self.evaluations.append((batch, n_samples, generator.initial_seed()))
        offset = (
            torch.arange(self.members) - (self.members - 1) / 2
        )  # members differ, their mean is that of the list
        return self.nlls[len(self.evaluated) - 1] + offset


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_training_stops_after_patience_and_restores_the_best_weights(average):
    model = Scripted([3.0, 2.0, 1.0, 1.5, math.nan, 1.0, 0.0])
    config = TrainConfig(steps=70, batch_size=8, n_evals=7, patience=3, ema_decay=average)
    history = fit(model, make_data(40, holdout_weights(40, 1, 0.2, 0)), config)
    assert history["step"] == [10, 20, 30, 40, 50, 60] and history.best_step == 30
    assert repr(history["held_out"]) == repr([3.0, 2.0, 1.0, 1.5, math.nan, 1.0])
    assert (
        all(torch.equal(a, b) for a, b in zip(model.parameters(), model.evaluated[2], strict=True))
        and model.running == 30
    )
    averaged = model.weights[0][0]
    for t in range(10):
        decay = min(average, (1 + t) / (10 + t))
        averaged = decay * averaged + (1 - decay) * model.weights[t + 1][0]
    assert_close(model.evaluated[0][0], averaged)  # the averaged weights are evaluated
    patient = Scripted([3.0, 2.0, 1.0, 1.5, math.nan, 1.0, 0.0])
    assert (
        fit(patient, make_data(40, holdout_weights(40, 1, 0.2, 0)), replace(config, patience=0)).best_step
        == 70
    )
    for a, b in zip(model.weights[:60], patient.weights[:60], strict=True):  # evaluation changes no weights
        assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def test_evaluations_use_each_members_held_out_rows():
    weight = holdout_weights(100, 3, 0.2, 0)
    weight[2] = 1  # holds nothing out: does not count
    data = make_data(100, weight)
    model = Scripted([5.0] * 9, 3)
    history = fit(model, data, TrainConfig(steps=9, n_evals=3, eval_samples=7, eval_rows=12))
    batch, draws, _ = model.evaluations[0]
    assert draws == 7 and len(batch) == 24 and batch.weight.sum(1).tolist() == [12, 12, 0]
    assert bool((weight[:, batch.index][batch.weight > 0] == 0).all()) and torch.equal(
        batch.y, data.y[batch.index]
    )
    assert len({seed for *_, seed in model.evaluations}) == 1  # the same noise at every evaluation
    assert history["held_out"] == [4.5] * 3  # the mean of members 0 and 1


def test_without_held_out_rows_the_last_averaged_weights_are_final():
    model = Small()
    history = fit(model, make_data(), TrainConfig(steps=30, ema_decay=0.9, clip_norm=None, lr=0.03))
    raw = [weights[0] for weights in model.weights]
    last = Small()  # its final weights are the raw ones after the last step
    fit(last, make_data(), TrainConfig(steps=30, ema_decay=0.0, clip_norm=None, lr=0.03))
    averaged = raw[0].double()
    for t, value in enumerate([*raw[1:], last.first.detach()]):
        decay = min(0.9, (1 + t) / (10 + t))
        averaged = decay * averaged + (1 - decay) * value
    assert_close(model.first.detach().double(), averaged, rtol=1e-5, atol=1e-6)
    assert (
        history.best_step == 30
        and all(map(math.isnan, history["held_out"]))
        and history["step"] == list(range(1, 31))
    )


class RecordingLearningRates(Small):
    def optimizer(self, settings):
        optimizer = super().optimizer(settings)
        self.rates: list[list[float]] = []
        optimizer.register_step_pre_hook(
            lambda optimizer, *_: self.rates.append([g["lr"] for g in optimizer.param_groups])
        )
        return optimizer


@pytest.mark.parametrize("end", [0.0, 0.1, 1.0])
def test_the_learning_rate_falls_along_a_half_cosine(end):
    model = RecordingLearningRates()
    history = fit(model, make_data(), TrainConfig(steps=11, n_evals=0, lr=0.02, final_lr_ratio=end))
    expected = [
        0.02 * (end + (1 - end) * math.cos(math.pi * t / 22) ** 2) for t in range(11)
    ]  # (1 + cos 2a) / 2 = cos² a
    assert [rates[0] for rates in model.rates] == pytest.approx(expected)
    assert [rates[1] for rates in model.rates] == pytest.approx([5 * rate for rate in expected])
    assert history["lr"] == pytest.approx(expected)


def test_the_history_holds_means_of_each_interval(tmp_path):
    model = Small(2)
    seen = []
    loss = model.loss
    model.loss = lambda *args: seen.append(loss(*args)) or seen[-1]
    history = fit(
        model, make_data(40, holdout_weights(40, 2, 0.2, 0)), TrainConfig(steps=10, batch_size=8, n_evals=3)
    )
    assert history["step"] == [3, 6, 9, 10]
    for name in ("nll", "kl"):
        values = [float(getattr(entry, name).mean()) for entry in seen]
        parts = (values[:3], values[3:6], values[6:9], values[9:])
        assert history[name] == pytest.approx([sum(part) / len(part) for part in parts])
    history.save_csv(tmp_path / "h.csv")
    lines = (tmp_path / "h.csv").read_text().splitlines()
    assert (
        lines[0] == ",".join(COLUMNS)
        and [float(line.split(",")[4]) for line in lines[1:]] == history["held_out"]
    )


def test_noise_is_named_by_member_and_step():
    model, seeds = Small(2), []
    loss = model.loss
    model.loss = lambda batch, streams: (
        seeds.append([s.initial_seed() for s in streams]) or loss(batch, streams)
    )
    fit(model, make_data(), TrainConfig(steps=3), seed=5)
    assert seeds == [
        [named_generator(member_seed(5, k), "noise", step).initial_seed() for k in range(2)]
        for step in range(3)
    ]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 80), st.integers(1, 7), st.floats(0, 0.99), st.integers(0, 5))
def test_holdout_weights_have_equal_disjoint_parts(rows, members, fraction, seed):
    weight = holdout_weights(rows, members, fraction, seed)
    held = (weight == 0).sum(1)
    assert weight.shape == (members, rows) and bool(((weight == 0) | (weight == 1)).all())
    assert len(set(held.tolist())) == 1 and int(held[0]) < rows
    assert int(held[0]) >= int(rows * fraction) and (
        int(held[0]) <= rows * fraction + 1e-6 or int(held[0]) == min(2, rows // 3)
    )
    assert int(held[0]) >= min(2, rows // 3) or fraction == 0
    if members * int(held[0]) <= rows:
        assert int((weight == 0).sum(0).max()) <= 1  # disjoint
    assert torch.equal(weight, holdout_weights(rows, members, fraction, seed))


def test_holdout_weights_cover_all_rows_and_depend_on_the_seed():
    assert bool(((holdout_weights(50, 5, 0.2, 0) == 0).sum(0) == 1).all())
    assert not torch.equal(holdout_weights(50, 5, 0.2, 0), holdout_weights(50, 5, 0.2, 1))
    for arguments in ((10, 1, 1.0, 0), (10, 1, -0.1, 0), (0, 1, 0.1, 0), (10, 0, 0.1, 0)):
        with pytest.raises(ValueError):
            holdout_weights(*arguments)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.floats(0, 1), st.integers(0, 5))
def test_a_stratified_sample_has_every_class_in_proportion(labels, part, seed):
    y, count = torch.tensor(labels), int(part * len(labels))
    drawn = stratified_sample(y, count, seed)
    assert int(drawn.sum()) == count
    for label in y.unique():
        share = int((y == label).sum()) * count / len(y)
        assert math.floor(share + 1e-9) <= int(drawn[y == label].sum()) <= math.ceil(share - 1e-9)
    spared = last_of_class(y, drawn)
    assert bool((drawn | ~spared).all()) and torch.equal(y[~drawn | spared].unique(), y.unique())
    assert len(y[spared]) == len(set(y.tolist()) - set(y[~drawn].tolist()))  # no more than necessary


def test_every_row_is_equally_likely_in_a_stratified_sample():
    """Classes of 9 and 1 rows alternate: unshuffled, a sample of a tenth would have only one kind."""
    y, trials = torch.arange(10).repeat_interleave(torch.tensor([9, 1] * 5)), 2000
    drawn = torch.stack([stratified_sample(y, 5, seed) for seed in range(trials)]).double()  # (trials, 50)
    assert float((drawn.mean(0) - 0.1).abs().max()) < 4.5 * math.sqrt(0.1 * 0.9 / trials)
    small = drawn[:, y % 2 == 1].sum(1)  # 0.5 on average
    assert float((small == 5).double().mean()) < 0.05


def test_default_train_configs():
    assert default_train_config(TASK, 500) == TrainConfig(
        steps=2000,
        batch_size=100,
        lr=1e-2,
        final_lr_ratio=0.1,
        clip_norm=1.0,
        clip_value=None,
        ema_decay=0.98,
    )
    assert (
        default_train_config(TASK, 8000).steps,
        default_train_config(TASK, 20_000).batch_size,
        default_train_config(TASK, 40_000).steps,
    ) == (
        3200,
        200,
        8000,
    )
    digits = default_train_config(Task("classification", 10), 60_000)
    assert digits == TrainConfig(10_000, 200, 3e-3, 0.0, clip_value=5.0, clip_norm=None, ema_decay=0.0)
    assert default_train_config(Task("classification", 2), 20_000).steps == 4000


@pytest.mark.parametrize(
    "name, value",
    [
        *(
            ("steps", 0),
            ("steps", 10.5),
            ("batch_size", 0),
            ("lr", 0.0),
            ("lr", math.nan),
            ("final_lr_ratio", 1.5),
            ("clip_value", 0.0),
        ),
        *(
            ("clip_norm", math.nan),
            ("ema_decay", 1.0),
            ("n_evals", -1),
            ("patience", -1),
            ("eval_samples", 0),
            ("eval_rows", 0),
        ),
    ],
)
def test_train_configs_are_validated(name, value):
    with pytest.raises(ValueError, match=f"^{name} is {value}: give"):
        TrainConfig(**{name: value})


def test_data_is_validated_before_any_work():
    model = Small(2)
    model.on_fit_start = None
    good = make_data(40)
    empty = Batch(torch.zeros(0, 3), torch.zeros(0, 1), 0.0, torch.arange(0))
    with pytest.raises(ValueError, match="no rows"):
        fit(model, empty, TrainConfig())
    for shape in ((3, 40), (1, 40), (39,), (2, 39)):
        with pytest.raises(ValueError, match=r"must be \(40,\) or \(2, 40\)"):
            fit(model, replace(good, weight=torch.ones(shape)), TrainConfig())
    untrained = torch.ones(2, 40)
    untrained[1] = 0
    with pytest.raises(ValueError, match="every row of a member"):
        fit(model, replace(good, weight=untrained), TrainConfig())


def test_the_callback_is_called_ten_times_a_second(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    model, reports = Small(), []
    loss = model.loss
    model.loss = lambda *args: clock.__setitem__(0, clock[0] + 0.03) or loss(*args)
    fit(
        model,
        make_data(40, holdout_weights(40, 1, 0.1, 0)),
        TrainConfig(steps=10, n_evals=5),
        callback=reports.append,
    )
    assert [report.step for report in reports] == [4, 8, 10] and all(
        report.steps == 10 and math.isfinite(report.nll + report.held_out) for report in reports
    )
    assert [report.steps_per_second for report in reports] == pytest.approx([1 / 0.03] * 3)


def test_the_progress_bar_appears_after_two_seconds(monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress_bar("houses [1]") as callback:
        callback(FitProgress(1, 10, 0.5, math.nan, 100.0))
        assert capsys.readouterr() == ("", "")
        clock[0] = 2.5
        callback(FitProgress(5, 10, 0.5, 0.25, 100.0))
        out, err = capsys.readouterr()
    assert out == "" and all(word in err for word in ("houses [1]", "5/10", "100 steps/s", "NLL 0.250"))


def test_denormal_numbers_are_flushed_to_zero():
    parameter = nn.Parameter(torch.tensor([1e-31, -1e-40, 1e-29, -2.0]))
    optimizer = torch.optim.Adam([parameter])
    parameter.grad = torch.zeros(4)
    optimizer.step()
    state = optimizer.state[parameter]
    state["exp_avg"].copy_(torch.tensor([1e-39, -1e-25, 0.0, -3e-31]))
    averaged = torch.tensor([0.0, 1e-30, -1e-45, 1.0])
    flush_denormals([parameter], optimizer, [averaged])
    assert parameter.tolist() == [0.0, 0.0, torch.tensor(1e-29).item(), -2.0]
    assert state["exp_avg"].tolist() == [0.0, torch.tensor(-1e-25).item(), 0.0, 0.0] and state["step"] == 1
    assert averaged.tolist() == [0.0, 0.0, 0.0, 1.0]


def test_training_flushes_weights_moments_and_averages(monkeypatch):
    """Denormal numbers would make every product slow."""
    seen = []
    monkeypatch.setattr(
        loop,
        "flush_denormals",
        lambda *args: seen.append([len(list(part)) for part in (args[0], args[1].state, args[2])]),
    )
    fit(Small(), make_data(20), TrainConfig(steps=2 * loop.FLUSH_EVERY + 1, n_evals=0), 0)
    assert seen == [[3, 3, 3]] * 2  # all parameters each time


class Diverging(Small):
    """Its weights are NaN from the 12th step on."""

    def loss(self, batch: Batch, generator) -> Loss:
        if len(self.batches) == 11:
            self.last.data.fill_(math.nan)
        return super().loss(batch, generator)


def test_a_diverging_fit_is_an_error_or_restores_its_best_weights():
    data, config = make_data(), TrainConfig(steps=100, n_evals=20, patience=0)
    model = Diverging()
    with pytest.raises(
        ValueError,
        match=r"training diverged: after 15 steps the NLL is nan at learning rate 0\.01: give a smaller one",
    ):
        fit(model, data, config)
    assert len(model.batches) == 15  # it stops at the next evaluation
    held = replace(data, weight=holdout_weights(len(data), 1, 0.25, 0))
    model = Diverging()
    with pytest.warns(UserWarning, match="diverged by step 15: the weights of step 10 are kept"):
        history = fit(model, held, config)
    assert history.best_step == 10 and all(bool(p.isfinite().all()) for p in model.parameters())
    healthy = Small()
    fit(healthy, held, replace(config, steps=100))
    assert len(healthy.batches) == 100


@pytest.mark.parametrize("name", ["ml-cdn", "vb-cdn", "map", "bbb"])
@pytest.mark.parametrize("early_stopping", [True, False])
def test_divergence_is_an_error_whatever_the_learning_rate(name, early_stopping):
    x = torch.linspace(-1, 1, 40).unsqueeze(1).numpy()
    with pytest.raises(ValueError, match="training diverged"):
        CompoundRegressor(name, lr=100.0, max_epochs=10, early_stopping=early_stopping, random_state=0).fit(
            x, x[:, 0]
        )


if __name__ == "__main__":
    train_slowly(sys.argv[1])
