"""Variational information bottleneck: x becomes a Gaussian code z, and a linear map predicts y from it.

    q(z | x) = N(z; μ(x), diag s(x)²),    s = softplus(ρ(x) - 5),    f = z D + b,    r(z) = N(0, I)

    minimise  mean [ -1/S sum_s log p(y | z_s) + β KL(x) ],    z_s ~ q(z | x)
    KL(x) = 1/2 sum_k (s_k² + μ_k² - 1 - 2 log s_k)

β weighs the KL of every row: nothing is divided by N. Alemi, Fischer, Dillon and Murphy (2017). With S = 1
this is the ML-CDN's objective for θ = z; with more its -log 1/S sum_s p(y | z_s) is the tighter bound.

A draw: n_samples * n_inner draws of z given x, which more data would not determine; the posterior part is 0.
Given x the outputs are N(μ D + b, Dᵀ diag(s²) D), so that z itself need not be drawn; a single target is
integrated exactly.
"""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from compound.models.base import Loss, weighted_row_mean, with_defaults
from compound.models.network_model import NetworkConfig, NetworkModel
from compound.models.observation import HomoscedasticGaussian
from compound.nn.networks import Linear, Network
from compound.ops.gaussian_noise import row_normal, standard_normal
from compound.predictive import GaussianPredictive, Predictive
from compound.random import Generators, named_generator, only_generator
from compound.types import Batch, Task

LATENT = {"classification": 100, "regression": 10}


@dataclass(frozen=True)
class VIBConfig(NetworkConfig):
    """Options of `vib`.

    Parameters
    ----------
    latent : int, optional
        Dimensions of z; None: 100 for classes, 10 for targets.
    beta : float, default=0.001
        β, weight of the KL of every row.
    samples : int, default=1
        S, draws of z per row in training.
    """

    latent: int | None = None
    beta: float = 0.001
    samples: int = 1


class VIB(NetworkModel):
    """A network whose last hidden layer is a Gaussian code, penalised by its KL to N(0, I)."""

    method = "vib"
    Config = VIBConfig
    reference = "Alemi, Fischer, Dillon and Murphy (2017)"
    components = ("component", "mixing")

    def __init__(self, inputs: int, task: Task, config: VIBConfig, seed: int = 0):
        super().__init__(inputs, task, with_defaults(config, {"latent": LATENT[task.kind]}))
        for name in ("latent", "samples"):
            if getattr(self.config, name) < 1:
                raise ValueError(f"{name} is {getattr(self.config, name)}: give at least 1")
        if not 0 <= config.beta < math.inf:
            raise ValueError(f"beta is {config.beta}: give a number >= 0")
        stream = named_generator(seed, "weights")
        self.encoder = Network((inputs, *self.config.widths, 2 * self.config.latent), [stream])
        self.decoder = Linear(self.config.latent, self.likelihood.outputs, [stream], gain=1.0)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (1, rows, latent) each
        """μ(x) and s(x), mean and standard deviation of z."""
        mean, rho = self.encoder(x).chunk(2, -1)
        return mean, functional.softplus(rho.clamp(-10, 10) - 5)

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        mean, std = self.encode(batch.x)
        noise = row_normal(only_generator(generator), (self.config.samples, *mean.shape[1:]), mean)
        z = torch.addcmul(mean, std, noise)  # (S, rows, latent)
        f = self.decoder(z.view(1, -1, z.shape[-1])).view(1, *z.shape[:2], -1)
        nll = -weighted_row_mean(self.likelihood.log_prob(f, batch.y).mean(1), batch.row_weights)  # (1,)
        kl = self.config.beta * weighted_row_mean(code_kl(mean, std), batch.row_weights)
        return Loss((nll + kl).sum(), nll.detach(), kl.detach())

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        mean, std = self.encode(x)
        centre, weight = self.decoder(mean)[0], self.decoder.weight[0]  # (rows, outputs), (latent, outputs)
        if isinstance(self.likelihood, HomoscedasticGaussian) and self.task.size == 1:
            variance = std[0].square() @ weight.square()
            return GaussianPredictive.from_draws(
                centre[None, None], self.likelihood.variance()[:, None, None], variance[None, None]
            )
        short = self.likelihood.outputs <= self.config.latent
        # (rows, outputs, outputs or latent)
        factor = _cholesky_factor(std[0], weight) if short else weight.T * std[0].unsqueeze(-2)
        # shared by all rows
        noise = standard_normal(generator, (n_samples * n_inner, factor.shape[-1]), centre)
        f = centre + torch.einsum("rok,dk->dro", factor, noise)
        # several targets are drawn, too: the code correlates them
        return self.likelihood.predictive(f[None, None])

    @property
    def hidden_units(self) -> int:
        return super().hidden_units + 2 * self.config.latent  # type: ignore[operator]


def code_kl(mean: Tensor, std: Tensor) -> Tensor:  # (...)
    """KL[N(mean, diag std²) || N(0, I)] for mean and std (..., latent)."""
    return 0.5 * (std.square() + mean.square() - 1 - 2 * std.log()).sum(-1)


def _cholesky_factor(std: Tensor, weight: Tensor) -> Tensor:  # (rows, outputs, outputs)
    """L with L Lᵀ = Dᵀ diag(s²) D for every row, for s (rows, latent) and D = weight (latent, outputs)."""
    outputs = weight.shape[-1]
    exact = weight.double()  # in float32 some covariances would be indefinite
    pairs = (exact.unsqueeze(-1) * exact.unsqueeze(-2)).flatten(1)  # (latent, outputs²)
    covariance = (std.double().square() @ pairs).unflatten(-1, (outputs, outputs))
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    diagonal += 1e-12 * diagonal.sum(-1, keepdim=True) + 1e-30  # directions without variance
    return torch.linalg.cholesky(covariance).to(std.dtype)
