"""The one answer type: what y may be, and how much of the doubt comes from where.

Three layers of randomness: the component p(y; φ), the mixing distribution (θ given ψ), the posterior (ψ).
Their shares (variances for targets, entropies in nats for classes) add up to the total:

    total = component + mixing + posterior,    aleatoric = component + mixing,    epistemic = posterior
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Generator, Tensor

from compound.distributions import mixture_cdf, mixture_entropy, mixture_log_prob, mixture_quantile, weighted_mean


@dataclass(frozen=True)
class Predictive(ABC):
    """The predictive distribution of a number of rows; its shares of uncertainty are (rows,) or (rows, targets)."""

    component: Tensor
    mixing: Tensor
    posterior: Tensor

    @property
    def aleatoric(self) -> Tensor:
        return self.component + self.mixing

    @property
    def epistemic(self) -> Tensor:
        return self.posterior

    @property
    def total(self) -> Tensor:
        return self.component + self.mixing + self.posterior

    @abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:  # (rows,)
        """Log of the predictive probability or density of y."""

    @abstractmethod
    def entropy(self) -> Tensor:  # (rows,) or (rows, targets)
        """Entropy of the predictive distribution, in nats."""

    @abstractmethod
    def sample(self, n: int, generator: Generator) -> Tensor:  # (n, rows) or (n, rows, targets)
        """n draws of y for every row."""

    @abstractmethod
    def _joined(self, others: Sequence[Self]) -> Self: ...

    @staticmethod
    def join(parts: "Sequence[Predictive]") -> "Predictive":
        """The answers of several chunks of rows as one."""
        return parts[0] if len(parts) == 1 else parts[0]._joined(parts)


@dataclass(frozen=True)
class CategoricalPredictive(Predictive):
    """Classes: the mean probabilities, with shares of their entropy."""

    probs: Tensor  # (rows, classes)

    @classmethod
    def of(cls, logs: Tensor) -> Self:
        """From log-probabilities (outer, inner, rows, classes)."""
        probs = logs.exp()
        component = -(probs * logs).sum(-1).mean((0, 1))  # (rows,)
        means = probs.mean(1)  # (outer, rows, classes)
        mixing = entropy(means).mean(0) - component
        mean = means.mean(0)
        return cls(*split(entropy(mean), component, mixing, probs), mean)

    def doubted(self, log_odds: Tensor) -> Self:
        """The answer if, with these log-odds (rows,), nothing is known and all classes are alike.

        That never lowers the entropy, nor changes the label. What it adds more data would settle: it goes to the posterior.
        """
        doubt = torch.sigmoid(log_odds).unsqueeze(-1)
        probs = torch.lerp(self.probs, torch.full_like(self.probs, 1 / self.probs.shape[-1]), doubt)
        added = (entropy(probs) - entropy(self.probs)).clamp_min(0)
        return replace(self, posterior=self.posterior + added, probs=probs)

    @property
    def label(self) -> Tensor:  # (rows,)
        return self.probs.argmax(-1)

    @property
    def confidence(self) -> Tensor:  # (rows,)
        return self.probs.amax(-1)

    def log_prob(self, y: Tensor) -> Tensor:
        tiny = torch.finfo(self.probs.dtype).tiny  # an average of underflowed draws is not "impossible"
        return self.probs.gather(-1, y.unsqueeze(-1)).squeeze(-1).clamp_min(tiny).log()

    def entropy(self) -> Tensor:
        return entropy(self.probs)

    def sample(self, n: int, generator: Generator) -> Tensor:
        return torch.multinomial(self.probs, n, replacement=True, generator=generator).T

    def _joined(self, others: Sequence[Self]) -> Self:
        columns = ((o.component, o.mixing, o.posterior, o.probs) for o in others)
        return type(self)(*(torch.cat(column) for column in zip(*columns, strict=True)))


@dataclass(frozen=True)
class GaussianPredictive(Predictive):
    """Targets: a mixture of Gaussians, even unless it has weights, with shares of its variance."""

    means: Tensor  # (draws, rows, targets)
    variances: Tensor  # (draws, rows, targets)
    log_weights: Tensor | None = None  # (draws, rows, 1), summing to one over the draws

    @classmethod
    def of(cls, means: Tensor, noise: Tensor, spread: Tensor, far: Tensor | None = None) -> Self:
        """From draws (outer, inner, rows, targets): means, the component's variance, the integrated last layer's variance.

        `far` (rows, 1 or targets) is variance that more data around x would remove: it goes to the posterior.
        """
        inner_mean = means.mean(1)  # (outer, rows, targets)
        component = noise.expand_as(means).mean((0, 1))
        mixing = (spread.mean(1) + means.var(1, correction=0)).mean(0)
        added = torch.zeros_like(component) if far is None else far.expand_as(component)
        total = component + mixing + inner_mean.var(0, correction=0)
        component, mixing, posterior = split(total, component, mixing, means)
        variances = (noise + spread + added).expand_as(means)
        return cls(component, mixing, posterior + added, means.flatten(0, 1), variances.flatten(0, 1))

    @property
    def mean(self) -> Tensor:  # (rows, targets)
        return weighted_mean(self.means, self.log_weights)

    @property
    def variance(self) -> Tensor:  # (rows, targets)
        return weighted_mean(self.variances + (self.means - self.mean).square(), self.log_weights)

    @property
    def std(self) -> Tensor:
        return self.variance.sqrt()

    def log_prob(self, y: Tensor) -> Tensor:
        """Joint log-density of all targets of a row."""
        return mixture_log_prob(y, self.means, self.variances, self.log_weights)

    def cdf(self, y: Tensor) -> Tensor:  # (rows, targets)
        return mixture_cdf(y, self.means, self.variances, self.log_weights)

    def quantile(self, q: float) -> Tensor:  # (rows, targets)
        return mixture_quantile(q, self.means, self.variances, self.log_weights)

    def interval(self, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds y with probability `coverage`."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage is {coverage}: it must lie between 0 and 1, such as 0.9")
        return self.quantile((1 - coverage) / 2), self.quantile((1 + coverage) / 2)

    def entropy(self) -> Tensor:
        """Of each target's own mixture."""
        return mixture_entropy(self.means, self.variances, self.log_weights)

    def sample(self, n: int, generator: Generator) -> Tensor:
        rows, targets = self.means.shape[1:]
        if self.log_weights is None:
            pick = torch.randint(len(self.means), (n, rows, 1), generator=generator)
        else:
            pick = torch.multinomial(self.log_weights[..., 0].T.exp(), n, replacement=True, generator=generator).T.unsqueeze(-1)
        pick = pick.expand(n, rows, targets)
        noise = torch.randn((n, rows, targets), generator=generator, dtype=self.means.dtype)
        return self.means.gather(0, pick) + self.variances.gather(0, pick).sqrt() * noise

    def rescale(self, shift: Tensor | float, scale: Tensor | float) -> Self:
        """The same answer for shift + scale * y: from standard units back to the original ones."""
        square = scale * scale
        parts = (self.component * square, self.mixing * square, self.posterior * square)
        return type(self)(*parts, shift + scale * self.means, square * self.variances, self.log_weights)

    def _joined(self, others: Sequence[Self]) -> Self:
        parts = ((o.component, o.mixing, o.posterior) for o in others)
        draws = ((o.means, o.variances) if o.log_weights is None else (o.means, o.variances, o.log_weights) for o in others)
        return type(self)(
            *(torch.cat(column) for column in zip(*parts, strict=True)),
            *(torch.cat(column, 1) for column in zip(*draws, strict=True)),
        )


def entropy(probs: Tensor) -> Tensor:
    """Entropy of probabilities along the last axis; 0 log 0 = 0."""
    return -torch.xlogy(probs, probs).sum(-1)


def split(total: Tensor, component: Tensor, mixing: Tensor, draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Component, mixing and posterior shares of a total, none negative, from nested draws (outer, inner, ...).

    The spread of K inner means is too large by the inner variance over K; moving mixing / (K - 1) from posterior to mixing
    is exact in expectation for variances, first order for entropies, and leaves the sum alone. One inner draw cannot
    separate the two: all of it counts as posterior. With one outer draw there are no means to compare.
    """
    outer, inner = draws.shape[:2]
    component = torch.minimum(component, total)
    mixing = torch.minimum(mixing.clamp_min(0), total - component)
    posterior = total - component - mixing
    move = torch.minimum(posterior, mixing / (inner - 1)) if min(outer, inner) > 1 else torch.zeros_like(posterior)
    return component, mixing + move, posterior - move
