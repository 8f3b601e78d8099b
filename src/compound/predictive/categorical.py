"""Predictive distributions of classes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Generator, Tensor
from torch.nn import functional

from compound.predictive.base import Predictive
from compound.predictive.decomposition import entropy, entropy_parts
from compound.predictive.plots import plot_classes
from compound.predictive.sets import aps_score, check_coverage


@dataclass(frozen=True)
class CategoricalPredictive(Predictive):
    """Classes: mean probabilities, with the parts of their entropy.

    Parameters
    ----------
    component, mixing, posterior : Tensor of shape (rows,)
        Parts of the entropy, in nats.
    probs : Tensor of shape (rows, classes)
    ood : OODScores, optional
        Scores and threshold behind `is_ood`.
    conformal : callable, optional
        Maps a coverage to the largest score of a class in `sets`.

    Examples
    --------
    >>> import torch
    >>> from compound import CategoricalPredictive
    >>> logs = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log().reshape(2, 1, 1, 2)  # two networks, one row
    >>> p = CategoricalPredictive.from_draws(logs)
    >>> p.probs
    tensor([[0.7000, 0.3000]])
    >>> p.label, p.total
    (tensor([0]), tensor([0.6109]))
    """

    probs: Tensor

    @classmethod
    def from_draws(
        cls, logs: Tensor, members: int = 1, paired: int = 1, component: Tensor | None = None
    ) -> Self:
        """The mean of drawn probabilities, with its entropy decomposed.

        Parameters
        ----------
        logs : Tensor of shape (members * n_samples, n_inner * paired, rows, classes)
            Log-probabilities: n_samples draws from the posterior of each member, and for each of them draws
            from the mixing distribution.
        members : int, default=1
            Number of networks in the ensemble.
        paired : int, default=1
            Number of neighbouring draws that depend on each other, such as 2 for antithetic pairs.
        component : Tensor of shape (rows,), optional
            Mean entropy given θ, where it is known better than from these draws.
        """
        probs = logs.exp()
        if component is None:
            component = -(probs * logs).sum(-1).mean((0, 1))  # (rows,)
        independent = probs.unflatten(1, (-1, paired)).mean(2)
        nested = independent.unflatten(0, (members, -1))  # (members, n_samples, n_inner, rows, classes)
        mean = nested.mean(2).mean((0, 1))
        total = entropy(mean)
        _, posterior = entropy_parts(nested, component, total)
        return cls.from_parts(mean, component, total - posterior)

    @classmethod
    def from_parts(cls, probs: Tensor, component: Tensor, conditional: Tensor) -> Self:
        """The predictive of mean probabilities (rows, classes), with nothing negative in its entropy.

        `component` (rows,) is the mean entropy given θ, `conditional` (rows,) that given ψ.
        """
        total = entropy(probs)
        component = torch.minimum(component, total)
        posterior = torch.minimum((total - conditional).clamp_min(0), total - component)
        return cls(component, total - component - posterior, posterior, probs)

    def with_far_noise(self, t: Tensor, far_params: Tensor) -> Self:
        """The mixture (1 - π) p + π q of the predictive p and the probabilities q = far_params (classes,).

        t (rows,) are the log-odds log(π / (1 - π)). Aleatoric parts count with the network's weight 1 - π.
        All other entropy is epistemic: more data would remove it.
        """
        far_probs = far_params.to(self.probs).expand_as(self.probs)
        probs = torch.lerp(self.probs, far_probs, torch.sigmoid(t).unsqueeze(-1))
        network_weight = torch.sigmoid(-t)  # 1 - π, without rounding
        component = network_weight * self.component
        mixing = network_weight * self.mixing
        posterior = (entropy(probs) - component - mixing).clamp_min(0)
        return replace(self, component=component, mixing=mixing, posterior=posterior, probs=probs)

    @property
    def label(self) -> Tensor:  # (rows,)
        """The most probable class."""
        return self.probs.argmax(-1)

    @property
    def confidence(self) -> Tensor:  # (rows,)
        """The probability of the most probable class."""
        return self.probs.amax(-1)

    def log_prob(self, y: Tensor) -> Tensor:  # (rows,)
        """Log-probability of the labels y (rows,), never -inf."""
        return safe_log(take_label(self.probs, y))

    def entropy(self) -> Tensor:  # (rows,)
        return entropy(self.probs)

    def sample(self, n: int, generator: Generator) -> Tensor:  # (n, rows)
        return torch.multinomial(self.probs, n, replacement=True, generator=generator).T

    def sets(self, coverage: float = 0.9) -> Tensor:  # (rows, classes) bool
        """Classes in descending order of probability, while the likelier ones have less than a total.

        The total is the conformal quantile of held-out rows; without one it is the coverage itself.
        """
        check_coverage(coverage)
        if self.conformal is None:
            return aps_score(self.probs) < coverage
        return aps_score(self.probs) <= self.conformal(coverage)

    def plot(self, row: int = 0, *, coverage: float = 0.9, axis: Any = None) -> Any:
        """Bars of the classes of one row on a matplotlib axis, those in its set in colour."""
        return plot_classes(self, row, coverage, axis)

    def _concat(self, parts: Sequence[Self]) -> Self:
        columns = ((p.component, p.mixing, p.posterior, p.probs) for p in parts)
        return type(self)(*(torch.cat(column) for column in zip(*columns, strict=True)))


def take_label(values: Tensor, y: Tensor) -> Tensor:
    """values[..., n, y_n] for every row n: values (..., rows, classes), labels y (rows,)."""
    return values.gather(-1, y.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def safe_log(probs: Tensor) -> Tensor:
    """log of probabilities, elementwise; 0 (an underflow) counts as the smallest normal number."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


def log_mixture(log_prob: Tensor, log_odds: Tensor, far_prob: Tensor) -> Tensor:
    """log((1 - π) p + π q) from log p, log(π / (1 - π)) and q = far_prob, elementwise."""
    network = log_prob + functional.logsigmoid(-log_odds)
    return torch.logaddexp(network, functional.logsigmoid(log_odds) + far_prob.log())
