"""The one training loop: mini-batches, clipping, averaged weights, early stopping, checkpoints.

All randomness comes from streams named by purpose and step, so a run that is killed and started again ends with the same bits.
"""

import dataclasses
import math
import reprlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from compound.compat import foreach_lerp_
from compound.io import persist
from compound.io.persist import Spec
from compound.io.schema import (
    boolean,
    either,
    entries,
    integer,
    leaf,
    many,
    mapping,
    nothing,
    object_of,
    real,
)
from compound.models.base import Model
from compound.models.files import check_finite, compare, fill, specs, trial
from compound.random import derive_seed, member_seed, named_generator
from compound.train.gradients import clipper, flush_denormals
from compound.types import Batch, Task

NoFactor: type[RuntimeError] = torch.linalg.LinAlgError  # type: ignore[attr-defined]  # of a matrix that holds NaN
FLUSH_EVERY = 50  # steps between looks for faded weights
COLUMNS = ("step", "lr", "nll", "kl", "held_out", "skipped")


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained. `default_train_config` gives settings that suit a task and a number of rows."""

    steps: int = 2000
    batch_size: int = 100  # rows per step; all rows where there are fewer
    lr: float = 1e-2
    final_lr_ratio: float = 0.1  # the rate falls to this part of itself along a half cosine; 1 = constant
    clip_value: float | None = None  # clip each gradient entry
    clip_norm: float | None = 1.0  # clip the norm of each member's gradient
    ema_decay: float = 0.98  # decay of the averaged weights, min(ema_decay, (1 + t) / (10 + t)); 0 = none
    n_evals: int = 50  # looks at the held-out rows; 0 = none, the last weights are kept
    patience: int = 15  # checks without a better held-out NLL before stopping; 0 = never stop early
    eval_samples: int = 20  # predictive draws at a check
    check_rows: int = 1000  # held-out rows used per member at a check

    def __post_init__(self) -> None:
        for name, low in (
            ("steps", 1),
            ("batch_size", 1),
            ("n_evals", 0),
            ("patience", 0),
            ("eval_samples", 1),
            ("check_rows", 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < low:
                raise ValueError(f"{name} is {value!r}: give a whole number of at least {low}")
        for name in ("clip_value", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value!r}: give a number above 0, or None for no clipping")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr is {self.lr!r}: give a number above 0, such as 0.01")
        if not 0 <= self.final_lr_ratio <= 1:
            raise ValueError(f"final_lr_ratio is {self.final_lr_ratio!r}: give a part between 0 and 1")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay is {self.ema_decay!r}: give a decay of at least 0 and below 1")

    def lr_at(self, progress: float) -> float:
        """The learning rate when this part of the steps is done."""
        return self.lr * (
            self.final_lr_ratio + (1 - self.final_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress))
        )


def default_train_config(task: Task, rows: int) -> TrainConfig:
    """Settings that suit the task: the published ones for classes, those of the trials on nine tables for targets."""
    batch = 200 if task.kind == "classification" or rows >= 20_000 else 100
    steps = min(10_000, max(2000, 40 * rows // batch))  # 40 epochs, within bounds
    if task.kind == "classification":
        return TrainConfig(
            steps, batch, lr=3e-3, final_lr_ratio=0.0, clip_value=5.0, clip_norm=None, ema_decay=0.0
        )
    return TrainConfig(steps, batch)


def holdout_weights(rows: int, members: int, fraction: float, seed: int) -> Tensor:  # (members, rows)
    """Weights 1 and 0: each member holds out its own part, disjoint from the others' as long as the rows last."""
    if rows < 1 or members < 1:
        raise ValueError(f"rows is {rows} and members {members}: both must be at least 1")
    if not 0 <= fraction < 1:
        raise ValueError(
            f"fraction is {fraction!r}: give the held-out part of the rows, at least 0 and below 1"
        )
    count = held_out_count(rows, fraction)
    order = torch.randperm(rows, generator=named_generator(seed, "hold out"))
    weight = torch.ones(members, rows, dtype=torch.float32)
    for k in range(members):
        weight[k, order[torch.arange(k * count, (k + 1) * count) % rows]] = 0
    return weight


