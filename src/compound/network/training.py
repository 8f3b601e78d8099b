"""The training of a head, with its backbone or on features that stay."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from compound.network.batches import Loader, Network, call, device_of, to_device, unpack, with_targets
from compound.network.features import Collected, collect, flat_inputs, no_inputs
from compound.random import named_generator

if TYPE_CHECKING:
    from compound.network.head import Head

CLIP_NORM = 5.0


def train_head(
    head: "Head", backbone: Network, loader: Loader, epochs: int, lr: float, frozen: bool
) -> tuple[list[float], Collected | None]:
    """Mean loss of every epoch, and the features of all training rows where they stay (`frozen`)."""
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
            features = inputs.to(device) if frozen else call(backbone, inputs, device)
            progress = (epoch + k / len(batches)) / epochs if hasattr(batches, "__len__") else 1.0
            loss = head(features, y.to(device), to_device(weight, device), progress=progress)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
            optimizer.step()
            sums.append(float(loss.detach()))
        losses.append(sum(sums) / len(sums))
    return losses, train


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
