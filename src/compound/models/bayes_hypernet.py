"""Bayesian hypernetworks: one flow draws the scale of every unit of a network, all of them together.

    h_l = relu( g_l * (V_l^T h_{l-1} / |V_l|) + b_l ),   (g_1, ..., g_L) = 1 + flow(m + s ε),  ε ~ N(0, I)

    minimise  mean E_q -log p(y | f(x; g)) + 1/N E_q [ log q(g) - log p(g) ],    p(g) = N(0, σ² I)

Krueger et al. (2017). |V_l| are the norms of the columns of V_l: directions V and biases b are point
estimates, as in weight normalisation, and the posterior is that of the scales. The flow keeps random halves
of its input, drawn anew each time: log q(g) is that given the halves, and the objective remains a bound.

A draw: n_samples * n_inner draws of g; all of it is epistemic.
"""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from compound.models.base import Loss
from compound.models.network_model import NetworkModel, NetworkVarianceConfig
from compound.nn.flows import make_flow
from compound.nn.networks import Network
from compound.ops.clamp import clamp_inputs, clipped_relu
from compound.ops.gaussian_noise import standard_normal
from compound.predictive import Predictive
from compound.random import Generators, named_generator, only_generator
from compound.types import Batch, Task


@dataclass(frozen=True)
class BayesHypernetConfig(NetworkVarianceConfig):
    """Options of `bayes-hypernet`.

    Parameters
    ----------
    flows : int, default=2
        Steps of the flow; 0: the scales are independent Gaussians.
    flow_hidden : int, default=50
        Width of its steps.
    samples : int, default=1
        Draws of g per row in training.
    prior : float, default=1.0
        σ², prior variance of every scale.
    log_std : float, default=-3.0
        Initial log s.
    """

    flows: int = 2
    flow_hidden: int = 50
    samples: int = 1
    prior: float = 1.0
    log_std: float = -3.0


class BayesHypernet(NetworkModel):
    """A weight-normalised network with a flow posterior over its scales."""

    method = "bayes-hypernet"
    Config = BayesHypernetConfig
    reference = "Krueger et al. (2017)"
    components = ("component", "posterior")
    whole_batches = "the flow draws the scales of all rows at once"

    def __init__(self, inputs: int, task: Task, config: BayesHypernetConfig, seed: int = 0):
        if config.samples < 1 or config.flows < 0 or config.flow_hidden < 1:
            raise ValueError(
                f"samples is {config.samples}, flows {config.flows} and flow_hidden {config.flow_hidden}: "
                "give at least 1, 0 and 1"
            )
        if not 0 < config.prior < math.inf:
            raise ValueError(f"prior is {config.prior}: give a variance above 0")
        super().__init__(inputs, task, config)
        stream = named_generator(seed, "weights")
        self.network = Network(self.widths, [stream])
        units = sum(self.widths[1:])
        # a unit's scale is about the norm of its initial weights: 1 + mean
        norms = torch.cat([layer.weight[0].detach().norm(dim=0) for layer in self.network.layers])
        self.flow = make_flow(units, config.flows, config.flow_hidden, stream)
        self.mean = nn.Parameter(norms - 1)
        self.log_std = nn.Parameter(torch.full((units,), config.log_std, dtype=torch.float32))

    def scales(self, draws: int, generator: Generator) -> tuple[Tensor, Tensor]:  # (draws, units), (draws,)
        """Draws of g and log q(g), given the flow's random halves."""
        noise = standard_normal(generator, (draws, len(self.mean)), self.mean)
        z, log_det = self.flow(torch.addcmul(self.mean, self.log_std.exp(), noise), generator)
        constant = 0.5 * math.log(2 * math.pi)
        return 1 + z, -(0.5 * noise.square() + self.log_std + constant).sum(1) - log_det

    def log_prior(self, scales: Tensor) -> Tensor:  # (draws,)
        variance = self.config.prior
        return -0.5 * (scales.square() / variance + math.log(2 * math.pi * variance)).sum(1)

    def outputs_given(self, x: Tensor, scales: Tensor) -> Tensor:  # (draws, rows, outputs)
        """Outputs for clamped x (rows, inputs) and scales (draws, rows or 1, units)."""
        h = x.unsqueeze(0)  # (1 or draws, rows, width)
        *first, _ = self.network.layers
        parts = scales.split(self.widths[1:], -1)
        for layer, g in zip(self.network.layers, parts, strict=True):
            weight = layer.weight[0]
            norm = weight.norm(dim=0).clamp_min(1e-12)
            h = (h.flatten(0, 1) @ (weight / norm)).unflatten(0, h.shape[:2]) * g + layer.bias[0]
            h = clipped_relu(h) if layer in first else h
        return h

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        samples, rows = self.config.samples, len(batch)
        scales, log_q = self.scales(samples * rows, only_generator(generator))
        f = self.outputs_given(clamp_inputs(batch.x), scales.unflatten(0, (samples, rows)))
        nll = self.likelihood.nll(f, batch.y, batch.row_weights).mean()  # over draws
        kl = (log_q - self.log_prior(scales)).mean() / batch.size
        return Loss(nll + kl, nll.detach(), kl.detach())

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        x = clamp_inputs(x)
        scales, _ = self.scales(n_samples * n_inner, generator)  # shared by all rows
        step = max(1, 2048 // len(x))  # draws computed together: few rows would leave the processor idle
        parts = [self.outputs_given(x, part.unsqueeze(1)) for part in scales.split(step)]
        return self.likelihood.predictive(torch.cat(parts)[None, :, None])
