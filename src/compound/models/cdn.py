"""Compound density networks: mixtures of uncountably many networks whose mixing distribution depends on the input.

    p(y | x; ψ) = E_{p(θ; g(x; ψ))}[ p(y; f(x; θ)) ],     p(θ; g(x; ψ)) = prod_l MN(W_l; g_l(h_{l-1}; ψ_l))

Kristiadi, Däubener and Fischer (2019). ML-CDN maximises  mean log 1/S sum_s p(y; f(x; θ_s)) - λ mean KL[p(θ; g(x)) || p(θ)];
VB-CDN the evidence bound  mean E_q(ψ) log E_θ p(y; f(x; θ)) - KL[q(ψ) || p(ψ)] / N.

A draw: outer = a member and, in VB-CDN, its ψ (what more data would settle); inner = θ given those. Far noise counts as outer.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Generator, Tensor, nn

from compound.distributions import log_mean_exp
from compound.models.base import Draws, Loss, Model, train_mask, weighted_row_mean, with_defaults
from compound.models.distance_aware import calibration_rows, choose_ramp, fit_distance
from compound.models.likelihoods import Likelihood, likelihood
from compound.nn import CompoundConfig, CompoundLinear, Gaussian
from compound.ood.noise import DistanceAwareNoise
from compound.ops.clamp import clamp_inputs, clipped_relu
from compound.ops.gaussian_noise import standard_normal
from compound.ops.hidden_samples import sample_hidden
from compound.predictive import Predictive
from compound.random import Generators, member_seed, named_generator
from compound.types import Batch, Task


@dataclass(frozen=True)
class Config:
    """Options of both CDNs; None means: as the task asks, see `_COMMON`."""

    widths: tuple[int, ...] | None = None  # hidden layers of the predictive network
    hyper: tuple[int, ...] | None = None  # hidden layers of each hypernetwork
    samples: int | None = None  # S, draws of θ per row in training
    last_layer: Literal["integrate", "sample"] | None = None  # its Gaussian taken whole, or drawn from
    last_draws: int = 2  # antithetic draws of the logits per hidden draw
    parametrization: Literal["scaled", "paper"] = "scaled"  # weight variances over fan-in, or as published
    noise: float = 0.0  # standard deviation of targets given the network; 0: learnt
    noise_rate: float = 5.0  # factor on the learning rate of the learnt noise
    log_col: tuple[float, ...] | None = (
        None  # where each layer's column log-variances start; the last serves the layers after
    )
    members: int | None = None  # networks trained side by side, as one batched computation
    far: float = 3.0  # far noise; targets: its standard deviation far away, in those of the target; 0: none


@dataclass(frozen=True)
class MLConfig(Config):
    lam: float | tuple[float, float] | None = None  # λ, or a geometric path from first to last over training
    activation: Literal["relu", "tanh"] = "relu"  # of the hypernetworks
    basis: Literal["point", "map"] = "point"  # V without a prior, or with N(0, 2 / fan-in)


@dataclass(frozen=True)
class VBConfig(Config):
    objective: Literal["elbo", "official", "joint"] = (
        "elbo"  # ψ shared by a row's draws of θ; heads only; not at all
    )
    activation: Literal["relu", "tanh"] = "tanh"  # of the hypernetworks
    basis: Literal["point", "map", "vmg"] = "point"  # "vmg": V has a matrix-Gaussian posterior of its own


class _CDN(Model):
    """What both CDNs share: the stack of compound layers, prediction, far noise."""

    bayes: bool
    likelihood: Likelihood
    far: DistanceAwareNoise

    def __init__(self, inputs: int, task: Task, config: MLConfig | VBConfig, seed: int = 0):
        super().__init__()
        bayes = _BAYES[task.kind] if self.bayes else {}
        self.config = cast(Any, with_defaults(config, _COMMON[task.kind] | bayes))  # no None is left in it
        _check(self.config)
        self.inputs, self.task, self.members = inputs, task, self.config.members
        self._build(self.config, seed)

    def _build(self, config: Any, seed: int) -> None:
        inputs, task, bayes, starts = self.inputs, self.task, self.bayes, config.log_col
        widths = (inputs, *config.widths, task.size)
        streams = [named_generator(member_seed(seed, k), "weights") for k in range(self.members)]
        form = CompoundConfig(
            config.hyper,
            config.activation,
            bayes,
            config.parametrization,
            config.basis,
            small=task.kind == "classification",
        )
        self.stack = nn.ModuleList(
            CompoundLinear(
                a, b, replace(form, log_col=starts[min(i, len(starts) - 1)]), streams, (self.members,)
            )
            for i, (a, b) in enumerate(zip(widths, widths[1:], strict=False))
        )
        self.likelihood = likelihood(
            task, self.members, config.last_layer, config.last_draws, config.noise, config.far
        )
        self.far = DistanceAwareNoise(inputs)

    @property
    def layers(self) -> list[CompoundLinear]:
        return cast(list[CompoundLinear], list(self.stack))

    @abstractmethod
    def _shared(self) -> tuple[int, int]:
        """In how many parts of the S draws ψ is shared, by hidden maps and by heads."""

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        self.likelihood.on_fit_start(data.y[train_mask(data)])

    def lr_multipliers(self) -> dict[str, float]:
        return {"log_noise": self.config.noise_rate}

    def _last(self, x: Tensor, generator: Generators, kl: bool) -> tuple[Gaussian, Tensor]:
        """The last layer under S draws, (members, S, rows, size), and each row's KL of θ, (members, rows)."""
        samples, rows = self.config.samples, len(x)
        x = clamp_inputs(x).expand(self.members, -1, -1)
        shared = self._shared()
        once = shared[0] == samples  # all draws of a row see one ψ in the first layer: one pass serves them
        first, *rest = self.layers
        out = first(x if once else x.repeat(1, samples, 1), generator, (1, 1) if once else shared, kl)
        total = out.kl.view(self.members, -1, rows).mean(1) if kl else out.kl
        for layer in rest:
            mean, std = (
                v.view(self.members, -1, rows, v.shape[-1]) for v in (out.mean, out.std)
            )  # (members, 1 or S, rows, width)
            noise = standard_normal(generator, (self.members, samples, rows, mean.shape[-1]), mean)
            out = layer.forward_augmented(sample_hidden(mean, std, noise), generator, shared, kl)
            total = total + out.kl.view(self.members, samples, rows).mean(1) if kl else total
        mean, std = (v.view(self.members, -1, rows, v.shape[-1]) for v in (out.mean, out.std))
        return Gaussian(mean, std, out.kl), total

    def _nll(self, last: Gaussian, batch: Batch, generator: Generators) -> Tensor:  # (members,)
        log_prob = log_mean_exp(self.likelihood.log_prob(last, batch.y, generator), 1)
        return -weighted_row_mean(log_prob, batch.weight)

    def _draws(self, x: Tensor, n: Draws, generator: Generator) -> tuple[Tensor, Tensor]:
        """Draws of the last layer (members, outer, inner, rows, size); a noise vector serves all rows."""
        x = clamp_inputs(x).expand(self.members, -1, -1)
        first, *rest = self.layers
        step = max(1, 2048 // x.shape[1])  # draws computed together: few rows would leave the processor idle
        outer = []
        for _ in range(n.outer):
            psi = [layer.draw(generator) for layer in self.layers]
            noises = [
                standard_normal(generator, (self.members, n.inner, 1, layer.inputs), x) for layer in rest
            ]
            last = self.likelihood.noise(self.members, n.inner, generator, x)
            start = first.forward_given(x, psi[0])
            mean, std = start.mean.unsqueeze(1), start.std.unsqueeze(1)  # (members, 1, rows, width)
            inner = []
            for begin in range(0, n.inner, step):
                part = slice(begin, min(begin + step, n.inner))
                draws = part.stop - part.start
                out = Gaussian(mean.expand(-1, draws, -1, -1), std.expand(-1, draws, -1, -1), start.kl)
                for layer, weights, noise in zip(rest, psi[1:], noises, strict=True):
                    h = clipped_relu(torch.addcmul(out.mean, out.std, noise[:, part])).flatten(
                        1, 2
                    )  # (members, draws rows, width)
                    after = layer.forward_given(h, weights)
                    out = Gaussian(
                        after.mean.unflatten(1, (draws, -1)), after.std.unflatten(1, (draws, -1)), after.kl
                    )
                inner.append(self.likelihood.draw(out, last[:, part]))
            outer.append([torch.cat(kind, 1) for kind in zip(*inner, strict=True)])
        means, spread = (torch.stack(kind, 1) for kind in zip(*outer, strict=True))
        return means, spread

    def _divide(self, n: Draws) -> Draws:
        """Draws per member. A maximum-likelihood ψ is a point: all of a member's draws are inner ones."""
        outer = math.ceil(n.outer / self.members)
        return Draws(outer, n.inner) if self.bayes else Draws(1, outer * n.inner)

    def predict_chunk(self, x: Tensor, n: Draws, generator: Generator) -> Predictive:
        draws = self._draws(x, self._divide(n), generator)
        t = self.far(clamp_inputs(x)) if self.far.fitted else None
        return self.likelihood.predictive(draws, t)

    def floats_per_row(self, n: Draws) -> int:
        width = max(3 * layer.inputs + 2 * layer.outputs for layer in self.layers)
        kept = 8 * (n.outer + self.members) * n.inner * self.task.size * self.config.last_draws
        return kept + 6 * self.members * (width + self.inputs)

    @torch.no_grad()
    def nll(self, batch: Batch, n: int, generator: Generator) -> Tensor:  # (members,)
        """Each member's own predictive, before far noise."""
        draws = self._draws(batch.x, self._divide(Draws(n * self.members, 1)), generator)
        return -weighted_row_mean(self.likelihood.member_log_prob(draws, batch.y), batch.weight)

    @torch.no_grad()
    def on_fit_end(self, data: Batch, generator: Generator) -> None:
        """Fit τ and the far noise on rows that members held out (on training rows where none did); nothing learnt changes."""
        weight = (
            torch.ones(self.members, len(data), dtype=torch.float32)
            if data.weight is None
            else data.weight.expand(self.members, -1)
        )
        held = weight == 0  # (members, rows)
        some = bool(held.any())
        judges = calibration_rows(data, held, generator)
        draws = self._draws(data.x[judges], self._divide(Draws(100 * self.members, 1)), generator)
        mask = held[:, judges] if some else torch.ones(self.members, len(judges), dtype=torch.bool)
        y = data.y[judges]
        if some:
            self.likelihood.calibrate(draws, y, mask)
        self.likelihood.bound(draws, data.y[train_mask(data)])
        if not self.config.far:
            return
        distance = fit_distance(self.far, data, judges, generator)
        densities = self.likelihood.under_noise(draws, y)

        def scores(t: Tensor | None) -> Tensor:  # (2, rows)
            """Of the members that held a row out, and of all together: their mixture is sharper, so it has more to lose."""
            each, together = densities(t)
            return torch.stack([(mask * each).sum(0) / mask.sum(0), together])

        choose_ramp(self.far, self.task, distance, scores)


class MLCDN(_CDN):
    """Compound density network fitted by maximum likelihood."""

    method = "ml-cdn"
    source = "Kristiadi, Däubener and Fischer (2019)"
    components = ("component", "mixing", "posterior")  # the posterior share: between members, and far noise
    bayes = False
    Config = MLConfig

    def _shared(self) -> tuple[int, int]:
        return self.config.samples, self.config.samples

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        path = self.config.lam
        first, last = path if isinstance(path, tuple) else (path, path)
        lam = first * (last / first) ** batch.progress if first else 0.0
        out, kl = self._last(batch.x, generator, lam > 0)
        nll = self._nll(out, batch, generator)
        divergence = weighted_row_mean(kl, batch.weight) if lam > 0 else torch.zeros_like(nll)
        total = nll + lam * divergence
        if self.config.basis == "map":
            total = total + torch.stack([layer.kl() for layer in self.layers]).sum(0) / batch.size
        return Loss(total.sum(), nll.detach(), divergence.detach())


class VBCDN(_CDN):
    """Compound density network with a variational posterior over its hypernetworks."""

    method = "vb-cdn"
    source = "Kristiadi, Däubener and Fischer (2019)"
    components = ("component", "mixing", "posterior")
    bayes = True
    Config = VBConfig

    def _shared(self) -> tuple[int, int]:
        samples = self.config.samples
        return {"elbo": (samples, samples), "official": (1, samples), "joint": (1, 1)}[self.config.objective]

    def kl(self) -> Tensor:  # (members,)
        """KL of the posterior over all hypernetworks to its prior."""
        return torch.stack([layer.kl() for layer in self.layers]).sum(0)

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        out, _ = self._last(batch.x, generator, False)
        nll = self._nll(out, batch, generator)
        kl = self.kl() / batch.size
        return Loss((nll + kl).sum(), nll.detach(), kl.detach())


# What None stands for. Targets: one recipe that held on all nine UCI sets. Log-variances start low, close to a plain network.
_COMMON: dict[str, dict[str, Any]] = {
    "classification": {
        "widths": (100,),
        "hyper": (50,),
        "samples": 1,
        "last_layer": "sample",
        "members": 5,
        "log_col": (-6.0,),
        "lam": 5e-6,
    },
    "regression": {
        "widths": (50,),
        "hyper": (20,),
        "samples": 5,
        "last_layer": "integrate",
        "members": 5,
        "log_col": (-4.0, -2.0),
    },
}
_COMMON["regression"]["lam"] = (3e-3, 1e-6)
_BAYES: dict[str, dict[str, Any]] = {
    "classification": {"hyper": (100,), "log_col": (-5.0,), "members": 2},
    "regression": {"members": 1},
}


def _check(config: Any) -> None:
    if config.samples < 1 or config.members < 1 or config.last_draws < 1:
        raise ValueError("samples, members and last_draws must be at least 1")
    if any(width < 1 for width in (*config.widths, *config.hyper)) or not config.hyper:
        raise ValueError(f"widths {config.widths} and hyper {config.hyper} must be positive, hyper not empty")
    if config.far < 0 or config.noise < 0:
        raise ValueError(
            f"far is {config.far} and noise {config.noise}: neither may be negative; 0 turns far noise off and learns the noise"
        )
    for name, allowed in (
        ("parametrization", ("scaled", "paper")),
        ("activation", ("relu", "tanh")),
        ("basis", ("point", "map", "vmg")),
    ):
        if getattr(config, name) not in allowed:
            raise ValueError(f"{name} is {getattr(config, name)!r}: use one of {', '.join(allowed)}")
    if hasattr(config, "lam"):
        if config.basis == "vmg":
            raise ValueError("basis is 'vmg': a posterior over V needs vb-cdn")
        lam = config.lam if isinstance(config.lam, tuple) else (config.lam,)
        if len(lam) > 2 or min(lam) < 0 or (len(lam) == 2 and min(lam) == 0):
            raise ValueError(f"lam is {config.lam}: give one number >= 0, or two > 0 for a path")
    elif config.objective not in ("elbo", "official", "joint"):
        raise ValueError(f"objective is {config.objective!r}: use one of elbo, official, joint")
