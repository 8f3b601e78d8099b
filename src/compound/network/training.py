"""The training of a head, with its backbone or on features that stay."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from compound.network.batches import Loader, Network, call, device_of, to_device, unpack, with_targets
from compound.network.features import Collected, collect, flat_inputs, no_inputs
from compound.random import PartGenerator, named_generator
from compound.train.processes import Processes
from compound.types import Share, part_rows

if TYPE_CHECKING:
    from compound.network.head import Head

CLIP_NORM = 5.0


def train_head(
    head: "Head",
    backbone: Network,
    loader: Loader,
    epochs: int,
    lr: float,
    frozen: bool,
    processes: Processes,
) -> tuple[list[float], Collected | None]:
    """Mean loss of every epoch, and the features of all training rows where they stay (`frozen`).

    Of several processes each computes its part of every batch.
    """
    if iter(loader) is loader:
        raise ValueError("the loader can be passed through once only: give a DataLoader or a list")
    _start(head, loader)
    train: Collected | None = None
    batches: Any = loader
    if frozen:
        train = collect(head.reader(backbone), loader, flat_inputs if head.inputs else no_inputs)
        head.set_units(train.features)
        batches = _Shuffled(train, max(len(with_targets(batch)[1]) for batch in loader), head.seed)
    device = device_of(head)
    optimizer = _optimizer(head, None if frozen else backbone, lr)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    losses = []
    for epoch in range(epochs):
        sums = []
        for k, batch in enumerate(batches):
            inputs, y, weight = with_targets(batch)
            progress = (epoch + k / len(batches)) / epochs if hasattr(batches, "__len__") else 1.0
            optimizer.zero_grad(set_to_none=True)
            if processes.size > 1:
                loss = _part_gradients(head, backbone, batch, frozen, progress, parameters, processes)
            else:
                features = inputs.to(device) if frozen else call(backbone, inputs, device)
                loss = head(features, y.to(device), to_device(weight, device), progress=progress)
                loss.backward()
            nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
            optimizer.step()
            sums.append(float(loss.detach()))
        losses.append(sum(sums) / len(sums))
    return losses, train


def _part_gradients(
    head: "Head",
    backbone: Network,
    batch: Any,
    frozen: bool,
    progress: float,
    parameters: list[Tensor],
    processes: Processes,
) -> Tensor:  # ()
    """The loss of a batch of which every process computes a part, and its gradients in all of them."""
    inputs, y, weight = with_targets(batch)
    device, count = device_of(head), len(y)
    processes.check(head.model, count)
    rows = part_rows(count, processes.rank, processes.size)
    features = inputs[rows].to(device) if frozen else call(backbone, _rows_of(inputs, rows, count), device)
    per_row = len(features.reshape(-1, head.features)) // (rows.stop - rows.start)  # tokens, say
    part = head.batch(
        features, y[rows].to(device), None if weight is None else weight[rows].to(device), progress
    )
    total = float(count * per_row) if weight is None else float(weight.sum())
    share = Share(total / processes.size, 0.0, processes.average)
    generators = head.noise(PartGenerator)
    for generator in cast(list[PartGenerator], generators):
        generator.take(slice(rows.start * per_row, rows.stop * per_row), count * per_row)
    loss = head.batch_loss(replace(part, share=share), generators)
    loss.backward()  # type: ignore[no-untyped-call]
    mean = loss.detach().clone()
    processes.mean_gradients(parameters, [mean], failed=False)
    return mean


def _rows_of(inputs: Any, rows: slice, count: int) -> Any:
    """Some rows of a batch's inputs: of a tensor, or of those entries of a dictionary that have all rows."""
    if isinstance(inputs, Mapping):
        return {key: _rows_of(value, rows, count) for key, value in inputs.items()}
    return inputs[rows] if isinstance(inputs, Tensor) and inputs.ndim and len(inputs) == count else inputs


def _start(head: "Head", loader: Loader) -> None:
    """Pass once through the loader for the units of the targets, and for N: the sum of the weights."""
    targets, total = [], 0.0
    for batch in loader:
        _, y, weight = with_targets(batch)
        targets.append(head.target_rows(y).to(device_of(head)))
        total += len(targets[-1]) if weight is None else float(unpack(batch).weight.sum())  # type: ignore[union-attr]
    head.start(torch.cat(targets), total)


def _optimizer(head: "Head", backbone: Network | None, lr: float) -> torch.optim.Optimizer:
    """Adam; parameters of the head have the factors of its method on the learning rate."""
    factors = head.model.lr_multipliers()
    groups: list[dict[str, Any]] = [
        {"params": [p], "lr": lr * factors.get(name.rsplit(".", 1)[-1], 1.0)}
        for name, p in head.model.named_parameters()
        if p.requires_grad
    ]
    if isinstance(backbone, nn.Module):
        trained = [p for p in backbone.parameters() if p.requires_grad]
        groups += [{"params": trained, "lr": lr}] if trained else []
    return torch.optim.Adam(groups)


class _Shuffled:
    """Batches of features in memory, in another random order at every pass."""

    def __init__(self, rows: Collected, batch_size: int, seed: int):
        self.rows, self.batch_size, self.seed, self.epoch = rows, batch_size, seed, 0

    def __len__(self) -> int:
        return math.ceil(len(self.rows.features) / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        count = len(self.rows.features)
        order = torch.randperm(count, generator=named_generator(self.seed, "order", self.epoch))
        self.epoch += 1
        for rows in order.split(self.batch_size):
            yield self.rows.features[rows], self.rows.targets[rows], self.rows.weight[rows]
