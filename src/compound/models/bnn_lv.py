"""Bayesian network with latent inputs: noise z_n enters beside x_n, so that its effect on y may have any shape and depend on x.

    y_n = f([x_n, z_n]; W) + noise,    z_n ~ N(0, g),    W ~ N(0, λ),    q(W) and q(z_n) factorised Gaussians

Minimised is the energy of the α-divergence, per datum and with normalised ratios, from S pairs (W_s, z_ns) drawn from q:

    -1/(αN) sum_n log 1/S sum_s exp α[ log p(y_n | x_n, z_ns, W_s) + 1/N log p(W_s)/q(W_s) + log p(z_ns)/q(z_ns) ]

α = 0 is its limit, the evidence bound; α = 1 with one row is the log-evidence itself. q is narrower than its prior everywhere:
v = λ sigmoid(ρ), or g sigmoid(ρ). Depeweg, Hernández-Lobato, Doshi-Velez and Udluft (2017, 2018); Hernández-Lobato et al. (2016).

A draw: outer = W from q(W), inner = z from its prior, which no amount of data narrows for a new row.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from compound.distributions import log_mean_exp
from compound.models.base import (
    WIDTHS,
    Draws,
    Loss,
    Model,
    OptimizerSettings,
    train_mask,
    weighted_row_mean,
    with_defaults,
)
from compound.models.heads import HomoscedasticGaussian, head
from compound.ops.clamp import clamp_inputs, clipped_relu
from compound.ops.gaussian_noise import standard_normal
from compound.predictive import Predictive
from compound.random import Generators, named_generator, only_generator
from compound.types import Batch, Task

SAMPLES = {"classification": 10, "regression": 25}


@dataclass(frozen=True)
class BNNLVConfig:
    widths: tuple[int, ...] | None = None  # hidden layers
    alpha: float = 0.5  # α of the divergence; 0: the evidence bound
    samples: int | None = None  # S, pairs (W, z) per row in training; None: 25 for targets, 10 for classes
    prior_variance: float = 1.0  # λ, of every weight
    latents: int = 1  # numbers in z
    latent_variance: float = 1.0  # g, of each of them
    latent_rate: float = (
        1.0  # factor on the learning rate of q(z), besides N / B for rows seen once in N / B steps
    )
    noise: float = 0.0  # standard deviation of targets given the network; 0: learnt
    noise_start: float = (
        -5.0
    )  # log-variance of the learnt noise before training: a large one would leave nothing to z
    noise_rate: float = 1.0  # factor on the learning rate of the learnt noise


class Posterior(NamedTuple):
    """Independent Gaussians N(mean, prior sigmoid(rho)) beside their prior N(0, prior)."""

    mean: Tensor
    rho: Tensor
    prior: float  # a variance

    def at(self, noise: Tensor) -> Tensor:
        """The values that standard normal numbers stand for."""
        return torch.addcmul(self.mean, (self.prior * torch.sigmoid(self.rho)).sqrt(), noise)

    def log_ratio(self, value: Tensor, noise: Tensor) -> Tensor:
        """log p / q of each value that came from this noise."""
        return 0.5 * (functional.logsigmoid(self.rho) - value.square() / self.prior + noise.square())

    def kl(self) -> Tensor:
        """KL of each Gaussian to its prior."""
        return 0.5 * (
            torch.sigmoid(self.rho) + self.mean.square() / self.prior - 1 - functional.logsigmoid(self.rho)
        )


class Weights(nn.Module):
    """q(W) of one affine map, the bias as last row."""

    def __init__(self, inputs: int, outputs: int, prior: float, stream: Generator):
        super().__init__()
        self.prior = prior
        self.mean = nn.Parameter(
            0.1 * torch.randn(inputs + 1, outputs, generator=stream, dtype=torch.float32)
        )
        self.rho = nn.Parameter(torch.full((inputs + 1, outputs), -10.0, dtype=torch.float32))

    @property
    def posterior(self) -> Posterior:
        return Posterior(self.mean, self.rho, self.prior)


class Latents(nn.Module):
    """q(z_n) of every training row; how many there are is known when training starts."""

    size: Tensor  # () rows that are trained on

    def __init__(self, latents: int, prior: float):
        super().__init__()
        self.prior = prior
        self.mean = nn.Parameter(torch.zeros(0, latents, dtype=torch.float32))
        self.rho = nn.Parameter(torch.zeros(0, latents, dtype=torch.float32))
        self.register_buffer("size", torch.zeros((), dtype=torch.float32))

    def on_fit_start(self, rows: int, size: int) -> None:
        self._resize(rows)
        self.size.fill_(size)

    def at(self, index: Tensor) -> Posterior:
        return Posterior(self.mean.index_select(0, index), self.rho.index_select(0, index), self.prior)

    def _resize(self, rows: int) -> None:
        self.mean.data = self.mean.new_zeros(rows, self.mean.shape[1])
        self.rho.data = self.rho.new_full((rows, self.rho.shape[1]), 5.0)  # almost the prior

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        saved = state_dict.get(f"{prefix}mean")
        if saved is not None and saved.ndim == 2:
            self._resize(len(saved))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class RowAdam(torch.optim.Adam):
    """Adam that moves, in groups with `size` = N, only the B rows that have a gradient, at N / B times the rate.

    Every row counts its own steps: its path is Adam's over the batches it was in, and no momentum moves it in between.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        local = [
            (p, p.grad, group)
            for group in self.param_groups
            if "size" in group
            for p in group["params"]
            if p.grad is not None
        ]
        for parameter, _, _ in local:
            parameter.grad = None  # hidden from the dense step
        loss = super().step(closure)
        for parameter, gradient, group in local:
            parameter.grad = gradient
            self._move(parameter, gradient, group)
        return loss

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = torch.zeros(len(gradient), 1, dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(gradient), torch.zeros_like(gradient)
        rows = gradient.any(1).nonzero().squeeze(1)
        g = gradient[rows]
        count = state["step"][rows].double() + 1
        mean = torch.lerp(state["exp_avg"][rows], g, 1 - first)
        square = torch.lerp(state["exp_avg_sq"][rows], g.square(), 1 - second)
        rate = group["lr"] * group["size"] / max(len(rows), 1)
        parameter[rows] -= (
            rate * mean / (1 - first**count) / ((square / (1 - second**count)).sqrt() + group["eps"])
        )
        state["step"][rows], state["exp_avg"][rows], state["exp_avg_sq"][rows] = count.float(), mean, square


class Noise(NamedTuple):
    """The standard normal numbers behind S pairs (W, z)."""

    weights: list[Tensor]  # (S, in + 1, out) of each layer
    latents: Tensor  # (S, rows, latents)


class Pairs(NamedTuple):
    """What the energy is made of."""

    log_prob: Tensor  # (S, rows) log p(y_n | x_n, z_ns, W_s)
    weights: Tensor  # (S,) log p(W_s) / q(W_s)
    latents: Tensor  # (S, rows) log p(z_ns) / q(z_ns)


def energy(values: Tensor, alpha: float) -> Tensor:  # (S, rows) -> (rows,)
    """-1/α log 1/S sum_s exp(α values_s); for α = 0 its limit."""
    if alpha == 0:
        return -values.mean(0)
    return (-log_mean_exp(alpha * values.double(), 0) / alpha).to(
        values.dtype
    )  # float64: a small α magnifies rounding


class BNNLV(Model):
    """A Bayesian network with latent inputs."""

    method = "bnn-lv"
    Config = BNNLVConfig
    source = "Depeweg, Hernández-Lobato, Doshi-Velez and Udluft (2018)"
    components = ("component", "mixing", "posterior")

    def __init__(self, inputs: int, task: Task, config: BNNLVConfig, seed: int = 0):
        super().__init__()
        self.inputs, self.task = inputs, task
        self.config = with_defaults(config, {"widths": WIDTHS[task.kind], "samples": SAMPLES[task.kind]})
        _check(self.config)
        self.head = head(task, 1, config.noise)
        if isinstance(self.head, HomoscedasticGaussian) and not config.noise:
            nn.init.constant_(self.head.log_noise, 0.5 * config.noise_start)
        widths, stream = (
            (inputs + config.latents, *self.config.widths, self.head.outputs),
            named_generator(seed, "weights"),
        )
        self.stack = nn.ModuleList(
            Weights(a, b, config.prior_variance, stream) for a, b in zip(widths, widths[1:], strict=False)
        )
        self.latents = Latents(config.latents, config.latent_variance)

    @property
    def layers(self) -> list[Weights]:
        return cast(list[Weights], list(self.stack))

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        seen = train_mask(data)
        self.head.on_fit_start(data.y[seen])
        self.latents.on_fit_start(int(data.index.max()) + 1, int(seen.sum()))

    def optimizer(self, settings: OptimizerSettings) -> RowAdam:
        parts = (
            (self.stack, 1.0),
            (self.head, self.config.noise_rate),
            (self.latents, self.config.latent_rate),
        )
        groups = [
            {"params": list(part.parameters()), "lr": settings.lr * factor, "factor": factor}
            for part, factor in parts
        ]
        groups[-1]["size"] = float(self.latents.size)
        return RowAdam(groups, fused=True)

    def noise(self, rows: int, generator: Generator) -> Noise:
        like, samples = self.layers[0].mean, self.config.samples
        weights = [standard_normal(generator, (samples, *layer.mean.shape), like) for layer in self.layers]
        return Noise(
            weights, standard_normal(generator, (samples, rows, self.config.latents), like)
        )  # z of its own for every pair

    def pairs(self, batch: Batch, noise: Noise) -> Pairs:
        """S pairs (W, z), how well each explains its row, and their log-ratios of prior to posterior."""
        local = self.latents.at(batch.index)
        z = local.at(noise.latents)  # (S, rows, latents)
        posteriors = [layer.posterior for layer in self.layers]
        weights = [q.at(own) for q, own in zip(posteriors, noise.weights, strict=True)]  # (S, in + 1, out)
        ratios = [
            q.log_ratio(w, own).sum((-2, -1))
            for q, w, own in zip(posteriors, weights, noise.weights, strict=True)
        ]
        f = _outputs(_of_inputs(batch.x, weights[0]), z, weights)  # (S, rows, outputs)
        log_prob = self.head.log_prob(f.unsqueeze(0), batch.y).squeeze(0)
        return Pairs(log_prob, torch.stack(ratios).sum(0), local.log_ratio(z, noise.latents).sum(-1))

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        alpha = self.config.alpha
        pairs = self.pairs(batch, self.noise(len(batch), only_generator(generator)))
        nll = weighted_row_mean(energy(pairs.log_prob, alpha), batch.weight)
        if alpha == 0:  # the ratios' means in closed form
            weights = torch.stack([layer.posterior.kl().sum() for layer in self.layers]).sum()
            total = (
                nll
                + weights / batch.size
                + weighted_row_mean(self.latents.at(batch.index).kl().sum(-1), batch.weight)
            )
        else:
            exponents = pairs.log_prob + (pairs.weights / batch.size).unsqueeze(-1) + pairs.latents
            total = weighted_row_mean(energy(exponents, alpha), batch.weight)
        return Loss(total.sum(), nll.detach(), (total - nll).detach())

    def predict_chunk(self, x: Tensor, n: Draws, generator: Generator) -> Predictive:
        step = max(1, 2048 // len(x))  # draws of z computed together
        outer = []
        for _ in range(n.outer):
            weights = [
                layer.posterior.at(standard_normal(generator, layer.mean.shape, x)) for layer in self.layers
            ]  # (in + 1, out)
            z = math.sqrt(self.config.latent_variance) * standard_normal(
                generator, (n.inner, 1, self.config.latents), x
            )
            of_x = _of_inputs(x, weights[0])  # (rows, width)
            outer.append(
                torch.cat([_outputs(of_x, part, weights) for part in z.split(step)])
            )  # (inner, rows, outputs)
        return self.head.predictive(torch.stack(outer).unsqueeze(0))

    def floats_per_row(self, n: Draws) -> int:
        return (
            8 * n.outer * n.inner * self.head.outputs
            + 2 * self.inputs
            + 4 * max(self.config.widths, default=1)
        )


def _of_inputs(x: Tensor, first: Tensor) -> Tensor:  # (S, rows, width); without the S where W has none
    """What x gives to the first layer's pre-activations."""
    return clamp_inputs(x) @ first[..., : x.shape[-1], :]


def _outputs(of_x: Tensor, z: Tensor, weights: list[Tensor]) -> Tensor:  # (S, rows, outputs)
    """f([x, z]; W) for z (S, rows or 1, latents)."""
    first, *rest = weights
    of_z, bias = first[..., -1 - z.shape[-1] :, :].split([z.shape[-1], 1], -2)
    a = of_x + (z @ of_z + bias)
    for weight in rest:
        of_h, bias = weight.split([weight.shape[-2] - 1, 1], -2)
        a = clipped_relu(a) @ of_h + bias
    return a


def _check(config: BNNLVConfig) -> None:
    if not 0 <= config.alpha < math.inf:
        raise ValueError(f"alpha is {config.alpha}: give a number >= 0, such as 0.5")
    for name in ("samples", "latents"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}: give a whole number of at least 1")
    for name in ("prior_variance", "latent_variance", "latent_rate", "noise_rate"):
        if not 0 < getattr(config, name) < math.inf:
            raise ValueError(f"{name} is {getattr(config, name)}: give a number above 0")
