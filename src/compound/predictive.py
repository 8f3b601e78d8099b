"""The one answer type: what y may be, and how much of the doubt comes from where.

Three layers of randomness: the component p(y; φ), the mixing distribution (θ given ψ), the posterior (ψ).
Their shares (variances for targets, entropies in nats for classes) add up to the total:

    total = component + mixing + posterior,    aleatoric = component + mixing,    epistemic = posterior

Shares are estimated from nested draws: members (all there are), for each of them `outer` draws of what more data would settle,
and for each of those `inner` draws of the rest. `variance_parts` and `entropy_parts` say how, and with what error.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Generator, Tensor

from compound.distributions import (
    mixture_cdf,
    mixture_entropy,
    mixture_log_prob,
    mixture_quantile,
    weighted_mean,
)


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
    def _concat(self, others: Sequence[Self]) -> Self: ...

    @staticmethod
    def concat(parts: "Sequence[Predictive]") -> "Predictive":
        """The answers of several chunks of rows as one."""
        return parts[0] if len(parts) == 1 else parts[0]._concat(parts)


@dataclass(frozen=True)
class CategoricalPredictive(Predictive):
    """Classes: the mean probabilities, with shares of their entropy."""

    probs: Tensor  # (rows, classes)

    @classmethod
    def from_draws(
        cls, logs: Tensor, members: int = 1, paired: int = 1, component: Tensor | None = None
    ) -> Self:
        """From log-probabilities (members * outer, inner * paired, rows, classes); `paired` draws side by side are not independent.

        `component` (rows,) is the mean entropy given θ, where it is known better than from these draws.
        """
        probs = logs.exp()
        if component is None:
            component = -(probs * logs).sum(-1).mean((0, 1))  # (rows,)
        units = (
            probs.unflatten(1, (-1, paired)).mean(2).unflatten(0, (members, -1))
        )  # (members, outer, inner, rows, classes)
        mean = units.mean(2).mean((0, 1))
        total = entropy(mean)
        _, posterior = entropy_parts(units, component, total)
        component = torch.minimum(component, total)
        posterior = torch.minimum(posterior.clamp_min(0), total - component)
        return cls(component, total - component - posterior, posterior, mean)

    def mix_with_uniform(self, log_odds: Tensor) -> Self:
        """The answer if, with these log-odds (rows,), nothing is known and all classes are alike; the label stays.

        The network's own noise counts only as far as the network is believed: with probability 1 - π. All other entropy is what
        more data would settle, also where the network itself had given up.
        """
        unknown = torch.sigmoid(log_odds)  # π
        probs = torch.lerp(
            self.probs, torch.full_like(self.probs, 1 / self.probs.shape[-1]), unknown.unsqueeze(-1)
        )
        believed = torch.sigmoid(-log_odds)  # 1 - π, without rounding
        component, mixing = believed * self.component, believed * self.mixing
        return replace(
            self,
            component=component,
            mixing=mixing,
            posterior=(entropy(probs) - component - mixing).clamp_min(0),
            probs=probs,
        )

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

    def _concat(self, others: Sequence[Self]) -> Self:
        columns = ((o.component, o.mixing, o.posterior, o.probs) for o in others)
        return type(self)(*(torch.cat(column) for column in zip(*columns, strict=True)))


@dataclass(frozen=True)
class GaussianPredictive(Predictive):
    """Targets: a mixture of Gaussians, even unless it has weights, with shares of its variance."""

    means: Tensor  # (draws, rows, targets)
    variances: Tensor  # (draws, rows, targets)
    log_weights: Tensor | None = None  # (draws, rows, 1), summing to one over the draws

    @classmethod
    def from_draws(
        cls, means: Tensor, noise: Tensor, spread: Tensor, far: Tensor | None = None, members: int = 1
    ) -> Self:
        """From draws (members * outer, inner, rows, targets): means, the component's variance, the integrated last layer's variance.

        `far` (rows, 1 or targets) is variance that more data around x would remove: it goes to the posterior.
        """
        component = noise.expand_as(means).mean((0, 1))
        mixing, posterior = variance_parts(means.unflatten(0, (members, -1)))
        drawn = mixing + posterior  # never negative
        posterior = posterior.clamp_min(0)
        added = torch.zeros_like(component) if far is None else far.expand_as(component)
        variances = (noise + spread + added).expand_as(means)
        integrated = spread.expand_as(means).mean((0, 1))
        return cls(
            component,
            integrated + drawn - posterior,
            posterior + added,
            means.flatten(0, 1),
            variances.flatten(0, 1),
        )

    @property
    def mean(self) -> Tensor:  # (rows, targets)
        return weighted_mean(self.means, self.log_weights)

    @property
    def variance(self) -> Tensor:  # (rows, targets)
        """Of y. The mixture of the draws at hand has a little less: its own mean varies with them."""
        return self.total

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
            pick = torch.multinomial(
                self.log_weights[..., 0].T.exp(), n, replacement=True, generator=generator
            ).T.unsqueeze(-1)
        pick = pick.expand(n, rows, targets)
        noise = torch.randn((n, rows, targets), generator=generator, dtype=self.means.dtype)
        return self.means.gather(0, pick) + self.variances.gather(0, pick).sqrt() * noise

    def with_far_noise(self, t: Tensor, unit: Tensor) -> Self:
        """The answer with the variance unit² exp(t) added, t (rows,) at most 0, unit (targets,).

        What is added more data would settle. So it would the network's own noise, as far as the network is not believed there:
        exp(t) is also the part of the aleatoric variance that counts as epistemic.
        """
        unknown, believed = t.exp().unsqueeze(-1), -torch.expm1(t).unsqueeze(-1)  # (rows, 1)
        added = unit.square() * unknown
        component, mixing = believed * self.component, believed * self.mixing
        posterior = self.posterior + unknown * self.aleatoric + added
        return replace(
            self, component=component, mixing=mixing, posterior=posterior, variances=self.variances + added
        )

    def rescale(self, shift: Tensor | float, scale: Tensor | float) -> Self:
        """The same answer for shift + scale * y: from standard units back to the original ones."""
        square = scale * scale
        parts = (self.component * square, self.mixing * square, self.posterior * square)
        return type(self)(*parts, shift + scale * self.means, square * self.variances, self.log_weights)

    def _concat(self, others: Sequence[Self]) -> Self:
        parts = ((o.component, o.mixing, o.posterior) for o in others)
        draws = (
            (o.means, o.variances) if o.log_weights is None else (o.means, o.variances, o.log_weights)
            for o in others
        )
        return type(self)(
            *(torch.cat(column) for column in zip(*parts, strict=True)),
            *(torch.cat(column, 1) for column in zip(*draws, strict=True)),
        )


def entropy(probs: Tensor) -> Tensor:
    """Entropy of probabilities along the last axis; 0 log 0 = 0."""
    return -torch.xlogy(probs, probs).sum(-1)


def variance_parts(means: Tensor) -> tuple[Tensor, Tensor]:  # (rows, targets) each
    """Mixing and posterior variance of drawn means (members, outer, inner, rows, targets), both without bias; may be negative.

    Members are all there are; within one, with v = the variance of inner draws and w = that of the means of `inner` draws:

        mixing = v,    posterior = w - v / inner + (variance between members' means) - (1 - 1 / members) (w / outer)

    One outer draw has no w: the error of a member's mean is v / inner, and only members differ. One inner draw has no v: all
    is posterior, the sum is right.
    """
    members, outer, inner = means.shape[:3]
    inner_means = means.mean(2)
    v = means.var(2).mean((0, 1)) if inner > 1 else torch.zeros_like(means[0, 0, 0])
    w = inner_means.var(1).mean(0) if outer > 1 else v / inner  # of the mean of `inner` draws
    between = inner_means.mean(1).var(0, correction=0) - (1 - 1 / members) * w / outer
    return v, w - v / inner + between


def entropy_parts(probs: Tensor, component: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:  # (rows,) each
    """Mixing and posterior share of the total entropy, from probabilities (members, outer, inner, rows, classes); may be negative.

    The entropy of a mean of K draws is too low by about one K-th of what it exceeds the draws' own by. The jackknife over inner
    draws leaves an error of order 1 / inner² in the mixing share. `total`, the entropy of the mean of all draws, is taken as it
    is, and so is too low by about (posterior within members + mixing / inner) / (members outer); the posterior share bears it.
    """
    inner, mean = probs.shape[2], probs.mean(2, keepdim=True)  # (members, outer, 1, rows, classes)
    given = entropy(mean).mean((0, 1, 2))  # of y given ψ
    if inner > 1:
        # (inner - 1) (H(mean) - H(mean of all but one)), on average a divergence of the latter from the former: no cancellation
        away = ((mean - probs) / ((inner - 1) * mean.clamp_min(torch.finfo(mean.dtype).tiny))).clamp_min(-1)
        given = given + (inner - 1) * (mean * (torch.special.xlog1py(1 + away, away) - away)).sum(-1).mean(
            (0, 1, 2)
        )
    return given - component, total - given
