"""Common part of `bbb` and `vmg`: networks with a Gaussian posterior over their weights.

    minimise  mean_s mean -log p(y | f_s(x)) + 1/N sum_l KL(q(W_l) || p(W_l)),    s = 1..S draws

A layer's pre-activations are independent Gaussians given its input. In training they are drawn instead of
the weights, independently for every row. Log-likelihoods, not likelihoods, are averaged over draws: an ELBO.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

import torch
from torch import Generator, Tensor, nn

from compound.models.base import Loss
from compound.models.network_model import NetworkConfig, NetworkModel
from compound.nn.networks import Network
from compound.ops.clamp import clamp_inputs, clipped_relu
from compound.ops.gaussian_noise import row_normal, standard_normal
from compound.predictive import Predictive
from compound.random import Generators, named_generator, only_generator
from compound.types import Batch, Task


@dataclass(frozen=True)
class VariationalConfig(NetworkConfig):
    """Options of both variational methods.

    Parameters
    ----------
    samples : int, default=1
        S, draws per row in training.
    prior : float or {'scaled'}, default=1.0
        Prior variance of every weight; 'scaled': 1 / (inputs of the layer + 1).
    """

    samples: int = 1
    prior: float | Literal["scaled"] = 1.0


class Layer(Protocol):
    """An affine map with a Gaussian posterior over its weights."""

    mean: nn.Parameter  # (in + 1, out), the last row is the bias

    def moments(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Means and standard deviations of the pre-activations, (rows, out) each, for h (rows, in)."""

    def sample(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Pre-activations (draws, rows, out) for noise of that shape, and the KL of the weights, ()."""


class Variational(NetworkModel):
    """A network of layers with Gaussian posteriors; a subclass chooses their form by `_layer`."""

    components = ("component", "posterior")
    takes_families = True

    def __init__(self, inputs: int, task: Task, config: VariationalConfig, seed: int = 0):
        super().__init__(inputs, task, config)
        if config.samples < 1:
            raise ValueError(f"samples is {config.samples}: give at least one draw")
        if config.prior != "scaled" and (isinstance(config.prior, str) or not config.prior > 0):
            raise ValueError(f"prior is {config.prior!r}: give a variance above 0, or 'scaled'")
        start = Network(self.widths, [named_generator(seed, "weights")])
        # (in + 1, out)
        means = [torch.cat([layer.weight[0], layer.bias[0]]).detach() for layer in start.layers]
        self.stack = nn.ModuleList(
            self._layer(mean, 1 / len(mean) if config.prior == "scaled" else config.prior) for mean in means
        )

    @abstractmethod
    def _layer(self, mean: Tensor, prior_variance: float) -> nn.Module:
        """Build a layer whose posterior mean starts at `mean` (in + 1, out)."""

    @property
    def layers(self) -> list[Layer]:
        return cast(list[Layer], list(self.stack))

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        stream, samples, rows = only_generator(generator), self.config.samples, len(batch)
        first, *rest = self.layers
        x = clamp_inputs(batch.x)
        # (S, rows, width)
        h, kl = first.sample(x, row_normal(stream, (samples, rows, first.mean.shape[1]), x))
        for layer in rest:
            noise = row_normal(stream, (1, samples * rows, layer.mean.shape[1]), x)
            h, more = layer.sample(clipped_relu(h).flatten(0, 1), noise)  # (1, S rows, width)
            kl = kl + more
        f = h.squeeze(0) if samples == 1 else h.view(samples, rows, -1)
        nll = self.likelihood.nll(f, batch.y, batch.row_weights)  # () or (S,) or (1,)
        nll, kl = nll.mean() if nll.ndim else nll, kl / batch.size
        return Loss(nll + kl, nll.detach(), kl.detach())

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        x = clamp_inputs(x)
        shapes = [(n_samples * n_inner, 1, layer.mean.shape[1]) for layer in self.layers]
        noises = [standard_normal(generator, shape, x) for shape in shapes]  # one vector serves all rows
        start = self.layers[0].moments(x)
        step = max(1, 2048 // len(x))  # draws computed together: few rows would leave the processor idle
        blocks = zip(*(noise.split(step) for noise in noises), strict=True)
        return self.likelihood.predictive(
            torch.cat([self._forward_draws(*start, block) for block in blocks])[None, :, None]
        )

    def _forward_draws(
        self, mean: Tensor, std: Tensor, noises: Sequence[Tensor]
    ) -> Tensor:  # (draws, rows, out)
        """Outputs, given the first layer's means and standard deviations (rows, units), which draws share.

        `noises` holds standard normal noise (draws, 1, out) for each layer.
        """
        for layer, noise in zip(self.layers[1:], noises, strict=False):
            h = clipped_relu(torch.addcmul(mean, std, noise))  # (draws, rows, in)
            mean, std = (moment.unflatten(0, h.shape[:2]) for moment in layer.moments(h.flatten(0, 1)))
        return torch.addcmul(mean, std, noises[-1])
