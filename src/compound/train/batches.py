"""Selection of rows during a fit: those that are trained on, and the mini-batch of each step."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from compound.models.base import Model
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.types import Batch


def training_rows(model: Model, data: Batch) -> Tensor:  # (training rows,)
    """Indices of the rows that some member trains on; ValueError for data that cannot be trained on."""
    count = len(data)
    weight = data.weight
    if count == 0:
        raise ValueError(f"data has no rows (x has shape {tuple(data.x.shape)}): give at least one")
    if weight is None:
        return torch.arange(count)
    if tuple(weight.shape) not in ((count,), (model.members, count)):
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}: it must be ({count},) or ({model.members}, {count}), "
            "one line per member"
        )
    is_trained = weight.reshape(-1, count) > 0  # (members or 1, rows)
    if not bool(is_trained.any(1).all()):
        raise ValueError("weight is 0 for every row of a member: leave at least one row to train on")
    return is_trained.any(0).nonzero().squeeze(1)


def batch_sampler(data: Batch, rows: Tensor, config: TrainConfig, seed: int) -> Callable[[int], Batch]:
    """A function that maps a step to its mini-batch of `rows` (training rows,), indices into `data`.

    The batch depends on the arguments and the step only, not on earlier calls, so a fit can be resumed.
    """
    if len(rows) <= config.batch_size:
        return _full_batches(data, rows, config, seed)
    return _mini_batches(data, rows, config, seed)


def _full_batches(data: Batch, rows: Tensor, config: TrainConfig, seed: int) -> Callable[[int], Batch]:
    """A function that returns all training rows at every step; only `x_ood` and `progress` change."""
    batch = data if len(rows) == len(data) else data.take(rows)
    steps, count = config.steps, len(rows)
    return lambda step: replace(batch, x_ood=_ood_rows(data, step, count, seed), progress=step / steps)


def _mini_batches(data: Batch, rows: Tensor, config: TrainConfig, seed: int) -> Callable[[int], Batch]:
    """A function that returns slices of a permutation of `rows`, a new one for each epoch.

    An incomplete last slice is dropped.
    """
    size = config.batch_size
    per_epoch = len(rows) // size
    order = rows
    order_epoch = -1

    def batch_at(step: int) -> Batch:
        nonlocal order, order_epoch
        epoch, slice_index = divmod(step, per_epoch)
        if epoch != order_epoch:
            order = rows[torch.randperm(len(rows), generator=named_generator(seed, "order", epoch))]
            order_epoch = epoch
        chosen = order[slice_index * size : (slice_index + 1) * size]
        x = data.x.index_select(0, chosen)  # faster than `data.take`
        y = data.y.index_select(0, chosen)
        index = data.index.index_select(0, chosen)
        weight = None if data.weight is None else data.weight.index_select(-1, chosen)
        x_ood = _ood_rows(data, step, len(chosen), seed)
        return Batch(x, y, data.size, index, weight, x_ood, step / config.steps)

    return batch_at


def _ood_rows(data: Batch, step: int, count: int, seed: int) -> Tensor | None:  # (count, features)
    """Draw `count` rows of `data.x_ood`, with replacement; None where the data have none."""
    if data.x_ood is None:
        return None
    chosen = torch.randint(len(data.x_ood), (count,), generator=named_generator(seed, "outside", step))
    return data.x_ood[chosen]
