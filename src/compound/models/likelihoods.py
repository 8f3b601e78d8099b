"""What the last layer's pre-activations mean: targets with Gaussian noise, or logits of classes.

A likelihood turns the Gaussian over the last layer's pre-activations into log-densities for training, and draws of them into
a `Predictive`. At prediction draws are (members, outer, inner, rows, size), with noise that all rows share.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from compound.distributions import gaussian_log_prob, log_mean_exp
from compound.models.limits import Limits
from compound.nn import Gaussian
from compound.ops.gaussian_noise import standard_normal
from compound.ops.softmax import expected_entropy, expected_softmax
from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from compound.random import Generators
from compound.types import Task


class Densities(NamedTuple):
    """Log-densities of the truth."""

    each: Tensor  # (members, rows) under each member's own predictive
    together: Tensor  # (rows,) under that of all


class Likelihood(nn.Module, ABC):
    """The observation model at the end of a network."""

    def on_fit_start(self, y: Tensor) -> None:
        """Constants from the training rows."""

    @abstractmethod
    def log_prob(self, last: Gaussian, y: Tensor, generator: Generators) -> Tensor:  # (members, draws, rows)
        """Log-densities of y under each draw of the last layer, (members, draws, rows, size)."""

    @abstractmethod
    def noise(
        self, members: int, draws: int, generator: Generator, like: Tensor
    ) -> Tensor:  # (members, draws, ...)
        """Noise of the last layer for every draw, shared by all rows."""

    @abstractmethod
    def draw(self, last: Gaussian, noise: Tensor) -> tuple[Tensor, Tensor]:
        """What prediction keeps of draws of the last layer: two arrays (members, draws', rows, size)."""

    @abstractmethod
    def member_log_prob(self, draws: tuple[Tensor, Tensor], y: Tensor) -> Tensor:  # (members, rows)
        """Log-density of y under each member's own predictive, without far noise."""

    @abstractmethod
    def under_noise(self, draws: tuple[Tensor, Tensor], y: Tensor) -> Callable[[Tensor | None], Densities]:
        """Log-densities of y as a function of the loudness t (rows,) of the far noise, None: none."""

    def calibrate(self, draws: tuple[Tensor, Tensor], y: Tensor, held: Tensor) -> None:
        """Use held-out rows, marked by 1 in held (members, rows), to correct the spread of the predictive."""

    def bound(self, draws: tuple[Tensor, Tensor], y: Tensor) -> None:
        """Learn the bounds of the answer from training targets and the draws of some of their rows."""

    @abstractmethod
    def predictive(self, draws: tuple[Tensor, Tensor], t: Tensor | None) -> Predictive:
        """All members' draws as one answer."""


def likelihood(
    task: Task, members: int, last_layer: str, last_draws: int, noise: float, far: float
) -> Likelihood:
    """The likelihood of a task."""
    if last_layer not in ("integrate", "sample"):
        raise ValueError(f"last_layer is {last_layer!r}: use 'integrate' or 'sample'")
    if task.kind == "regression":
        return GaussianLikelihood(task.size, members, noise, last_layer, far)  # type: ignore[arg-type]
    return CategoricalLikelihood(task.size, last_layer, last_draws)  # type: ignore[arg-type]


class Floored(nn.Module):
    """Noise with a smallest variance that the training rows tell. Until they have, or a state was loaded that knows it, there is none."""

    floor: Tensor  # (targets,) a variance: rounded targets have no finer density; -1: not known

    def __init__(self, targets: int):
        super().__init__()
        self.register_buffer("floor", torch.full((targets,), -1.0, dtype=torch.float32))
        self.knows_floor = False

    def set_floor(self, floor: Tensor) -> None:
        self.floor, self.knows_floor = floor, True

    def known_floor(self) -> Tensor:  # (targets,)
        if not self.knows_floor:
            raise ValueError(
                "the smallest noise of the targets is not known yet: call on_fit_start with the training rows first"
            )
        return self.floor

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.knows_floor = bool((self.floor >= 0).all())


class GaussianLikelihood(Floored, Likelihood):
    """p(y; φ) = N(φ, σ² + floor), σ learnt per target or fixed; the last layer integrated or sampled.

    After training one factor τ <= 1 may narrow the predictive about its mean. Far noise adds the variance unit² exp(t), t <= 0.
    """

    unit: Tensor  # (targets,)
    tau: Tensor  # ()

    def __init__(
        self, targets: int, members: int, noise: float, last_layer: Literal["integrate", "sample"], far: float
    ):
        super().__init__(targets)
        self.last_layer, self.fixed, self.far = last_layer, bool(noise), far
        start = torch.full((members, targets), math.log(noise) if noise else -1.0, dtype=torch.float32)
        self.log_noise = nn.Parameter(start, requires_grad=not noise)
        if self.fixed:  # a given noise is taken at its word
            self.set_floor(torch.zeros(targets, dtype=torch.float32))
        self.register_buffer("unit", torch.ones(targets, dtype=torch.float32))
        self.register_buffer("tau", torch.ones((), dtype=torch.float32))
        self.limits = Limits(targets)

    def on_fit_start(self, y: Tensor) -> None:
        spread = y.double().std(0, correction=0)  # (targets,)
        self.unit = (self.far * torch.where(spread > 0, spread, 1.0)).to(y.dtype)
        if not self.fixed:
            self.set_floor(noise_floor(y))

    def variance(self) -> Tensor:  # (members, targets)
        return (2 * self.log_noise).exp()

    def log_prob(self, last: Gaussian, y: Tensor, generator: Generators) -> Tensor:
        variance = (self.variance() + self.known_floor())[:, None, None]
        if self.last_layer == "integrate":
            return gaussian_log_prob(y, last.mean, last.std.square() + variance).sum(-1)
        return gaussian_log_prob(
            y, last.draw(standard_normal(generator, last.mean.shape, last.mean)), variance
        ).sum(-1)

    def noise(self, members: int, draws: int, generator: Generator, like: Tensor) -> Tensor:
        return standard_normal(generator, (members, draws, 1, len(self.unit)), like)

    def draw(self, last: Gaussian, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Means, and variances of the integrated last layer."""
        if self.last_layer == "integrate":
            return last.mean, last.std.square()
        return last.draw(noise), torch.zeros_like(last.mean)

    def member_log_prob(self, draws: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return self._log_prob(draws, y, float(self.tau), 0.0)

    def under_noise(self, draws: tuple[Tensor, Tensor], y: Tensor) -> Callable[[Tensor | None], Densities]:
        def densities(t: Tensor | None) -> Densities:
            return Densities(
                self._log_prob(draws, y, float(self.tau), self._far(t)), self.predictive(draws, t).log_prob(y)
            )

        return densities

    def _log_prob(self, draws: tuple[Tensor, Tensor], y: Tensor, tau: float, far: Tensor | float) -> Tensor:
        means, spread = (draw.flatten(1, 2) for draw in draws)  # (members, n, rows, targets)
        centre = means.mean(1, keepdim=True)
        variance = tau**2 * (spread + self.variance()[:, None, None]) + self.known_floor() + far
        return log_mean_exp(gaussian_log_prob(y, centre + tau * (means - centre), variance).sum(-1), 1)

    def _far(self, t: Tensor | None) -> Tensor | float:  # (rows, targets)
        return 0.0 if t is None else self.unit.square() * t.exp().unsqueeze(-1)

    @torch.no_grad()
    def calibrate(self, draws: tuple[Tensor, Tensor], y: Tensor, held: Tensor) -> None:
        grid = np.geomspace(0.1, 1.0, 47).tolist()
        scores = [float((held * self._log_prob(draws, y, tau, 0.0)).sum()) for tau in grid]
        self.tau = torch.tensor(grid[int(np.argmax(scores))], dtype=y.dtype)

    def bound(self, draws: tuple[Tensor, Tensor], y: Tensor) -> None:
        self.limits.fit(y, self.predictive(draws, None))

    def predictive(self, draws: tuple[Tensor, Tensor], t: Tensor | None) -> GaussianPredictive:
        means, spread = draws  # (members, outer, inner, rows, targets)
        centre = means.mean((1, 2), keepdim=True)  # each member's own, as `calibrate` has it
        means = (centre + self.tau * (means - centre)).flatten(0, 1)
        square = self.tau.square()
        noise = self.variance().repeat_interleave(len(means) // len(draws[0]), 0)[
            :, None, None
        ]  # of each draw's member
        noise = square * noise + self.known_floor()
        answer = self.limits(
            GaussianPredictive.from_draws(means, noise, square * spread.flatten(0, 1), members=len(draws[0]))
        )
        return answer if t is None else answer.with_far_noise(t, self.unit)


class CategoricalLikelihood(Likelihood):
    """p(y; φ) = softmax(φ)_y; logits sampled (antithetic draws per hidden draw) or integrated exactly.

    Far noise is there with log-odds t, and then so loud that nothing is left of the logits: all classes are alike.
    """

    def __init__(self, classes: int, last_layer: Literal["integrate", "sample"], last_draws: int):
        super().__init__()
        self.classes, self.last_layer, self.last_draws = classes, last_layer, last_draws

    def log_prob(self, last: Gaussian, y: Tensor, generator: Generators) -> Tensor:
        if self.last_layer == "integrate":
            return _pick(_log(expected_softmax(last.mean, last.std)), y)
        members, draws, rows, classes = last.mean.shape
        noise = antithetic(
            standard_normal(
                generator, (members, draws, (self.last_draws + 1) // 2, rows, classes), last.mean
            ),
            self.last_draws,
        )
        logits = torch.addcmul(last.mean.unsqueeze(2), last.std.unsqueeze(2), noise)
        labels = y if rows == len(logits.view(-1, classes)) else y.expand(logits.shape[:-1]).reshape(-1)
        return -functional.cross_entropy(logits.view(-1, classes), labels, reduction="none").view(
            members, -1, rows
        )

    def noise(self, members: int, draws: int, generator: Generator, like: Tensor) -> Tensor:
        return antithetic(
            standard_normal(generator, (members, draws, (self.last_draws + 1) // 2, 1, self.classes), like),
            self.last_draws,
        )

    def draw(self, last: Gaussian, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and standard deviations still to be integrated over them."""
        if self.last_layer == "integrate":
            return last.mean, last.std
        logits = torch.addcmul(last.mean.unsqueeze(2), last.std.unsqueeze(2), noise).flatten(1, 2)
        return logits, logits.new_zeros(()).expand_as(logits)

    def member_log_prob(self, draws: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return _pick(_log(self._probs(*draws).mean((1, 2))), y)

    def under_noise(self, draws: tuple[Tensor, Tensor], y: Tensor) -> Callable[[Tensor | None], Densities]:
        each, answer = (
            self.member_log_prob(draws, y),
            self.predictive(draws, None),
        )  # far noise comes on top of both

        def densities(t: Tensor | None) -> Densities:
            if t is None:
                return Densities(each, answer.log_prob(y))
            noisy = torch.logaddexp(
                each + functional.logsigmoid(-t), functional.logsigmoid(t) - math.log(self.classes)
            )
            return Densities(noisy, answer.mix_with_uniform(t).log_prob(y))

        return densities

    def _probs(self, logits: Tensor, std: Tensor) -> Tensor:
        return expected_softmax(logits, std) if self.last_layer == "integrate" else torch.softmax(logits, -1)

    def predictive(self, draws: tuple[Tensor, Tensor], t: Tensor | None) -> CategoricalPredictive:
        logits, std = (draw.flatten(0, 1) for draw in draws)
        if self.last_layer == "integrate":
            component = expected_entropy(logits, std).mean((0, 1))
            answer = CategoricalPredictive.from_draws(
                _log(self._probs(logits, std)), len(draws[0]), component=component
            )
        else:
            answer = CategoricalPredictive.from_draws(
                torch.log_softmax(logits, -1), len(draws[0]), self.last_draws
            )
        return answer if t is None else answer.mix_with_uniform(t)


def antithetic(noise: Tensor, count: int) -> Tensor:
    """`count` draws along axis 2 from half as many: each with its mirror image."""
    return noise if count == 1 else torch.cat([noise, -noise], 2)[:, :, :count]


def _pick(values: Tensor, y: Tensor) -> Tensor:
    """The entry of each row's label along the last axis."""
    return values.gather(-1, y.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def _log(probs: Tensor) -> Tensor:
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


def noise_floor(y: Tensor) -> Tensor:  # (targets,)
    """The smallest sensible variance of each target: that of its rounding, and never quite 0."""
    gap = torch.stack([rounding(column) for column in y.double().T])
    spread = y.double().std(0, correction=0)
    return torch.maximum(gap.square() / 12, (1e-4 * spread).square().clamp_min(1e-12)).to(y.dtype)


def rounding(values: Tensor) -> Tensor:  # ()
    """The step to which numbers were rounded: the median gap of distinct values where many repeat, else 0."""
    distinct = values.unique()
    gaps = distinct.diff()
    gaps = gaps[gaps > 1e-6 * values.std(correction=0)]
    return gaps.median() if len(gaps) > 0 and len(distinct) < 0.95 * len(values) else values.new_zeros(())
