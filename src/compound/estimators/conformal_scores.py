"""Nonconformity scores of regression and classification, and the quantiles that invert them.

Regression (Chernozhukov, Wüthrich and Zhu 2021): the score of y is |z|, where y is the quantile of level Φ(z)
of the predictive. Classification (adaptive prediction sets, APS; Romano, Sesia and Candès 2020): the score of
a label is the total probability of all likelier classes.
"""

from dataclasses import replace

import torch
from scipy.special import ndtri_exp
from torch import Tensor

from compound.distributions import weighted_log_sum
from compound.ops.mixture_quantile import mixture_quantiles
from compound.predictive import GaussianPredictive
from compound.predictive import aps_score as aps_score


def z_score(predictive: GaussianPredictive, y: Tensor) -> Tensor:  # (rows, targets)
    """|z|, where y (rows, targets) is the predictive's quantile of level Φ(z); accurate in both tails."""
    lower_tail = _log_cdf(predictive, y)
    upper_tail = _log_cdf(replace(predictive, means=-predictive.means), -y)
    return torch.from_numpy(-ndtri_exp(torch.minimum(lower_tail, upper_tail).numpy())).clamp_min(0)


def z_quantiles(predictive: GaussianPredictive, z: Tensor) -> Tensor:  # (levels, rows, targets)
    """The predictive's quantiles of levels Φ(z), z (levels, targets)."""
    return mixture_quantiles(z, predictive.means, predictive.variances, predictive.log_weights)


def _log_cdf(predictive: GaussianPredictive, y: Tensor) -> Tensor:  # (rows, targets)
    z = (y - predictive.means) / predictive.variances.sqrt()
    return weighted_log_sum(torch.special.log_ndtr(z), predictive.log_weights)
