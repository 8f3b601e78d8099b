"""A network with compound layers and a fixed set of draws: a deterministic function, ready to export."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from compound.nn.draws import Draws, using
from compound.ops.keyed_noise import keyed_normal, pass_key


class FixedDraws(nn.Module):
    """A network that computes the same draws of its weights in every call, side by side.

    All rows share the noise, so the number of rows is free and a row's draws do not depend on other rows. The
    noise is held in buffers: `torch.export` finds a deterministic network of torch's own operations.

    Parameters
    ----------
    network : torch.nn.Module
        A network with compound layers; it is put into eval mode.
    x : Tensor
        Rows to call it with once, for the shapes of the noise.
    generator : torch.Generator
        Source of the noise.
    n_samples : int, default=20
        Number of draws.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from compound.nn import CompoundLinear, FixedDraws
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), CompoundLinear(8, 3))
    >>> fixed = FixedDraws(network, torch.ones(1, 4), torch.Generator().manual_seed(0), n_samples=10)
    >>> fixed(torch.ones(5, 4)).shape
    torch.Size([10, 5, 3])
    >>> program = torch.export.export(fixed, (torch.ones(5, 4),))
    """

    def __init__(self, network: nn.Module, x: Tensor, generator: Generator, n_samples: int = 20):
        super().__init__()
        if n_samples < 1:
            raise ValueError(f"n_samples is {n_samples}: ask for at least one draw")
        self.network = network.eval()
        self.n_samples = n_samples
        for k in range(n_samples):
            for number, values in self._record(x, generator).items():
                self.register_buffer(f"noise_{k}_{number}", values)

    @torch.no_grad()
    def _record(self, x: Tensor, generator: Generator) -> dict[int, Tensor]:
        """The noise arrays of one pass, by number."""
        key = pass_key(generator)
        noise: dict[int, Tensor] = {}

        def source(number: int, shape: Sequence[int], like: Tensor) -> Tensor:
            noise[number] = keyed_normal(key, number, shape, like)
            return noise[number]

        with using(Draws(source, shared=True, kl=False)):
            self.network(x)
        if not noise:
            raise ValueError("the network has no compound layer: there is nothing to draw")
        return noise

    def forward(self, x: Tensor) -> Any:
        """The network's outputs for every draw, (n_samples, rows, ...)."""
        outputs = []
        for k in range(self.n_samples):

            def source(number: int, shape: Sequence[int], like: Tensor, k: int = k) -> Tensor:
                noise: Tensor = getattr(self, f"noise_{k}_{number}")
                return noise

            with using(Draws(source, shared=True, kl=False)):
                outputs.append(self.network(x))
        return torch.stack(outputs)
