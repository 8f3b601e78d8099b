"""Hypernetworks: the weights of every layer depend on its input, without a distribution.

    h_l = relu( V_l^T (s_l(h_{l-1}) * h~_{l-1}) ),    h~ = [h; 1],    s_l = 1 + g_l(h_{l-1}; ψ_l)

    minimise  mean -log p(y | f(x)) + δ / (2 N) (|V|² + |ψ|²)

Ha, Dai and Le (2017), with the scaling of the rows of a basis V that compound density networks use: this is
the limit of a CDN whose mixing distribution has no variance, W | h = diag(s(h)) V.

A draw: there is none, and the posterior part is 0.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Generator, Tensor, nn

from compound.models.base import Loss
from compound.models.network_model import NetworkModel, NetworkVarianceConfig
from compound.nn.networks import Linear, Network, l2_penalty
from compound.ops.affine import append_ones
from compound.ops.clamp import clamp_inputs, clipped_relu
from compound.predictive import Predictive
from compound.random import Generators, named_generator
from compound.types import Batch, Task

SMALL = 0.1  # factor on the initial weights of the last maps: scales start near 1


@dataclass(frozen=True)
class HypernetConfig(NetworkVarianceConfig):
    """Options of `hypernet`.

    Parameters
    ----------
    hyper : tuple of int, default=(50,)
        Hidden layers of each hypernetwork.
    precision : float, default=0.0
        δ, prior precision of every weight.
    """

    hyper: tuple[int, ...] = (50,)
    precision: float = 0.0


class ScaledLinear(nn.Module):
    """An affine map whose inputs, and bias, are scaled by a network of its inputs."""

    def __init__(self, inputs: int, outputs: int, hyper: tuple[int, ...], gain: float, generator: Generator):
        super().__init__()
        basis = Linear(inputs, outputs, [generator], gain)
        self.basis = nn.Parameter(torch.cat([basis.weight, basis.bias], 1).detach())  # V, (1, in + 1, out)
        self.hyper = Network((inputs, *hyper, inputs + 1), [generator])
        with torch.no_grad():
            self.hyper.layers[-1].weight.mul_(SMALL)

    def forward(self, h: Tensor) -> Tensor:  # (rows, in) -> (rows, out)
        scale = 1 + self.hyper.forward_clamped(h)[0]
        return (scale * append_ones(h)) @ self.basis[0]


class Hypernet(NetworkModel):
    """A network whose weights are scaled by hypernetworks."""

    method = "hypernet"
    Config = HypernetConfig
    reference = "Ha, Dai and Le (2017)"
    components = ("component",)

    def __init__(self, inputs: int, task: Task, config: HypernetConfig, seed: int = 0):
        if not config.precision >= 0:
            raise ValueError(f"precision is {config.precision}: give a number >= 0")
        if any(width < 1 for width in config.hyper):
            raise ValueError(f"hyper is {config.hyper}: give widths of at least 1")
        super().__init__(inputs, task, config)
        stream = named_generator(seed, "weights")
        pairs = list(zip(self.widths, self.widths[1:], strict=False))
        gains = [2.0] * (len(pairs) - 1) + [1.0]  # the last map feeds no ReLU
        self.stack = nn.ModuleList(
            ScaledLinear(a, b, config.hyper, gain, stream) for (a, b), gain in zip(pairs, gains, strict=True)
        )

    def _outputs(self, x: Tensor) -> Tensor:  # (rows, outputs)
        *first, last = cast(list[ScaledLinear], list(self.stack))
        h = clamp_inputs(x)
        for layer in first:
            h = clipped_relu(layer(h))
        return last(h)  # type: ignore[no-any-return]

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        nll = self.likelihood.nll(self._outputs(batch.x), batch.y, batch.row_weights)  # () or (1,)
        penalty = l2_penalty(self.stack.parameters(), self.config.precision / batch.size)  # (1,)
        return Loss((nll + penalty).sum(), nll.detach(), penalty.detach())

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        return self.likelihood.predictive(self._outputs(x)[None, None, None])

    @property
    def hidden_units(self) -> int:
        scales = sum(self.widths[:-1]) + len(self.stack) * (1 + sum(self.config.hyper))
        return super().hidden_units + 2 * scales  # type: ignore[operator]
