"""Bayesian network with latent inputs: noise z_n is an input beside x_n, so its effect on y may depend on x.

    y_n = f([x_n, z_n]; W) + noise,    z_n ~ N(0, g),    W ~ N(0, λ),    q(W) and q(z_n) factorised Gaussians

Minimised is the energy of the α-divergence, per datum and with normalised ratios, from S pairs (W_s, z_ns)
drawn from q:

    -1/(αN) sum_n log 1/S sum_s exp α[ log p(y_n | x_n, z_ns, W_s) + log (p/q)(W_s) / N + log (p/q)(z_ns) ]

α = 0 is its limit, the evidence bound; α = 1 with one row is the log-evidence. q is narrower than its prior
everywhere: v = λ sigmoid(ρ), or g sigmoid(ρ). Depeweg, Hernández-Lobato, Doshi-Velez and Udluft (2017, 2018);
Hernández-Lobato et al. (2016).

A draw: n_samples draws of W from q(W), and for each n_inner draws of z from its prior, which is that of any
new row.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Generator, Tensor, nn

from compound.distributions import log_mean_exp
from compound.models.base import (
    WIDTHS,
    Loss,
    Model,
    OptimizerSettings,
    train_mask,
    weighted_row_mean,
    with_defaults,
)
from compound.models.bnn_lv_posteriors import Latents, Weights
from compound.models.network_model import NetworkConfig
from compound.models.observation import HomoscedasticGaussian, observation_model
from compound.models.row_adam import RowAdam
from compound.ops.clamp import clamp_inputs, clipped_relu
from compound.ops.gaussian_noise import row_normal, standard_normal
from compound.predictive import Predictive
from compound.random import Generators, named_generator, only_generator
from compound.types import Batch, Task

SAMPLES = {"classification": 10, "regression": 25}


@dataclass(frozen=True)
class BNNLVConfig(NetworkConfig):
    """Options of `bnn-lv`.

    Parameters
    ----------
    alpha : float, default=0.5
        α of the divergence; 0: the evidence bound.
    samples : int, optional
        S, pairs (W, z) per row in training; None: 25 for targets, 10 for classes.
    prior_variance : float, default=1.0
        λ, prior variance of every weight.
    latents : int, default=1
        Dimensions of z.
    latent_variance : float, default=1.0
        g, prior variance of z.
    latent_rate : float, default=1.0
        Factor on the learning rate of q(z), besides N / B for rows that are in one of N / B batches.
    noise_start : float, default=-5.0
        Initial log-variance of the learnt noise; with a large one z would not be used.
    noise_rate : float, default=1.0
        Factor on the learning rate of the learnt noise.
    """

    alpha: float = 0.5
    samples: int | None = None
    prior_variance: float = 1.0
    latents: int = 1
    latent_variance: float = 1.0
    latent_rate: float = 1.0
    noise_start: float = -5.0
    noise_rate: float = 1.0


class Noise(NamedTuple):
    """The standard normal numbers behind S pairs (W, z)."""

    weights: list[Tensor]  # (S, in + 1, out) of each layer
    latents: Tensor  # (S, rows, latents)


class Pairs(NamedTuple):
    """The terms of the energy for S pairs (W, z) per row."""

    log_prob: Tensor  # (S, rows) log p(y_n | x_n, z_ns, W_s)
    weights: Tensor  # (S,) log p(W_s) / q(W_s)
    latents: Tensor  # (S, rows) log p(z_ns) / q(z_ns)


def energy(values: Tensor, alpha: float) -> Tensor:  # (S, rows) -> (rows,)
    """-1/α log 1/S sum_s exp(α values_s) of values (S, rows); for α = 0 its limit, -mean_s values_s."""
    if alpha == 0:
        return -values.mean(0)
    # float64: a small α magnifies rounding
    return (-log_mean_exp(alpha * values.double(), 0) / alpha).to(values.dtype)


class BNNLV(Model):
    """A Bayesian network with latent inputs."""

    method = "bnn-lv"
    Config = BNNLVConfig
    reference = "Depeweg, Hernández-Lobato, Doshi-Velez and Udluft (2018)"
    components = ("component", "mixing", "posterior")
    eval_inner = 5
    rows_in_memory = "it keeps a posterior for every single training row"

    def __init__(self, inputs: int, task: Task, config: BNNLVConfig, seed: int = 0):
        super().__init__()
        self.inputs, self.task = inputs, task
        self.config = with_defaults(config, {"widths": WIDTHS[task.kind], "samples": SAMPLES[task.kind]})
        _check(self.config)
        self.likelihood = observation_model(task, 1, config.noise)
        if isinstance(self.likelihood, HomoscedasticGaussian) and not config.noise:
            nn.init.constant_(self.likelihood.log_noise, 0.5 * config.noise_start)
        widths = (inputs + config.latents, *self.config.widths, self.likelihood.outputs)
        stream = named_generator(seed, "weights")
        self.stack = nn.ModuleList(
            Weights(a, b, config.prior_variance, stream) for a, b in zip(widths, widths[1:], strict=False)
        )
        self.latents = Latents(config.latents, config.latent_variance)

    @property
    def layers(self) -> list[Weights]:
        return cast(list[Weights], list(self.stack))

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        """Set the constants of the likelihood, and create a q(z_n) for each training row."""
        seen = train_mask(data)
        self.likelihood.on_fit_start(data.y[seen])
        self.latents.on_fit_start(int(data.index.max()) + 1, int(seen.sum()))

    def optimizer(self, settings: OptimizerSettings) -> RowAdam:
        """Adam, where q(z_n) is updated only in steps whose batch holds row n."""
        noise_rate, latent_rate = self.config.noise_rate, self.config.latent_rate
        parts = ((self.stack, 1.0), (self.likelihood, noise_rate), (self.latents, latent_rate))
        groups = [
            {"params": list(part.parameters()), "lr": settings.lr * factor, "factor": factor}
            for part, factor in parts
        ]
        groups[-1]["size"] = float(self.latents.size)
        return RowAdam(groups, fused=True)

    def noise(self, rows: int, generator: Generator) -> Noise:
        """Draw the noise behind S draws of W, and S draws of z for each of `rows` rows."""
        like, samples = self.layers[0].mean, self.config.samples
        weights = [standard_normal(generator, (samples, *layer.mean.shape), like) for layer in self.layers]
        return Noise(weights, row_normal(generator, (samples, rows, self.config.latents), like))

    def pairs(self, batch: Batch, noise: Noise) -> Pairs:
        """Log-likelihoods, and log-ratios of prior to posterior, of the pairs (W, z) that `noise` gives."""
        local = self.latents.select(batch.index)
        z = local.transform(noise.latents)  # (S, rows, latents)
        posteriors = [layer.posterior for layer in self.layers]
        # (S, in + 1, out)
        weights = [q.transform(eps) for q, eps in zip(posteriors, noise.weights, strict=True)]
        parts = zip(posteriors, weights, noise.weights, strict=True)
        ratios = [q.log_ratio(w, eps).sum((-2, -1)) for q, w, eps in parts]
        f = _outputs(_first_layer_from_x(batch.x, weights[0]), z, weights)  # (S, rows, outputs)
        log_prob = self.likelihood.log_prob(f.unsqueeze(0), batch.y).squeeze(0)
        return Pairs(log_prob, torch.stack(ratios).sum(0), local.log_ratio(z, noise.latents).sum(-1))

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        alpha = self.config.alpha
        pairs = self.pairs(batch, self.noise(len(batch), only_generator(generator)))
        nll = weighted_row_mean(energy(pairs.log_prob, alpha), batch.row_weights)
        if alpha == 0:  # the ratios' means in closed form
            weights = torch.stack([layer.posterior.kl().sum() for layer in self.layers]).sum()
            total = (
                nll
                + weights / batch.size
                + weighted_row_mean(self.latents.select(batch.index).kl().sum(-1), batch.row_weights)
            )
        else:
            exponents = pairs.log_prob + (pairs.weights / batch.size).unsqueeze(-1) + pairs.latents
            total = weighted_row_mean(energy(exponents, alpha), batch.row_weights)
        return Loss(total.sum(), nll.detach(), (total - nll).detach())

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        step = max(1, 2048 // len(x))  # draws of z computed together
        outer = []
        for _ in range(n_samples):
            weights = [
                layer.posterior.transform(standard_normal(generator, layer.mean.shape, x))
                for layer in self.layers
            ]  # (in + 1, out)
            z = math.sqrt(self.config.latent_variance) * standard_normal(
                generator, (n_inner, 1, self.config.latents), x
            )
            from_x = _first_layer_from_x(x, weights[0])  # (rows, width)
            # (inner, rows, outputs)
            outer.append(torch.cat([_outputs(from_x, part, weights) for part in z.split(step)]))
        return self.likelihood.predictive(torch.stack(outer).unsqueeze(0))


def _first_layer_from_x(x: Tensor, first: Tensor) -> Tensor:  # (S, rows, width) or (rows, width)
    """The part of the first layer's pre-activations that comes from x, without z and bias.

    `first` holds the first layer's weights, (S, in + 1, width) or (in + 1, width).
    """
    return clamp_inputs(x) @ first[..., : x.shape[-1], :]


def _outputs(from_x: Tensor, z: Tensor, weights: list[Tensor]) -> Tensor:  # (S, rows, outputs)
    """f([x, z]; W) for z (S, rows or 1, latents); `from_x` comes from `_first_layer_from_x`.

    `weights` holds those of all layers, (S, in + 1, out) or (in + 1, out) each.
    """
    first, *rest = weights
    from_z, bias = first[..., -1 - z.shape[-1] :, :].split([z.shape[-1], 1], -2)
    a = from_x + (z @ from_z + bias)
    for weight in rest:
        from_h, bias = weight.split([weight.shape[-2] - 1, 1], -2)
        a = clipped_relu(a) @ from_h + bias
    return a


def _check(config: BNNLVConfig) -> None:
    """Raise ValueError for options out of range."""
    if not 0 <= config.alpha < math.inf:
        raise ValueError(f"alpha is {config.alpha}: give a number >= 0, such as 0.5")
    for name in ("samples", "latents"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}: give a whole number of at least 1")
    for name in ("prior_variance", "latent_variance", "latent_rate", "noise_rate"):
        if not 0 < getattr(config, name) < math.inf:
            raise ValueError(f"{name} is {getattr(config, name)}: give a number above 0")
