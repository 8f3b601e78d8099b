"""Implicit posteriors: a network turns noise into the weights of another, and no density of them is known.

    W_l = M_l + tanh(E_l + 1 z^T U_l) A_l,    z ~ N(0, I),  the same z for all layers;  θ = (W_1, ..., W_L)

    minimise  mean E_z -log p(y | f(x; θ)) + 1/N [ E 1/2 |θ|² / σ² + P/2 log(2 π σ²) - H ]
    H = ψ(S) - ψ(1) + log V_P + P/S sum_s log min_{t != s} |θ_s - θ_t|

Every row of W_l has an embedding in E_l; P is the number of weights and V_P the volume of the unit ball. The
entropy is estimated by nearest neighbours among the S draws of a training step (Kozachenko and Leonenko
1987), as Sheikh, Rasul, Merentitis and Bergmann (2017) do; Pawlowski et al. (2017) have other estimates for
such hypernetworks. With fewer dimensions of z than weights the true entropy is not finite: the estimate
measures how far draws lie apart.

A draw: n_samples * n_inner draws of z, and so of all weights; all of it is epistemic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from compound.models.base import Loss
from compound.models.network_model import NetworkModel, NetworkVarianceConfig
from compound.nn.networks import Network
from compound.ops.affine import append_ones
from compound.ops.clamp import clamp_inputs, clipped_relu
from compound.ops.gaussian_noise import standard_normal
from compound.predictive import Predictive
from compound.random import Generators, named_generator, only_generator
from compound.types import Batch, Task

MIN_DISTANCE = 1e-6  # of two draws: its log stays finite
BLOCK = 16  # draws predicted together


@dataclass(frozen=True)
class ImplicitConfig(NetworkVarianceConfig):
    """Options of `implicit`.

    Parameters
    ----------
    latent : int, default=20
        Dimensions of z.
    hyper : int, default=20
        Hidden units of the network that gives the weights.
    samples : int, default=5
        S, draws of all weights per training step; rows of a batch use them in turn.
    prior : float, default=1.0
        σ², prior variance of every weight.
    """

    latent: int = 20
    hyper: int = 20
    samples: int = 5
    prior: float = 1.0


class Generated(nn.Module):
    """The weights of one layer as a function of z, all rows by one network."""

    def __init__(self, mean: Tensor, latent: int, hyper: int, generator: Generator):
        super().__init__()
        rows, outputs = mean.shape
        self.mean = nn.Parameter(mean)  # M, (in + 1, out)
        self.embedding = nn.Parameter(standard_normal(generator, (rows, hyper), mean))  # E
        self.noise = nn.Parameter(standard_normal(generator, (latent, hyper), mean) / math.sqrt(latent))  # U
        scale = 0.1 * math.sqrt(1 / (rows * hyper))  # draws start near M
        self.heads = nn.Parameter(scale * standard_normal(generator, (hyper, outputs), mean))  # A

    def forward(self, z: Tensor) -> Tensor:  # (draws, latent) -> (draws, in + 1, out)
        hidden = torch.tanh(self.embedding + (z @ self.noise).unsqueeze(1))  # (draws, in + 1, hyper)
        return self.mean + hidden @ self.heads


class Implicit(NetworkModel):
    """A network whose weights are a network's outputs for random inputs."""

    method = "implicit"
    Config = ImplicitConfig
    reference = "Sheikh et al. (2017), Pawlowski et al. (2017)"
    components = ("component", "posterior")
    whole_batches = "the draw of a row depends on its position in the batch"

    def __init__(self, inputs: int, task: Task, config: ImplicitConfig, seed: int = 0):
        for name, least in (("latent", 1), ("hyper", 1), ("samples", 2)):
            if getattr(config, name) < least:
                raise ValueError(f"{name} is {getattr(config, name)}: give at least {least}")
        if not 0 < config.prior < math.inf:
            raise ValueError(f"prior is {config.prior}: give a variance above 0")
        super().__init__(inputs, task, config)
        stream = named_generator(seed, "weights")
        start = Network(self.widths, [stream])
        means = [torch.cat([layer.weight[0], layer.bias[0]]).detach() for layer in start.layers]
        self.layers = nn.ModuleList(Generated(m, config.latent, config.hyper, stream) for m in means)

    def draw(self, count: int, generator: Generator) -> list[Tensor]:
        """Weights of every layer, (count, in + 1, out) each."""
        like = next(self.parameters())
        z = standard_normal(generator, (count, self.config.latent), like)
        return [layer(z) for layer in self.layers]

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        samples, rows = self.config.samples, len(batch)
        weights = self.draw(samples, only_generator(generator))
        x = clamp_inputs(batch.x)
        parts = [forward(x[s::samples], [w[s] for w in weights]) for s in range(samples)]
        order = torch.cat([torch.arange(rows)[s::samples] for s in range(samples)])
        f = torch.cat(parts)[order.argsort()].unsqueeze(0)  # (1, rows, outputs)
        nll = self.likelihood.nll(f.squeeze(0), batch.y, batch.row_weights)
        theta = torch.cat([w.flatten(1) for w in weights], 1)  # (S, P)
        kl = kl_to_normal(theta, self.config.prior) / batch.size
        return Loss(nll.mean() + kl, nll.detach(), kl.detach())

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        x = append_ones(clamp_inputs(x))
        weights = self.draw(n_samples * n_inner, generator)
        blocks = zip(*(w.split(BLOCK) for w in weights), strict=True)
        f = torch.cat([_forward_draws(x, block) for block in blocks])  # (draws, rows, outputs)
        return self.likelihood.predictive(f[None, :, None])

    def floats_per_row(self, n_samples: int, n_inner: int) -> int:
        return super().floats_per_row(n_samples, n_inner) + 2 * BLOCK * self.hidden_units


def forward(x: Tensor, weights: Sequence[Tensor]) -> Tensor:  # (rows, outputs)
    """Outputs of a network for clamped x (rows, in), with the bias as last row of each weight matrix."""
    return _forward_draws(append_ones(x), [w.unsqueeze(0) for w in weights])[0]


def _forward_draws(x_aug: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Outputs (draws, rows, outputs) for [x; 1] (rows, in + 1) and draws of weights (draws, in + 1, out)."""
    *first, last = weights
    h = x_aug
    for w in first:
        h = append_ones(clipped_relu(h @ w))
    return h @ last


def kl_to_normal(theta: Tensor, variance: float) -> Tensor:  # ()
    """An estimate of KL[q || N(0, variance I)] from draws theta (S, P) of q."""
    size = theta.shape[1]
    cross = 0.5 * theta.square().sum(1).mean() / variance + 0.5 * size * math.log(2 * math.pi * variance)
    return cross - entropy(theta)


def entropy(theta: Tensor) -> Tensor:  # ()
    """The estimate H of the entropy of a distribution from draws theta (S, P), by nearest neighbours."""
    count, size = theta.shape
    squares = (theta.unsqueeze(0) - theta.unsqueeze(1)).square().sum(-1)  # (S, S)
    nearest = (squares + torch.diag(theta.new_full((count,), torch.inf))).amin(1)
    volume = 0.5 * size * math.log(math.pi) - math.lgamma(0.5 * size + 1)  # log V_P
    digamma = torch.special.digamma(torch.tensor([count, 1.0], dtype=torch.float64))
    logs = 0.5 * nearest.clamp_min(MIN_DISTANCE**2).log()
    return float(digamma[0] - digamma[1]) + volume + size * logs.mean()
