"""Nonconformity scores of regression and classification, and the quantiles that invert them.

Regression (Chernozhukov, Wüthrich and Zhu 2021): the score of y is |z|, where y is the quantile of level Φ(z)
of the predictive. Of whole numbers it is the least |z| whose interval, from the quantile Φ(-|z|) to Φ(|z|),
holds y: ends included, so that intervals of counts cover rather more than they promise. Of a time after which
nothing is known (censored at c) it is that of a draw from the predictive beyond c. Classification
(adaptive prediction sets, APS; Romano, Sesia and Candès 2020): the score of a label is the total probability
of all likelier classes.
"""

import torch
from scipy.special import ndtri_exp
from torch import Generator, Tensor

from compound.predictive import TargetPredictive
from compound.predictive import aps_score as aps_score


def z_score(predictive: TargetPredictive, y: Tensor) -> Tensor:  # (rows, targets)
    """|z|, where y (rows, targets) is the predictive's quantile of level Φ(z); accurate in both tails."""
    return torch.from_numpy(-ndtri_exp(torch.minimum(*predictive.log_tails(y)).numpy())).clamp_min(0)


def event_scores(predictive: TargetPredictive, y: Tensor, generator: Generator) -> Tensor:  # (rows, targets)
    """`z_score` of y (rows, targets), or of times with events, (rows, 2) float64.

    A time censored at c has the score of a draw from the predictive beyond c: P(Y > y) is uniform below
    P(Y > c). So scores of all rows have the distribution that they should have if the predictive is right,
    and where it is wrong, observed events correct it.
    """
    if y.shape[1] == predictive.component.shape[1]:
        return z_score(predictive, y)
    times, events = y.split(predictive.component.shape[1], 1)
    lower, upper = predictive.log_tails(times)
    uniform = torch.rand(times.shape, generator=generator, dtype=torch.float64).clamp_min(1e-12)
    drawn = upper + uniform.log()
    lower = torch.where(events > 0, lower, torch.log(-torch.expm1(drawn.clamp_max(-1e-15))))
    upper = torch.where(events > 0, upper, drawn)
    return torch.from_numpy(-ndtri_exp(torch.minimum(lower, upper).numpy())).clamp_min(0)
