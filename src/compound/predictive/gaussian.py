"""Predictive distributions of real targets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor

from compound.distributions import (
    gaussian_log_prob,
    mixture_cdf,
    mixture_entropy,
    mixture_log_prob,
    weighted_log_sum,
    weighted_mean,
)
from compound.ops.mixture_quantile import mixture_quantiles
from compound.predictive.decomposition import variance_parts
from compound.predictive.plots import plot_density
from compound.predictive.targets import TargetPredictive, rows_of_members


@dataclass(frozen=True)
class GaussianPredictive(TargetPredictive):
    """Targets: a mixture of Gaussians, with the parts of its variance.

    Parameters
    ----------
    component, mixing, posterior : Tensor of shape (rows, targets)
        Parts of the variance.
    means, variances : Tensor of shape (draws, rows, targets)
        Means and variances of the Gaussians.
    log_weights : Tensor of shape (draws, rows, 1), optional
        Log-weights of the Gaussians; equal weights by default.
    ood : OODScores, optional
        Scores and threshold behind `is_ood`.
    conformal : callable, optional
        Maps a coverage to |z| of the bounds that `sets` returns, (targets,).

    Examples
    --------
    >>> import torch
    >>> from compound import GaussianPredictive
    >>> means = torch.tensor([[[0.0]], [[2.0]]]).unsqueeze(1)  # two networks, one row, one target
    >>> p = GaussianPredictive.from_draws(means, torch.ones(2, 1, 1, 1), torch.zeros(2, 1, 1, 1))
    >>> p.mean, p.aleatoric, p.epistemic
    (tensor([[1.]]), tensor([[1.]]), tensor([[2.]]))
    """

    by_draw: ClassVar[frozenset[str]] = frozenset({"means", "variances", "log_weights"})
    means: Tensor
    variances: Tensor
    log_weights: Tensor | None = None

    @classmethod
    def from_draws(
        cls,
        means: Tensor,
        noise: Tensor,
        integrated: Tensor,
        far: Tensor | None = None,
        members: int = 1,
        paired: int = 1,
    ) -> Self:
        """The equally weighted mixture of one Gaussian per draw of the network's weights.

        Parameters
        ----------
        means : Tensor of shape (members * n_samples, n_inner, rows, targets)
            Means of y: n_samples draws from the posterior of each member, and for each of them n_inner draws
            from the mixing distribution.
        noise : Tensor that broadcasts to this shape
            Variance of y given the weights; counts as `component`.
        integrated : Tensor that broadcasts to this shape
            Variance of the mean that was integrated over, not sampled; counts as `mixing`.
        far : Tensor of shape (rows, 1 or targets), optional
            Variance of the mean that draws do not show, larger far from the data; counts as `posterior`.
        members : int, default=1
            Number of networks in the ensemble.
        paired : int, default=1
            Number of neighbouring inner draws that depend on each other, such as 2 for antithetic pairs.
        """
        component = noise.expand_as(means).mean((0, 1))
        mixing, posterior = variance_parts(means.unflatten(0, (members, -1)), paired)
        drawn = mixing + posterior  # never negative
        posterior = posterior.clamp_min(0)
        added = torch.zeros_like(component) if far is None else far.expand_as(component)
        variances = (noise + integrated + added).expand_as(means)
        return cls(
            component,
            integrated.expand_as(means).mean((0, 1)) + drawn - posterior,
            posterior + added,
            means.flatten(0, 1),
            variances.flatten(0, 1),
        )

    @property
    def mean(self) -> Tensor:  # (rows, targets)
        return weighted_mean(self.means, self.log_weights)

    def log_prob(self, y: Tensor) -> Tensor:
        """Joint log-density (rows,) of all targets of a row, for y (rows, targets)."""
        return mixture_log_prob(y, self.means, self.variances, self.log_weights)

    def cdf(self, y: Tensor) -> Tensor:  # (rows, targets)
        return mixture_cdf(y, self.means, self.variances, self.log_weights)

    def log_tails(self, y: Tensor) -> tuple[Tensor, Tensor]:  # (rows, targets) each
        z = (y - self.means) / self.variances.sqrt()
        lower, upper = (weighted_log_sum(torch.special.log_ndtr(t), self.log_weights) for t in (z, -z))
        return lower, upper

    def z_quantiles(self, z: Tensor) -> Tensor:  # (levels, rows, targets)
        return mixture_quantiles(z, self.means, self.variances, self.log_weights)

    def of_members(self, index: Tensor, members: int) -> Self:
        if members == 1:
            return self
        log_weights = self.log_weights
        if log_weights is not None:
            log_weights = torch.log_softmax(rows_of_members(log_weights, index, members), 0)
        means, variances = (rows_of_members(v, index, members) for v in (self.means, self.variances))
        return replace(self, means=means, variances=variances, log_weights=log_weights)

    def of_target(self, target: int) -> Self:
        one = slice(target, target + 1)
        parts = {name: getattr(self, name)[:, one] for name in ("component", "mixing", "posterior")}
        return replace(self, **parts, means=self.means[..., one], variances=self.variances[..., one])

    def density(self, y: Tensor, target: int = 0) -> Tensor:  # (points,)
        means, variances = self.means[:, :1, target], self.variances[:, :1, target]  # (draws, 1)
        weights = None if self.log_weights is None else self.log_weights[:, :1, 0]
        return weighted_log_sum(gaussian_log_prob(y, means, variances), weights).exp()

    def entropy(self) -> Tensor:
        """Entropy of each target's marginal mixture, in nats, (rows, targets)."""
        return mixture_entropy(self.means, self.variances, self.log_weights)

    def sample(self, n: int, generator: Generator) -> Tensor:
        rows, targets = self.means.shape[1:]
        if self.log_weights is None:
            index = torch.randint(len(self.means), (n, rows, 1), generator=generator)
        else:
            weights = self.log_weights[..., 0].T.exp()  # (rows, draws)
            index = torch.multinomial(weights, n, replacement=True, generator=generator).T.unsqueeze(-1)
        index = index.expand(n, rows, targets)
        noise = torch.randn((n, rows, targets), generator=generator, dtype=self.means.dtype)
        return self.means.gather(0, index) + self.variances.gather(0, index).sqrt() * noise

    def with_far_noise(self, t: Tensor, far_params: Tensor) -> Self:
        """The predictive with the variance far_params² exp(t) added: t (rows,) <= 0, far_params (targets,).

        What is added is epistemic: more data would remove it. exp(t) is also the part of the aleatoric
        variance that becomes epistemic, since a network's noise variance is not known where there were no
        rows.
        """
        unknown = t.exp().unsqueeze(-1)  # (rows, 1)
        network_weight = torch.expm1(t).abs().unsqueeze(-1)  # 1 - exp(t), t <= 0; never -0.0
        added = far_params.square() * unknown
        component = network_weight * self.component
        mixing = network_weight * self.mixing
        posterior = self.posterior + unknown * self.aleatoric + added
        variances = self.variances + added
        return replace(self, component=component, mixing=mixing, posterior=posterior, variances=variances)

    def rescale(self, shift: Tensor | float, scale: Tensor | float) -> Self:
        """The predictive of shift + scale * y: from standard units back to the original ones."""
        square = scale * scale
        parts = (self.component * square, self.mixing * square, self.posterior * square)
        means, variances = shift + scale * self.means, square * self.variances
        return type(self)(*parts, means, variances, self.log_weights, ood=self.ood, conformal=self.conformal)

    def plot(self, row: int = 0, *, target: int = 0, axis: Any = None) -> Any:
        """The density of a row's target on a matplotlib axis, and the parts of its standard deviation."""
        return plot_density(self, row, target, axis)

    def _concat(self, parts: Sequence[Self]) -> Self:
        by_row = zip(*((p.component, p.mixing, p.posterior) for p in parts), strict=True)
        draws = [(p.means, p.variances) for p in parts]
        if self.log_weights is not None:
            draws = [(p.means, p.variances, p.log_weights) for p in parts]  # type: ignore[misc]
        by_draw = zip(*draws, strict=True)
        return type(self)(*map(torch.cat, by_row), *(torch.cat(column, 1) for column in by_draw))
