"""Monte Carlo dropout: predictions are averaged over networks from which units were dropped at random.

    f(x; m) = (m_L ∘ h_L) W_L + b_L,    m_l = Bernoulli(1 - p_l) / (1 - p_l)
    minimise  mean -log p(y | f(x; m)) + 1/N sum_l [ ℓ² / (2 (1 - p_l)) |W_l|² + ℓ² / 2 |b_l|² ]

Gal and Ghahramani (2016). The penalty is the KL of the distribution of the masked weights M = W / (1 - p), (1
- p) ℓ²/2 |M|², to the prior N(0, 1/ℓ²); as log p holds the noise itself, no precision τ = 1/σ² divides it. ℓ
= 0 leaves it out.

A draw: n_samples * n_inner masks for each layer, shared by all rows, so that a draw is a function; all of it
is epistemic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from compound.models.base import Loss
from compound.models.network_model import NetworkModel, NetworkVarianceConfig
from compound.nn.networks import Linear, Network
from compound.ops.clamp import clamp_inputs, clipped_relu
from compound.predictive import Predictive
from compound.random import Generators, PartGenerator, named_generator, only_generator
from compound.types import Batch, Task

TOGETHER = 2048  # rows times draws computed at once: their arrays fit into the cache


@dataclass(frozen=True)
class MCDropoutConfig(NetworkVarianceConfig):
    """Options of `mc-dropout`.

    Parameters
    ----------
    rate : float, default=0.5
        p, fraction of the hidden units that is dropped.
    input_rate : float, default=0.0
        Fraction of the inputs that is dropped.
    length_scale : float, default=0.0
        ℓ, one over the prior's standard deviation; 0: no penalty.
    """

    rate: float = 0.5
    input_rate: float = 0.0
    length_scale: float = 0.0


class MCDropout(NetworkModel):
    """A network with dropout in training and at prediction."""

    method = "mc-dropout"
    takes_families = True
    Config = MCDropoutConfig
    reference = "Gal and Ghahramani (2016)"
    components = ("component", "posterior")

    def __init__(self, inputs: int, task: Task, config: MCDropoutConfig, seed: int = 0):
        for name in ("rate", "input_rate"):
            if not 0 <= getattr(config, name) < 1:
                raise ValueError(
                    f"{name} is {getattr(config, name)}: give a fraction of at least 0 and below 1"
                )
        if config.length_scale < 0:
            raise ValueError(f"length_scale is {config.length_scale}: give a number >= 0")
        super().__init__(inputs, task, config)
        self.network = Network(self.widths, [named_generator(seed, "weights")])
        self.rates = [config.input_rate] + [config.rate] * len(self.config.widths)  # of each layer's inputs

    def kl(self) -> Tensor:  # ()
        """The penalty on the weights, ℓ²/2 sum_l [ |W_l|² / (1 - p_l) + |b_l|² ]."""
        layers = zip(self.network.layers, self.rates, strict=True)
        squares = [a.weight.square().sum() / (1 - rate) + a.bias.square().sum() for a, rate in layers]
        return 0.5 * self.config.length_scale**2 * torch.stack(squares).sum()

    def _before_masks(self, x: Tensor) -> tuple[Tensor, list[Linear], list[float]]:
        """The units (1, rows, units) to which the first mask applies, the layers after it, and their rates.

        If no inputs are dropped, these are the first hidden units: all draws share the first layer.
        """
        h, layers, rates = clamp_inputs(x).unsqueeze(0), self.network.layers, self.rates
        if rates[0] or len(layers) == 1:
            return h, layers, rates
        return (clipped_relu(layers[0](h)), layers[1:], rates[1:])

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        stream, h = only_generator(generator), clamp_inputs(batch.x)  # (rows, inputs)
        for k, (layer, rate) in enumerate(zip(self.network.layers, self.rates, strict=True)):
            h = clipped_relu(h) if k else h
            h = layer.forward_single(h * row_mask(rate, h.shape, h, stream) if rate else h)
        nll = self.likelihood.nll(h, batch.y, batch.row_weights)
        if not self.config.length_scale:
            return Loss(nll.sum(), nll.detach(), torch.zeros_like(nll))
        kl = self.kl() / batch.size
        return Loss((nll + kl).sum(), nll.detach(), kl.detach())

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        h, layers, rates = self._before_masks(x)
        draws = n_samples * n_inner
        pairs = zip(layers, rates, strict=True)
        masks = [mask(rate, (draws, 1, layer.inputs), h, generator) for layer, rate in pairs]
        blocks = zip(*(values.split(max(1, TOGETHER // len(x))) for values in masks), strict=True)
        f = torch.cat([forward_masked(layers, h, block) for block in blocks])  # (draws, rows, outputs)
        return self.likelihood.predictive(f[None, :, None])


def mask(rate: float, shape: Sequence[int], like: Tensor, generator: Generator) -> Tensor:
    """A random dropout mask: entries are 0 with probability `rate`, else 1 / (1 - rate), so their mean is 1.

    The probability is exact to 2^-17. `like` gives the dtype.
    """
    count = math.prod(shape)
    # random bits per entry: 8 where they represent the rate exactly
    size, kind = (8, torch.int8) if 2**8 * rate == round(2**8 * rate) else (16, torch.int16)
    bits = torch.empty(-(-count * size // 64), dtype=torch.int64, device=generator.device).random_(
        -(2**63), None, generator=generator
    )
    keep = bits.view(kind)[:count].view(*shape) >= round(2**size * rate) - 2 ** (size - 1)
    return keep.to(like).mul_(1 / (1 - rate))


def row_mask(rate: float, shape: Sequence[int], like: Tensor, generator: Generator) -> Tensor:
    """`mask` of shape (rows, units) in training: a part of a batch takes its rows of the batch's mask."""
    if not isinstance(generator, PartGenerator):
        return mask(rate, shape, like, generator)
    return mask(rate, (generator.total, *shape[1:]), like, generator)[generator.rows]


def forward_masked(
    layers: Sequence[Linear], h: Tensor, masks: Sequence[Tensor]
) -> Tensor:  # (draws, rows, outputs)
    """Outputs of layers, where the inputs of each layer are multiplied by a mask.

    h (1, rows, units) are the inputs of the first of them. Masks are (draws, 1, units) or (1, rows, units).
    """
    rows = h.shape[1]
    for k, (layer, values) in enumerate(zip(layers, masks, strict=True)):
        h = (clipped_relu(h) if k else h) * values
        h = layer(h) if len(h) == 1 else layer(h.view(1, -1, layer.inputs)).view(-1, rows, layer.outputs)
    return h
