"""Predictive distributions of targets whose components belong to another family than the Gaussian."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional

from compound.distributions import weighted_log_sum, weighted_mean
from compound.families import FAMILIES, Family, log_tails, mixture_log_prob, z_quantile
from compound.predictive.decomposition import variance_parts
from compound.predictive.plots import plot_density
from compound.predictive.targets import TargetPredictive, rows_of_members

ENTROPY_LEVELS = 32  # levels at which `entropy` evaluates the density


@dataclass(frozen=True)
class FamilyPredictive(TargetPredictive):
    """Targets: a mixture of members of a family, such as counts or times, with the parts of its variance.

    Parameters
    ----------
    component, mixing, posterior : Tensor of shape (rows, targets)
        Parts of the variance.
    params : Tensor of shape (draws, rows, targets, parameters)
        Parameters of the family, equally weighted draws.
    family : str
        Its name in `compound.families.FAMILIES`.
    far : Tensor of shape (rows, targets, parameters), optional
        One more component, far noise: what is predicted of rows far from all training rows.
    log_odds : Tensor of shape (rows,), optional
        Log-odds of that component.
    ood : OODScores, optional
        Scores and threshold behind `is_ood`.
    conformal : callable, optional
        Maps a coverage to |z| of the bounds that `sets` returns, (targets,).

    Examples
    --------
    >>> import torch
    >>> from compound.predictive import FamilyPredictive
    >>> rates = torch.tensor([2.0, 4.0], dtype=torch.float64).reshape(2, 1, 1, 1)  # two networks, one row
    >>> p = FamilyPredictive.from_draws("poisson", torch.stack([rates, 0 * rates], -1), members=2)
    >>> p.mean.item(), p.aleatoric.item(), p.epistemic.item()
    (3.0, 3.0, 1.0)
    >>> [bound.item() for bound in p.interval(0.9)]
    [0.0, 7.0]
    """

    by_draw: ClassVar[frozenset[str]] = frozenset({"params"})
    params: Tensor
    family: str
    far: Tensor | None = None
    log_odds: Tensor | None = None

    @classmethod
    def from_draws(cls, family: str, params: Tensor, members: int = 1, paired: int = 1) -> Self:
        """The equally weighted mixture of one member of the family per draw, its variance decomposed.

        Parameters
        ----------
        family : str
            Its name.
        params : Tensor of shape (members * n_samples, n_inner, rows, targets, parameters)
            Parameters: n_samples draws from the posterior of each member, and for each of them n_inner draws
            from the mixing distribution.
        members : int, default=1
            Number of networks in the ensemble.
        paired : int, default=1
            Number of neighbouring inner draws that depend on each other, such as 2 for antithetic pairs.
        """
        members_of = FAMILIES[family]
        component = members_of.variance(params).mean((0, 1))
        mixing, posterior = variance_parts(members_of.mean(params).unflatten(0, (members, -1)), paired)
        drawn = mixing + posterior  # never negative
        posterior = posterior.clamp_min(0)
        return cls(component, drawn - posterior, posterior, params.flatten(0, 1), family)

    @property
    def members_of(self) -> Family:
        """The family that the components belong to."""
        return FAMILIES[self.family]

    @property
    def mixture(self) -> tuple[Tensor, Tensor | None]:
        """Parameters (draws, rows, targets, parameters) of all components, log-weights (draws, rows, 1)."""
        if self.far is None or self.log_odds is None:
            return self.params, None
        network = functional.logsigmoid(-self.log_odds) - np.log(len(self.params))
        far = functional.logsigmoid(self.log_odds)
        weights = torch.cat([network.expand(len(self.params), -1), far.unsqueeze(0)])
        return torch.cat([self.params, self.far.unsqueeze(0)]), weights.unsqueeze(-1)

    @property
    def mean(self) -> Tensor:  # (rows, targets)
        params, log_weights = self.mixture
        return weighted_mean(self.members_of.mean(params), log_weights)

    def log_prob(self, y: Tensor) -> Tensor:
        """Joint log-density (rows,) of all targets of a row, for y (rows, targets).

        For times of which some are censored y is (rows, 2 targets): times, and 1 where the event was
        observed, 0 where it had not happened by then.
        """
        return mixture_log_prob(self.members_of, y, *self.mixture)

    def cdf(self, y: Tensor) -> Tensor:  # (rows, targets)
        return self._mixed("cdf", y)

    def survival(self, y: Tensor) -> Tensor:  # (rows, targets)
        """P(Y > y) of each target."""
        return self._mixed("survival", y)

    def _mixed(self, function: str, y: Tensor) -> Tensor:
        params, log_weights = self.mixture
        return weighted_mean(getattr(self.members_of, function)(y, params), log_weights).to(params.dtype)

    def log_tails(self, y: Tensor) -> tuple[Tensor, Tensor]:  # (rows, targets) each
        return log_tails(self.members_of, y, *self.mixture)

    def z_quantiles(self, z: Tensor) -> Tensor:  # (levels, rows, targets)
        params, log_weights = self.mixture
        quantiles = [z_quantile(self.members_of, level, params, log_weights) for level in z]
        return torch.stack(quantiles).to(params.dtype)

    def of_members(self, index: Tensor, members: int) -> Self:
        return self if members == 1 else replace(self, params=rows_of_members(self.params, index, members))

    def of_target(self, target: int) -> Self:
        one = slice(target, target + 1)
        parts: Any = {name: getattr(self, name)[:, one] for name in ("component", "mixing", "posterior")}
        far = None if self.far is None else self.far[:, one]
        return replace(self, params=self.params[..., one, :], far=far, **parts)

    def density(self, y: Tensor, target: int = 0) -> Tensor:  # (points,)
        params, log_weights = self.mixture
        weights = None if log_weights is None else log_weights[:, :1, 0]
        return weighted_log_sum(self.members_of.log_prob(y, params[:, :1, target]), weights).exp()

    def plot_range(self, mean: float, std: float) -> Tensor:  # (points,)
        y = super().plot_range(mean, std)
        if self.members_of.discrete:
            high = int(max(mean + 4 * std, 1))
            return torch.arange(0, high + 1, max(1, high // 400), dtype=y.dtype)
        return y[y > 0] if self.members_of.positive else y

    def entropy(self) -> Tensor:  # (rows, targets)
        """Entropy of each target's marginal mixture, in nats: -E log p(y), by quadrature."""
        nodes, weights = np.polynomial.legendre.leggauss(ENTROPY_LEVELS)
        z = torch.special.ndtri(torch.from_numpy(0.5 * (1 + nodes))).unsqueeze(-1)
        params, log_weights = self.mixture
        out = torch.zeros_like(self.component)
        for y, weight in zip(self.z_quantiles(z), weights.tolist(), strict=True):
            log_density = weighted_log_sum(self.members_of.log_prob(y, params), log_weights)
            out -= 0.5 * weight * log_density
        return out

    def sample(self, n: int, generator: Generator) -> Tensor:  # (n, rows, targets)
        params, log_weights = self.mixture
        rows = params.shape[1]
        if log_weights is None:
            index = torch.randint(len(params), (n, rows), generator=generator)
        else:
            weights = log_weights[..., 0].T.double().exp()  # (rows, draws)
            index = torch.multinomial(weights, n, replacement=True, generator=generator).T
        chosen = params[index, torch.arange(rows)]  # (n, rows, targets, parameters)
        return self.members_of.sample(1, chosen, generator)[0].to(params.dtype)

    def with_far_noise(self, t: Tensor, far_params: Tensor) -> Self:
        """The mixture (1 - π) p + π q of the predictive p and a wide member q of its family.

        t (rows,) are the log-odds log(π / (1 - π)), far_params the parameters of q, (targets * parameters,).
        Aleatoric parts count with the network's weight 1 - π. All other variance is epistemic.
        """
        far = far_params.to(self.params).view(self.params.shape[2:]).expand(self.params.shape[1:])
        weight = torch.sigmoid(t).unsqueeze(-1)  # π, (rows, 1)
        network_weight = torch.sigmoid(-t).unsqueeze(-1)
        gap = self.members_of.mean(far) - self.members_of.mean(self.params).mean(0)
        posterior = network_weight * (self.posterior + weight * gap.square())
        return replace(
            self,
            component=network_weight * self.component,
            mixing=network_weight * self.mixing,
            posterior=posterior + weight * self.members_of.variance(far),
            far=far,
            log_odds=t,
        )

    def rescale(self, shift: Tensor | float, scale: Tensor | float) -> Self:
        """The predictive of shift + scale * y; the shift of positive y and of counts is 0."""
        if self.members_of.discrete:
            return self
        square = scale * scale
        parts: Any = {name: getattr(self, name) * square for name in ("component", "mixing", "posterior")}
        far = None if self.far is None else self.members_of.rescale(self.far, shift, scale)
        return replace(self, params=self.members_of.rescale(self.params, shift, scale), far=far, **parts)

    def plot(self, row: int = 0, *, target: int = 0, axis: Any = None) -> Any:
        """The density of a row's target on a matplotlib axis, and the parts of its standard deviation."""
        return plot_density(self, row, target, axis)

    def _concat(self, parts: Sequence[Self]) -> Self:
        tensors = {name: [getattr(p, name) for p in parts] for name in self._tensors() if name != "params"}
        joined: Any = {name: torch.cat(values) for name, values in tensors.items()}
        return replace(self, **joined, params=torch.cat([p.params for p in parts], 1))
