"""What a DataLoader gives: pairs, triples with weights, or dictionaries; and what a network answers."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

TARGETS = ("labels", "label", "targets", "target", "y")  # keys of targets in a dictionary
WEIGHTS = ("sample_weight", "weight")
Loader = Iterable[Any]
Network = Callable[..., Any]


class LoadedBatch(NamedTuple):
    """A batch as the network and the loss need it."""

    inputs: Any  # a tensor, or a dictionary of keyword arguments
    targets: Tensor | None
    weight: Tensor | None


def unpack(batch: Any) -> LoadedBatch:
    """Inputs, targets and weights of a batch: x, (x,), (x, y), (x, y, weight) or a dictionary.

    A dictionary's targets are under one of TARGETS, its weights under one of WEIGHTS; the network gets all
    other entries by name.
    """
    if isinstance(batch, Mapping):
        rest = dict(batch)
        targets = next((rest.pop(key) for key in TARGETS if key in rest), None)
        weight = next((rest.pop(key) for key in WEIGHTS if key in rest), None)
        return LoadedBatch(rest, targets, weight)
    if isinstance(batch, Tensor):
        return LoadedBatch(batch, None, None)
    if not isinstance(batch, list | tuple) or not 1 <= len(batch) <= 3:
        raise ValueError(
            f"a batch is a {type(batch).__name__}: the loader must give x, (x, y), (x, y, weight) or a "
            "dictionary"
        )
    return LoadedBatch(*batch, *[None] * (3 - len(batch)))


def with_targets(batch: Any) -> tuple[Any, Tensor, Tensor | None]:
    """`unpack` for a batch that must have targets; ValueError if it has none."""
    inputs, targets, weight = unpack(batch)
    if targets is None:
        raise ValueError(
            "a batch has no targets: give pairs (x, y), or a dictionary with one of " + ", ".join(TARGETS)
        )
    return inputs, targets, weight


def call(network: Network, inputs: Any, device: torch.device | None = None) -> Tensor:
    """The network's tensor for inputs: it may give it plainly, first in a tuple, or as `logits`."""
    if isinstance(inputs, Mapping):
        return as_tensor(network(**{key: to_device(value, device) for key, value in inputs.items()}))
    return as_tensor(network(to_device(inputs, device)))


def as_tensor(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits  # type: ignore[no-any-return]
    if isinstance(output, list | tuple) and output and isinstance(output[0], Tensor):
        return output[0]
    raise ValueError(f"the network gives a {type(output).__name__}: it must give a tensor, or one as logits")


def to_device(value: Any, device: torch.device | None) -> Any:
    return value.to(device) if isinstance(value, Tensor) and device is not None else value


def device_of(network: Network) -> torch.device | None:
    """The device of a module's first parameter; None for a function or a module without parameters."""
    parameters = network.parameters() if isinstance(network, torch.nn.Module) else iter(())
    first = next(parameters, None)
    return None if first is None else first.device


def pooled(features: Tensor) -> Tensor:  # (rows, features)
    """Feature maps (rows, channels, ...) as their means over all positions, as float32 on the CPU."""
    rows = features.detach().float().cpu()
    return rows.flatten(2).mean(2) if rows.ndim > 2 else rows
