"""Nonconformity scores of regression and classification, and the quantiles that invert them.

Regression (Chernozhukov, Wüthrich and Zhu 2021): the score of y is |z|, where y is the quantile of level Φ(z)
of the predictive. Classification (adaptive prediction sets, APS; Romano, Sesia and Candès 2020): the score of
a label is the total probability of all likelier classes.
"""

import math
from dataclasses import replace

import torch
from scipy.special import ndtri_exp
from torch import Tensor

from compound.distributions import weighted_log_sum
from compound.predictive import GaussianPredictive
from compound.predictive import aps_score as aps_score

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
MAX_ITERATIONS = 100


def z_score(predictive: GaussianPredictive, y: Tensor) -> Tensor:  # (rows, targets)
    """|z|, where y (rows, targets) is the predictive's quantile of level Φ(z); accurate in both tails."""
    lower_tail = _log_cdf(predictive, y)
    upper_tail = _log_cdf(replace(predictive, means=-predictive.means), -y)
    return torch.from_numpy(-ndtri_exp(torch.minimum(lower_tail, upper_tail).numpy())).clamp_min(0)


def z_quantile(predictive: GaussianPredictive, z: Tensor) -> Tensor:  # (rows, targets)
    """The predictive's quantile of level Φ(z), z (targets,), by bracketed Newton steps on the log of the cdf.

    An upper quantile (z > 0) is computed as a lower one of -y: near 1 the log of the cdf loses its digits.
    """
    sign = torch.where(z > 0, -1.0, 1.0).double()
    means = sign * predictive.means  # (draws, rows, targets)
    std = predictive.variances.sqrt()
    mirrored = replace(predictive, means=means)
    log_level = torch.special.log_ndtr(-z.abs())
    component_quantiles = means - z.abs() * std
    low = component_quantiles.amin(0)
    high = component_quantiles.amax(0)
    y = 0.5 * (low + high)
    converged = torch.zeros_like(y, dtype=torch.bool)
    for _ in range(MAX_ITERATIONS):
        excess = _log_cdf(mirrored, y) - log_level
        low, high = torch.where(excess < 0, y, low), torch.where(excess < 0, high, y)
        log_density = weighted_log_sum(_log_density(y, means, std), predictive.log_weights)
        newton = y - excess * (excess + log_level - log_density).exp()  # F / f = exp(log F - log f)
        # a small step ends it even where rounding leads out of the bracket: bisection would start all over
        converged = converged | ((newton - y).abs() <= 1e-12 * (y.abs() + std.amax(0)))
        step = torch.where((newton > low) & (newton < high), newton, 0.5 * (low + high))
        y = torch.where(converged, y, step)  # a converged row does not depend on the others
        if bool(converged.all()):
            break
    return sign * y


def _log_density(y: Tensor, means: Tensor, std: Tensor) -> Tensor:  # (draws, rows, targets)
    return -0.5 * ((y - means) / std).square() - std.log() - LOG_SQRT_2PI


def _log_cdf(predictive: GaussianPredictive, y: Tensor) -> Tensor:  # (rows, targets)
    z = (y - predictive.means) / predictive.variances.sqrt()
    return weighted_log_sum(torch.special.log_ndtr(z), predictive.log_weights)
