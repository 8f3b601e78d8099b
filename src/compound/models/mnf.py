"""Multiplicative normalising flows: Gaussian weights, with random scales on every layer's inputs.

    q(W) = ∫ q(z) prod_ij N(W_ij; z_i M_ij, S_ij²) dz,    z = flow(z_0),  z_0 ~ N(m_0, v_0)

minimise  mean E_q -log p(y | f(x; W)) + 1/N sum_layers E [ KL[q(W | z) || p(W)] + KL[q(b) || p(b)] + log q(z)
- log r(z | W) ]

The auxiliary posterior r is a Gaussian behind a flow; the sum is at least KL[q(W) || p(W)], and equal to it
if r = q(z | W). Louizos and Welling (2017).

A draw: n_samples * n_inner draws of z and W of every layer; all of it is epistemic.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Generator, Tensor, nn

from compound.models.base import Loss
from compound.models.network_model import NetworkModel, NetworkVarianceConfig
from compound.nn.multiplicative import MultiplicativeLinear
from compound.ops.clamp import clamp_inputs, clipped_relu
from compound.ops.gaussian_noise import standard_normal
from compound.predictive import Predictive
from compound.random import Generators, named_generator, only_generator
from compound.types import Batch, Task


@dataclass(frozen=True)
class MNFConfig(NetworkVarianceConfig):
    """Options of `mnf`.

    Parameters
    ----------
    flows_q : int, default=2
        Steps of the flow of q(z); 0: z is Gaussian.
    flows_r : int, default=2
        Steps of the flow of the auxiliary posterior r(z | W).
    flow_hidden : int, default=50
        Width of the steps of both flows.
    groups : int, default=2
        Draws of z per training step; rows share them in turn.
    samples : int, default=1
        Draws of W per row in training.
    prior : float, default=1.0
        Prior variance of every weight.
    log_std : float, default=-9.0
        Initial log S.
    anneal : float, default=0.0
        Fraction of training over which the weight of the KL rises from 0 to 1.
    """

    flows_q: int = 2
    flows_r: int = 2
    flow_hidden: int = 50
    groups: int = 2
    samples: int = 1
    prior: float = 1.0
    log_std: float = -9.0
    anneal: float = 0.0


class MNF(NetworkModel):
    """A network with a flow posterior over its weights."""

    method = "mnf"
    takes_families = True
    Config = MNFConfig
    reference = "Louizos and Welling (2017)"
    components = ("component", "posterior")
    whole_batches = "the draw of a row depends on its position in the batch"

    def __init__(self, inputs: int, task: Task, config: MNFConfig, seed: int = 0):
        for name, low in (("flows_q", 0), ("flows_r", 0), ("flow_hidden", 1), ("groups", 1), ("samples", 1)):
            if (value := getattr(config, name)) < low:
                raise ValueError(f"{name} is {value}: give a whole number of at least {low}")
        if not config.prior > 0:
            raise ValueError(f"prior is {config.prior}: give a variance above 0")
        if not 0 <= config.anneal <= 1:
            raise ValueError(f"anneal is {config.anneal}: give a part of training between 0 and 1")
        super().__init__(inputs, task, config)
        generator = named_generator(seed, "weights")
        flows = (config.flows_q, config.flows_r)
        options = (flows, config.flow_hidden, config.prior, config.log_std)
        pairs = zip(self.widths, self.widths[1:], strict=False)
        self.stack = nn.ModuleList(MultiplicativeLinear(a, b, generator, *options) for a, b in pairs)

    @property
    def layers(self) -> list[MultiplicativeLinear]:
        return cast(list[MultiplicativeLinear], list(self.stack))

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        generator, samples, anneal = only_generator(generator), self.config.samples, self.config.anneal
        x = clamp_inputs(batch.x)
        first, *rest = self.layers
        # (samples rows, width)
        h, bound = first(x if samples == 1 else x.repeat(samples, 1), self.config.groups, generator)
        for layer in rest:
            h, more = layer(clipped_relu(h), self.config.groups, generator)
            bound = bound + more
        # () or (S,) or (1,)
        nll = self.likelihood.nll(
            h if samples == 1 else h.view(samples, len(x), -1), batch.y, batch.row_weights
        )
        nll = nll.mean() if nll.ndim else nll
        kl = bound.mean() * ((min(1.0, batch.progress / anneal) if anneal else 1.0) / batch.size)
        return Loss(nll + kl, nll.detach(), kl.detach())

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        x, draws = clamp_inputs(x), n_samples * n_inner
        noises = [
            (layer.draw(draws, generator), standard_normal(generator, (draws, 1, layer.outputs), x))
            for layer in self.layers
        ]
        first, *rest = self.layers
        std = first.std(x)  # (rows, width): the same for all draws
        step = max(1, 2048 // len(x))  # draws computed together: few rows would leave the processor idle
        parts = []
        for begin in range(0, draws, step):
            part = slice(begin, begin + step)
            (z, noise), *others = [(z[part], noise[part]) for z, noise in noises]
            h = torch.addcmul(first.means(x.unsqueeze(0), z), std, noise)  # (draws, rows, width)
            for layer, (z, noise) in zip(rest, others, strict=True):
                h = clipped_relu(h)
                h = torch.addcmul(layer.means(h, z), layer.std(h), noise)
            parts.append(h)
        return self.likelihood.predictive(torch.cat(parts)[None, :, None])
