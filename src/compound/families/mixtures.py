"""Mixtures of members of a family: density, tails and quantiles, exact to rounding.

Weights are equal, or given as log-weights. The quantile of level Φ(z) solves log F(y) = log Φ(z) for z < 0,
and log P(Y > y) = log Φ(-z) for z > 0, where the cdf would round to 1: by Newton's steps within a bracket,
for positive y in log y. It lies between the smallest and the largest quantile of this level of the
components. Quantiles of whole numbers are found by bisection.
"""

import torch
from torch import Tensor

from compound.distributions import weighted_log_sum, weighted_mean
from compound.families.base import Family
from compound.families.negative_binomial import first_integer

MAX_ITERATIONS = 200
ERROR = 1e-13  # relative, of the last step


def log_lik(family: Family, y: Tensor, params: Tensor) -> Tensor:  # (..., rows)
    """Joint log-density of the targets of each row, for parameters (..., rows, targets, n).

    y is (rows, targets), or (rows, 2 targets) for times of which some are censored: the times, followed by 1
    where the event was observed and 0 where it had not happened by then. These rows count with P(Y > y).
    """
    targets = params.shape[-2]
    if y.shape[-1] == targets:
        return family.log_prob(y, params).sum(-1)
    times, events = y.split(targets, -1)
    censored = family.log_survival(times, params)
    return torch.where(events > 0, family.log_prob(times, params), censored).sum(-1)


def mixture_log_prob(family: Family, y: Tensor, params: Tensor, log_weights: Tensor | None) -> Tensor:
    """Joint log-density (rows,) of rows y of `log_lik` under mixtures of n members, all targets from one.

    params is (n, rows, targets, parameters), log_weights (n, rows, 1) or None.
    """
    weights = None if log_weights is None else log_weights.squeeze(-1)
    return weighted_log_sum(log_lik(family, y, params), weights)


def log_tails(
    family: Family, y: Tensor, params: Tensor, log_weights: Tensor | None
) -> tuple[Tensor, Tensor]:  # (rows, targets) each
    """log P(Y <= y) and log P(Y >= y) of each target's mixture, in float64; arguments as above."""
    y, params = y.double(), params.double()
    below = y - 1 if family.discrete else y
    lower, upper = family.cdf(y, params).log(), family.survival(below, params).log()
    return weighted_log_sum(lower, log_weights), weighted_log_sum(upper, log_weights)


def z_quantile(
    family: Family, z: Tensor, params: Tensor, log_weights: Tensor | None
) -> Tensor:  # (rows, targets)
    """Quantiles of level Φ(z) of each target's mixture, z (1 or targets,), in float64; arguments as above."""
    params = params.double()
    z = z.double().to(params.device).expand(params.shape[1:-1])  # (rows, targets)
    if not bool((z > 0).any() & (z <= 0).any()):
        return _one_sided(family, z, params, log_weights, bool((z > 0).all()))
    lower, upper = (_one_sided(family, z, params, log_weights, side) for side in (False, True))
    return torch.where(z > 0, upper, lower)


def _one_sided(
    family: Family, z: Tensor, params: Tensor, log_weights: Tensor | None, upper: bool
) -> Tensor:  # (rows, targets)
    """`z_quantile` by the upper tail, or by the lower one."""
    log_level = torch.special.log_ndtr(-z if upper else z)  # ndtr loses its digits in the tail
    level = log_level.exp()
    if family.discrete:
        start = family.mean(params).amax(0) + family.variance(params).amax(0).sqrt()

        def reached(y: Tensor) -> Tensor:
            tail = (family.survival if upper else family.cdf)(y, params)
            mixed = weighted_mean(tail, log_weights)
            return mixed <= level if upper else mixed >= level

        return first_integer(reached, start)
    components = (family.isf if upper else family.icdf)(level, params)
    components = components.log() if family.positive else components  # x, from here on
    low, high = components.amin(0), components.amax(0)
    size = components.abs().amax(0) + (high - low)
    x = weighted_mean(components, log_weights)
    sign = -1.0 if upper else 1.0
    converged = torch.zeros_like(x, dtype=torch.bool)
    for _ in range(MAX_ITERATIONS):
        y = x.exp() if family.positive else x
        log_tail = weighted_mean((family.survival if upper else family.cdf)(y, params), log_weights).log()
        excess = sign * (log_tail - log_level)  # rises with x
        low, high = torch.where(excess < 0, x, low), torch.where(excess < 0, high, x)
        log_density = weighted_log_sum(family.log_prob(y, params), log_weights)
        log_density = log_density + x if family.positive else log_density  # of x
        newton = x - excess * (log_tail - log_density).exp()
        converged = converged | ((newton - x).abs() <= ERROR * size)
        step = torch.where((newton > low) & (newton < high), newton, 0.5 * (low + high))
        x = torch.where(converged, x, step)
        if bool(converged.all()):
            break
    return x.exp() if family.positive else x
