"""Features and outputs of a network that is not changed: hooks and modes are as before afterwards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from compound.network.batches import Loader, as_tensor, call, device_of, pooled, unpack
from compound.nn import sampling
from compound.nn.compound_layer import CompoundLayer
from compound.random import named_generator

Features = str | Callable[[Any], Tensor]
MAX_INPUTS = 4096  # numbers per row up to which inputs are kept where nothing else is said


@contextmanager
def evaluating(network: Any) -> Iterator[None]:
    """Evaluation mode without gradients; every submodule is back in its own mode afterwards."""
    modules = list(network.modules()) if isinstance(network, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


class FeatureReader:
    """Reads features (rows, features) and outputs (rows, outputs) of a network, as float32 on the CPU.

    `features` is the name of a submodule, whose output they are, or a function of the inputs. Feature maps
    (rows, channels, ...) are averaged over positions. Outputs of a network with compound layers are
    (rows, draws, outputs), n_samples draws that all rows share; its features are those of the mean weights.
    """

    def __init__(self, network: nn.Module, features: Features, n_samples: int = 20, seed: int = 0):
        self.network = network
        self.features = features
        layers = [module for module in network.modules() if isinstance(module, CompoundLayer)]
        self.n_samples = n_samples if layers else 0
        self.has_posterior = any(layer.bayes for layer in layers)
        self.seed = seed
        if isinstance(features, str):
            modules = dict(network.named_modules())
            if features not in modules or not features:
                names = ", ".join(name for name in modules if name)
                raise ValueError(f"features is {features!r}: the network has {names}")

    def __call__(self, inputs: Any) -> tuple[Tensor, Tensor]:
        found: list[Tensor] = []
        device = device_of(self.network)
        with evaluating(self.network):
            if isinstance(self.features, str):
                outputs = self._hooked(self.features, inputs, device, found)
            else:
                found.append(call(self.features, inputs, device))
                outputs = (
                    torch.zeros(0, dtype=torch.float32)
                    if self.n_samples
                    else call(self.network, inputs, device)
                )
            return pooled(found[0]), self._draws(inputs, device) if self.n_samples else pooled(outputs)

    def _hooked(self, name: str, inputs: Any, device: torch.device | None, found: list[Tensor]) -> Tensor:
        """The outputs of the network; what its submodule gives goes to `found`."""
        module = self.network.get_submodule(name)
        handle = module.register_forward_hook(lambda _, __, output: found.append(as_tensor(output)))
        try:
            outputs = call(self.network, inputs, device)
        finally:
            handle.remove()
        if len(found) != 1:
            raise ValueError(
                f"features is {name!r}: it ran {len(found)} times for one batch, not once; "
                "give a function of the inputs"
            )
        return outputs

    def _draws(self, inputs: Any, device: torch.device | None) -> Tensor:  # (rows, draws, outputs)
        generator = named_generator(self.seed, "draws")
        draws = []
        for _ in range(self.n_samples):
            with sampling(generator, shared=True, kl=False):
                draws.append(pooled(call(self.network, inputs, device)))
        return torch.stack(draws, 1)


class Collected(NamedTuple):
    """Rows of a loader as tensors; those of one kind share the order."""

    features: Tensor  # (rows, features)
    outputs: Tensor  # (rows, outputs) or (rows, draws, outputs)
    inputs: Tensor  # (rows, numbers), or (rows, 0) where inputs are not kept
    targets: Tensor  # (rows,) or (rows, targets)
    weight: Tensor  # (rows,)


def collect(
    read: Callable[[Any], tuple[Tensor, Tensor]],
    loader: Loader,
    flat: Callable[[Any], Tensor | None],
    limit: int | None = None,
    generator: Generator | None = None,
) -> Collected:
    """All rows of a loader; with a `limit` a random sample of so many, drawn while they stream past.

    `flat` gives the inputs to keep as rows of numbers, or None: `no_inputs`, `flat_inputs`, `bounded_inputs`.
    """
    parts: list[Collected] = []
    keys = torch.zeros(0, dtype=torch.float32)  # random numbers: the rows with the smallest ones stay
    for batch in loader:
        inputs, targets, weight = unpack(batch)
        features, outputs = read(inputs)
        rows = len(features)
        kept_inputs = flat(inputs)
        x = features.new_zeros(rows, 0) if kept_inputs is None else kept_inputs
        y = torch.zeros(rows, dtype=torch.float32) if targets is None else targets.detach().cpu()
        w = torch.ones(rows, dtype=torch.float32) if weight is None else weight.detach().float().cpu()
        parts.append(Collected(features, outputs, x, y, w))
        if limit is not None:
            keys = torch.cat([keys, torch.rand(rows, generator=generator, dtype=torch.float32)])
            if len(keys) > 2 * limit:
                kept, keys = _smallest(_joined(parts), keys, limit)
                parts = [kept]
    if not parts:
        raise ValueError("the loader gives no batch")
    kept = _joined(parts)
    return kept if limit is None or len(keys) <= limit else _smallest(kept, keys, limit)[0]


def _joined(parts: list[Collected]) -> Collected:
    if len({part.inputs.shape[1] for part in parts}) > 1:  # padded to the longest row of a batch
        parts = [part._replace(inputs=part.inputs[:, :0]) for part in parts]
    return Collected(*map(torch.cat, zip(*parts, strict=True)))


def _smallest(rows: Collected, keys: Tensor, limit: int) -> tuple[Collected, Tensor]:
    order = keys.argsort()[:limit]
    return Collected(*(values[order] for values in rows)), keys[order]


def no_inputs(inputs: Any) -> None:
    """Nothing: inputs are not kept."""


def bounded_inputs(inputs: Any) -> Tensor | None:  # (rows, numbers)
    """Inputs as rows of at most MAX_INPUTS numbers; None where they are larger or not one tensor of such."""
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or inputs.ndim < 2:
        return None
    return flat_inputs(inputs) if inputs.shape[1:].numel() <= MAX_INPUTS else None


def flat_inputs(inputs: Any) -> Tensor:  # (rows, numbers)
    """Inputs as rows of numbers; ValueError where they are not one tensor of floating-point numbers."""
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        raise ValueError("far noise on inputs needs inputs that are one tensor of floating-point numbers")
    return inputs.detach().float().cpu().flatten(1)


def check_disjoint(train: Collected, held_out: Collected) -> None:
    """Raise ValueError if most held-out rows are among the training rows."""
    # in half precision: the last bits of a row's features depend on the size of its batch
    seen, rows = (torch.cat([r.features, r.outputs.flatten(1)], 1).half() for r in (train, held_out))
    keys = {row.numpy().tobytes() for row in seen}
    known = sum(row.numpy().tobytes() in keys for row in rows)
    if known > 0.5 * len(rows):
        raise ValueError(
            f"{known} of {len(rows)} rows of val_loader are rows of train_loader: give rows that the network "
            "was not trained on"
        )