def held_out_count(rows: int, fraction: float) -> int:
    """How many of so many rows are held out: from six rows on at least two, for one that chooses the stopping step vouches for little."""
    return min(rows - 1, max(int(rows * fraction + 1e-9), min(2, rows // 3) if fraction > 0 else 0))


def stratified_sample(labels: Tensor, count: int, seed: int) -> Tensor:  # (rows,) True = drawn
    """`count` rows, each with probability count / rows, of every class its share rounded up or down at random.

    Systematic sampling: rows of a class stand together, and every (rows / count)-th is taken from a random start on. A class of 6
    rows in a sample of a tenth gives one row with probability .6: small classes come as often as rows of theirs will be asked about.
    """
    generator, rows = named_generator(seed, "stratified sample"), len(labels)
    order = torch.randperm(rows, generator=generator)
    shuffled = torch.randperm(
        int(labels.max()) + 1, generator=generator
    )  # classes of regular sizes must not fall in step
    order = order[shuffled[labels[order]].argsort(stable=True)]
    start = torch.rand((), generator=generator, dtype=torch.float64)
    drawn = torch.zeros(rows, dtype=torch.bool)
    drawn[order[((start + torch.arange(count)) * (rows / max(count, 1))).long().clamp_max(rows - 1)]] = True
    return drawn


def last_of_class(labels: Tensor, drawn: Tensor) -> Tensor:  # (rows,)
    """One drawn row of every class of which no row is left: without it the class could not be learnt."""
    index, classes = torch.arange(len(labels)), int(labels.max()) + 1
    first = index.new_zeros(classes).scatter_reduce_(
        0, labels, index, "amin", include_self=False
    )  # (classes,)
    gone = (torch.bincount(labels[~drawn], minlength=classes) == 0)[labels]  # (rows,)
    return gone & (first[labels] == index)


@dataclass
class History:
    """What a fit went through, one entry per check; NLL and KL are means since the entry before."""

    columns: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    best_step: int = 0  # the step whose weights were kept

    def __getitem__(self, name: str) -> list[float]:
        return self.columns[name]

    def save_csv(self, path: str | Path) -> None:
        lines = [
            ",".join(self.columns),
            *(",".join(map(repr, row)) for row in zip(*self.columns.values(), strict=True)),
        ]
        persist.write_atomic(path, ("\n".join(lines) + "\n").encode())


class FitProgress(NamedTuple):
    """How far a fit has come."""

    step: int
    steps: int
    nll: float
    held_out: float
    rate_per_second: float


@dataclass
class _State:
    """Everything the next step reads besides model and optimizer."""

    averaged: list[Tensor]  # as the parameters; empty without averaging
    best: list[Tensor]  # parameters and buffers; empty before the first good check
    sums: Tensor  # (2, members) NLL and KL since the last entry of the history
    columns: dict[str, list[float]]
    step: int = 0
    best_step: int = 0
    best_value: float = math.inf
    stale: int = 0  # checks since the best one
    skipped: int = 0
    held_out: float = math.nan


class _Run(NamedTuple):
    """What a state must fit."""

    optimizer: torch.optim.Optimizer
    parameters: list[Tensor]
    everything: list[Tensor]
    sums: Tensor
    settings: TrainConfig


TENSOR = leaf("a tensor", lambda value: isinstance(value, Tensor))
DICT = leaf("a record", lambda value: isinstance(value, dict))
PAST = object_of({name: many(real) for name in COLUMNS})
CONTENT = object_of({"identity": DICT, "finished": boolean, "model": mapping(TENSOR)}, more=True)
FINISHED = object_of({"history": object_of({"columns": PAST, "best_step": integer()})}, more=True)
OPTIMIZER = object_of({"state": entries(mapping(either(TENSOR, nothing))), "param_groups": many(DICT)})
STATE = object_of(
    {
        "averaged": many(TENSOR),
        "best": many(TENSOR),
        "sums": TENSOR,
        "columns": PAST,
        "best_value": real,
        "held_out": real,
    }
    | {name: integer() for name in ("step", "best_step", "stale", "skipped")}
)
RUNNING = object_of({"optimizer": OPTIMIZER, "state": STATE}, more=True)


def fit(
    model: Model,
    data: Batch,
    settings: TrainConfig,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    save_every: float = 30.0,
    callback: Callable[[FitProgress], None] | None = None,
) -> History:
    """Train a model on all rows of `data`; rows of weight 0 are held out (by that member) and choose the stopping step.

    With a `checkpoint`, saved every `save_every` seconds, a run that was cut off continues where it was, to the same bits.
    """
    rows = _training_rows(model, data)
    found, identity = None, {}
    if checkpoint is not None:
        identity, checkpoint = _identity(model, data, settings, seed), Path(checkpoint)
        found = _found(checkpoint, identity) if checkpoint.exists() else None
    if found is None or not found["finished"]:
        model.on_fit_start(
            data, named_generator(seed, "start")
        )  # also gives sizes that rows decide, to compare a checkpoint's with
    if found is not None and checkpoint is not None:
        try:
            fill(model, found["model"])
        except ValueError as error:
            raise ValueError(
                f"{checkpoint} does not fit the model ({error}): choose another path or delete the file"
            ) from error
        if found["finished"]:
            return History(**found["history"])

    parameters: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    everything = [*parameters, *model.buffers()]  # a method may keep running factors as buffers
    optimizer = model.optimizer(settings)
    sums = torch.zeros(2, model.members, dtype=torch.float64, device=data.x.device)
    if found is not None and checkpoint is not None:
        state = _resumed(found, checkpoint, _Run(optimizer, parameters, everything, sums, settings))
    else:
        averaged = [parameter.detach().clone() for parameter in parameters] if settings.ema_decay else []
        state = _State(averaged, [], sums, History().columns)
    check = _check_batch(data, settings, seed) if settings.n_evals else None
    every = max(1, settings.steps // (settings.n_evals or 50))
    feed, clip = (
        _feed(data, rows, settings, seed),
        clipper(parameters, model.members, settings.clip_value, settings.clip_norm),
    )
    seeds = [member_seed(seed, k) for k in range(model.members)]
    streams = tuple(Generator() for _ in seeds)  # seeded anew at every step, which is cheaper than new ones
    nll_sum, kl_sum = state.sums.unbind()  # views
    saved = told = time.monotonic()
    told_step = state.step

    while state.step < settings.steps and not (settings.patience and state.stale >= settings.patience):
        step, rate = state.step, settings.lr_at(state.step / settings.steps)
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("factor", 1.0)
        for stream, own in zip(streams, seeds, strict=True):
            stream.manual_seed(derive_seed(own, "noise", step))
        optimizer.zero_grad(set_to_none=True)
        try:
            loss = model.loss(feed(step), streams)
            loss.total.backward()  # type: ignore[no-untyped-call]
        except NoFactor:
            break
        state.skipped += clip()
        optimizer.step()
        if settings.ema_decay:
            with torch.no_grad():
                foreach_lerp_(
                    state.averaged, parameters, 1 - min(settings.ema_decay, (1 + step) / (10 + step))
                )
        nll_sum.add_(loss.nll.detach())
        kl_sum.add_(loss.kl.detach())
        state.step += 1
        if state.step % FLUSH_EVERY == 0:
            flush_denormals(parameters, optimizer, state.averaged)

        if state.step % every == 0 or state.step == settings.steps:
            if check is not None:
                with _swapped(parameters, state.averaged):
                    _look(model, check, everything, settings, seed, state)
            _record(state, rate)
            if not all(
                bool(parameter.isfinite().all()) for parameter in parameters
            ):  # no step leads back from there
                break
        now = time.monotonic()
        if checkpoint is not None and now - saved >= save_every:
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "state": vars(state)}
            persist.save_file(checkpoint, *persist.pack({"identity": identity, "finished": False, **content}))
            saved = time.monotonic()
        if callback is not None and (now - told >= 0.1 or state.step == settings.steps):
            speed = (state.step - told_step) / max(now - told, 1e-9)
            callback(
                FitProgress(
                    state.step, settings.steps, float(loss.nll.detach().mean()), state.held_out, speed
                )
            )
            told, told_step = now, state.step

    optimizer.zero_grad(set_to_none=True)
    sample = _sample(data, settings, seed)
    if state.best:
        if state.step < settings.steps and not (settings.patience and state.stale >= settings.patience):
            warnings.warn(
                f"training diverged by step {state.step}: the weights of step {state.best_step} are kept",
                stacklevel=2,
            )
        _assign(everything, state.best)
    else:
        _assign(parameters, state.averaged or parameters)
        _refuse_diverged(model, sample, settings, seed, state.step)
    model.on_fit_end(data, named_generator(seed, "finish"))
    _refuse_diverged(model, sample, settings, seed, state.step)
    if found is not None and (
        wrong := trial(model)
    ):  # weights and moments of a file may be numbers and yet lead nowhere
        raise ValueError(
            f"{checkpoint} was continued to a model without an answer ({wrong}): delete the file to start afresh"
        )
    history = History(state.columns, state.best_step if state.best else state.step)
    if checkpoint is not None:
        content = {"model": model.state_dict(), "history": vars(history)}
        persist.save_file(checkpoint, *persist.pack({"identity": identity, "finished": True, **content}))
    return history


def _training_rows(model: Model, data: Batch) -> Tensor:  # (training rows,)
    """Rows that at least one member trains on; refuses what could not be trained."""
    count, weight = len(data), data.weight
    if count == 0:
        raise ValueError(f"data has no rows (x has shape {tuple(data.x.shape)}): give at least one")
    if weight is None:
        return torch.arange(count)
    if tuple(weight.shape) not in ((count,), (model.members, count)):
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}: it must be ({count},) or ({model.members}, {count}), one line per member"
        )
    trained = weight.reshape(-1, count) > 0
    if not bool(trained.any(1).all()):
        raise ValueError("weight is 0 for every row of a member: leave at least one row to train on")
    return trained.any(0).nonzero().squeeze(1)


def _feed(data: Batch, rows: Tensor, settings: TrainConfig, seed: int) -> Callable[[int], Batch]:
    """The batch of a step: slices of one permutation per epoch, its incomplete last part dropped."""
    per_epoch = len(rows) // settings.batch_size

    def outside(step: int, count: int) -> Tensor | None:
        """As many rows from outside the domain as the batch has."""
        if data.x_ood is None:
            return None
        return data.x_ood[
            torch.randint(len(data.x_ood), (count,), generator=named_generator(seed, "outside", step))
        ]

    if len(rows) <= settings.batch_size:
        everything = data if len(rows) == len(data) else data.take(rows)
        return lambda step: replace(
            everything, x_ood=outside(step, len(rows)), progress=step / settings.steps
        )
    order, order_epoch = rows, -1

    def feed(step: int) -> Batch:
        nonlocal order, order_epoch
        epoch, part = divmod(step, per_epoch)
        if epoch != order_epoch:
            order, order_epoch = (
                rows[torch.randperm(len(rows), generator=named_generator(seed, "order", epoch))],
                epoch,
            )
        mine = order[part * settings.batch_size : (part + 1) * settings.batch_size]
        x, y, index = (
            column.index_select(0, mine) for column in (data.x, data.y, data.index)
        )  # faster than `data.take`
        weight = None if data.weight is None else data.weight.index_select(-1, mine)
        return Batch(x, y, data.size, index, weight, outside(step, len(mine)), step / settings.steps)

    return feed


@torch.no_grad()
def _assign(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


@contextmanager
def _swapped(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """The parameters at other values for a while; no values leave them as they are."""
    kept = [parameter.detach().clone() for parameter in parameters] if values else parameters
    _assign(parameters, values or parameters)
    try:
        yield
    finally:
        _assign(parameters, kept)


def _check_batch(data: Batch, settings: TrainConfig, seed: int) -> Batch | None:
    """Up to `check_rows` held-out rows of each member; None where no row is held out."""
    if data.weight is None or not bool((data.weight == 0).any()):
        return None
    held = data.weight.reshape(-1, len(data)) == 0  # (members or 1, rows)
    chosen = torch.zeros_like(held)
    order = torch.randperm(len(data), generator=named_generator(seed, "check rows"))
    for mine, kept in zip(held, chosen, strict=True):
        kept[order[mine[order]][: settings.check_rows]] = True
    rows = chosen.any(0).nonzero().squeeze(1)
    weight = chosen[:, rows].to(data.x.dtype)
    return replace(data.take(rows), weight=weight if data.weight.ndim == 2 else weight[0])


def _look(
    model: Model, check: Batch, everything: Sequence[Tensor], settings: TrainConfig, seed: int, state: _State
) -> None:
    """One check: members count alike, and share one best step."""
    try:
        values = model.nll(check, settings.eval_samples, named_generator(seed, "check"))  # (members,)
    except NoFactor:
        values = torch.full((model.members,), math.nan, dtype=torch.float32)
    if check.weight is not None and check.weight.ndim == 2:
        values = values[check.weight.any(1)]  # a member that holds nothing out has no say
    state.held_out = float(values.mean())
    state.stale += 1
    if state.held_out < state.best_value:
        state.best = [tensor.detach().clone() for tensor in everything]
        state.best_step, state.best_value, state.stale = state.step, state.held_out, 0


def _sample(data: Batch, settings: TrainConfig, seed: int) -> Batch:
    """Some rows, whoever trains on them."""
    return data.take(
        torch.randperm(len(data), generator=named_generator(seed, "sample"))[: settings.check_rows]
    )


def _refuse_diverged(model: Model, sample: Batch, settings: TrainConfig, seed: int, step: int) -> None:
    """A model whose answers to its own rows are no numbers has learnt nothing."""
    try:
        answer = model.predict(sample.x, named_generator(seed, "sample"), settings.eval_samples, 1)
        # bounds on the answer keep the density finite where the variance is not
        found = -float(answer.log_prob(sample.y).mean()) if bool(answer.total.isfinite().all()) else math.nan
    except NoFactor:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(
            f"training diverged: after {step} steps the NLL is {found} at learning rate {settings.lr:g}: give a smaller one"
        )


def _record(state: _State, rate: float) -> None:
    columns = state.columns
    count = state.step - (columns["step"][-1] if columns["step"] else 0)
    nll, kl = (state.sums.mean(1) / count).tolist()
    for name, value in zip(COLUMNS, (state.step, rate, nll, kl, state.held_out, state.skipped), strict=True):
        columns[name].append(value)
    state.sums.zero_()
    state.skipped = 0


def _identity(model: Model, data: Batch, settings: TrainConfig, seed: int) -> dict[str, Any]:
    """What must be the same for a run to continue."""
    tensors = {name: value for name, value in vars(data).items() if isinstance(value, Tensor)}
    description = f"{type(model).__name__} {getattr(model, 'config', '')}".strip()
    return {
        "model": description,
        "seed": seed,
        "data": persist.digest(str(data.size), tensors),
        **dataclasses.asdict(settings),
    }


def _found(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint of the same run holds."""
    bundle = persist.load_file(path)
    try:
        found: dict[str, Any] = persist.unpack(bundle)
        CONTENT.check(found, "it")
        (FINISHED if found["finished"] else RUNNING).check(found, "it")
        check_finite(bundle.tensors)
    except ValueError as error:
        raise ValueError(
            f"{path} is not a checkpoint of a fit ({error}): choose another path or delete the file"
        ) from error
    for name, value in identity.items():
        former = found["identity"].get(name)
        if former != value:
            told = f"{path} is of a run with {name} {reprlib.repr(former)}, this one has {value!r}"
            raise ValueError(f"{told}: choose another path or delete the file")
    return found


def _resumed(found: dict[str, Any], path: Path, run: _Run) -> _State:
    """The state of the run, with the optimizer's own put in place. The fused step reads as far as the parameter goes: sizes must agree."""
    try:
        saved, groups = found["optimizer"], run.optimizer.param_groups
        if _fixed(saved["param_groups"]) != _fixed(run.optimizer.state_dict()["param_groups"]):
            raise ValueError("its optimizer has other groups or options")
        order = [(parameter, group) for group in groups for parameter in group["params"]]
        if not saved["state"].keys() <= set(range(len(order))):
            raise ValueError("its optimizer has other parameters")
        for number, kept in saved["state"].items():
            parameter, group = order[number]
            tensors = {name: value for name, value in kept.items() if value is not None}
            _check_moments(tensors, parameter, group, isinstance(run.optimizer, torch.optim.Adam))
        state = _State(**found["state"])
        like = {
            "averaged": run.parameters if run.settings.ema_decay else [],
            "best": run.everything if state.best else [],
        }
        for name, wanted in like.items():
            compare(_numbered(wanted), _numbered(getattr(state, name)))
        compare(_numbered([run.sums]), _numbered([state.sums]))
        lengths, last = (
            {len(column) for column in state.columns.values()},
            max(state.columns["step"], default=0),
        )
        if len(lengths) != 1 or not max(last, state.best_step) <= state.step <= run.settings.steps:
            raise ValueError("its history is not that of its steps")
        run.optimizer.load_state_dict(saved)
    except (ValueError, RuntimeError, LookupError, TypeError) as error:
        raise ValueError(
            f"{path} does not fit the run ({error}): choose another path or delete the file"
        ) from error
    return state


def _check_moments(kept: dict[str, Tensor], parameter: Tensor, group: dict[str, Any], adam: bool) -> None:
    """Tensors like the parameter, and a count of steps. Adam has all three of its states; other optimizers make anew what is missing."""
    wanted = {
        name: Spec(parameter.dtype, tuple(parameter.shape))
        for name in (("exp_avg", "exp_avg_sq", "step") if adam else kept)
    }
    if "step" in wanted:  # rows that are trained one by one count one by one
        dtype = torch.float32 if group.get("fused") else torch.get_default_dtype()
        wanted["step"] = Spec(dtype, (len(parameter), 1) if "size" in group else ())
    compare(wanted, specs(kept))
    for name in ("exp_avg_sq", "second", "step"):
        if name in kept and bool((kept[name] < 0).any()):
            raise ValueError(f"its optimizer has a negative {name}")
    if adam:
        first, second = group["betas"]
        # by Cauchy and Schwarz, whatever the gradients were; what lies beyond would throw the weights away at the next step
        bound = (
            (1 - first) / math.sqrt((1 - second) * (1 - first**2 / second))
            if first**2 < second < 1
            else math.inf
        )
        if bool(
            (kept["exp_avg"].double().abs() > 1.01 * bound * kept["exp_avg_sq"].double().sqrt() + 1e-12).any()
        ):
            raise ValueError("its optimizer has a mean of gradients larger than their squares allow")


def _fixed(groups: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """All but the rate, which is set at every step, as words and a digest: entries may be tensors."""
    words, tensors = persist.pack(
        [{name: value for name, value in group.items() if name != "lr"} for group in groups]
    )
    return words, persist.digest("", tensors)


def _numbered(tensors: Sequence[Tensor]) -> dict[str, Spec]:
    return specs({str(i): tensor for i, tensor in enumerate(tensors)})


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[FitProgress], None]]:
    """A `watch` for `fit` that draws a progress bar on stderr; fits of less than two seconds stay silent."""
    from rich import progress
    from rich.console import Console

    words = "{task.fields[speed]:.0f} steps/s  NLL {task.fields[nll]:.3f}"
    columns = (
        progress.TextColumn(title, markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn(words),
    )
    # refreshed by hand: a thread of its own would take time from the training
    drawing = progress.Progress(
        *columns,
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    task = drawing.add_task(title, speed=0.0, nll=math.nan)
    begin = time.monotonic()

    def watch(seen: FitProgress) -> None:
        if time.monotonic() - begin < 2:
            return
        drawing.start()
        nll = seen.nll if math.isnan(seen.held_out) else seen.held_out
        drawing.update(
            task, completed=seen.step, total=seen.steps, speed=seen.rate_per_second, nll=nll, refresh=True
        )

    try:
        yield watch
    finally:
        drawing.stop()
