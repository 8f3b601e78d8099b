"""Evaluation during a fit: the held-out NLL that chooses the best step, and the test for divergence."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from compound.models.base import Model
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.processes import Processes
from compound.train.state import TrainState, copy_tensors
from compound.types import Batch

ONE = Processes()
LinAlgError: type[RuntimeError] = torch.linalg.LinAlgError  # type: ignore[attr-defined]  # of a matrix with NaN


def held_out_batch(data: Batch, config: TrainConfig, seed: int) -> Batch | None:
    """The rows on which a fit is evaluated: up to `config.eval_rows` held-out rows of each member.

    A weight above 0, in (rows,) or (members, rows), marks the rows of a member. None where no row is held
    out, or `config.n_evals` is 0.
    """
    if not config.n_evals or data.weight is None or not bool((data.weight == 0).any()):
        return None
    held_out = data.weight.reshape(-1, len(data)) == 0  # (members or 1, rows)
    chosen = torch.zeros_like(held_out)
    order = torch.randperm(len(data), generator=named_generator(seed, "check rows"))
    for member_held_out, member_chosen in zip(held_out, chosen, strict=True):
        member_chosen[order[member_held_out[order]][: config.eval_rows]] = True
    rows = chosen.any(0).nonzero().squeeze(1)
    weight = chosen[:, rows].to(data.x.dtype)
    if data.importance is not None:
        weight = weight * data.importance[rows]
    return replace(data.take(rows), weight=weight if data.weight.ndim == 2 else weight[0])


def held_out_nll(
    model: Model, batch: Batch, config: TrainConfig, seed: int, processes: Processes = ONE
) -> float:
    """Mean over members of their NLL on their own held-out rows, a batch of `held_out_batch`.

    With `Model.eval_mixture`, where all members hold out the same rows, it is that of their mixture. NaN
    where a matrix cannot be factorised (LinAlgError), as after divergence. Each process evaluates its part
    of the rows.
    """
    part = batch if processes.size == 1 else replace(batch.part(processes.rank, processes.size), share=None)
    if model.eval_mixture and batch.weight is not None and batch.weight.ndim == 1:
        nll = _mixture_nll(model, part, config, seed) if len(part) else part.x.new_zeros(())
        return float(_mean_over_processes(nll, part, batch, processes))
    try:
        if len(part):
            values = model.nll(part, config.eval_samples, named_generator(seed, "check"))  # (members,)
        else:
            values = torch.zeros(model.members, dtype=batch.x.dtype)
    except LinAlgError:
        values = torch.full((model.members,), math.nan, dtype=torch.float32)
    values = _mean_over_processes(values, part, batch, processes)
    if batch.weight is not None and batch.weight.ndim == 2:
        values = values[batch.weight.any(1)]  # members without held-out rows do not count
    return float(values.mean())


def _mean_over_processes(values: Tensor, part: Batch, batch: Batch, processes: Processes) -> Tensor:
    """Means over the rows of a batch, (members,) or (), from those over the rows of this process's part."""
    if processes.size == 1:
        return values
    assert part.weight is not None and batch.weight is not None
    weight = part.weight.sum(-1).to(values.dtype)
    share = torch.where(weight > 0, weight * values, 0.0)  # the mean over no rows is NaN
    return processes.sum(share) / batch.weight.sum(-1).to(values.dtype)


@torch.no_grad()
def _mixture_nll(model: Model, batch: Batch, config: TrainConfig, seed: int) -> Tensor:  # ()
    """NLL of the predictive of all members, with weights (rows,)."""
    weight = cast(Tensor, batch.weight)
    n_samples = config.eval_samples * model.members
    predictive = model.predict(batch.x, named_generator(seed, "check"), n_samples, model.eval_inner)
    return -(weight * predictive.log_prob(batch.y)).sum() / weight.sum()


def update_best(state: TrainState, tensors: list[Tensor], nll: float) -> None:
    """Record an evaluation in `state`; if the held-out `nll` is the lowest so far, copy the model's tensors.

    All members share one best step.
    """
    state.held_out = nll
    state.stale += 1
    if nll < state.best_nll:
        state.best = [tensor.detach().clone() for tensor in tensors]
        state.best_step = state.step
        state.best_nll = nll
        state.stale = 0


@contextmanager
def swapped(parameters: list[Tensor], values: list[Tensor]) -> Iterator[None]:
    """Set the parameters to `values` within a `with` block; no change if `values` is empty."""
    if not values:
        yield
        return
    former = [parameter.detach().clone() for parameter in parameters]
    copy_tensors(parameters, values)
    try:
        yield
    finally:
        copy_tensors(parameters, former)


def check_not_diverged(model: Model, data: Batch, config: TrainConfig, seed: int, step: int) -> None:
    """Raise ValueError if total uncertainty or NLL, on a random sample of the rows, is not finite.

    `step` is the number of steps done, for the message.
    """
    rows = torch.randperm(len(data), generator=named_generator(seed, "sample"))[: config.eval_rows]
    sample = data.take(rows)
    nll = math.nan
    try:
        predictive = model.predict(sample.x, named_generator(seed, "sample"), config.eval_samples, 1)
        # bounds on the predictive keep the density finite where the variance is not
        if bool(predictive.total.isfinite().all()):
            nll = -float(predictive.log_prob(sample.y).mean())
    except LinAlgError:
        pass
    if not math.isfinite(nll):
        raise ValueError(
            f"training diverged: after {step} steps the NLL is {nll} at learning rate {config.lr:g}: "
            "give a smaller one"
        )
