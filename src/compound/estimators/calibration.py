"""Calibration of intervals, sets and probabilities on held-out rows.

Regression: split conformal prediction with the scores |z| of `conformal_scores`. The interval of coverage c
goes from the predictive's quantile Φ(-s) to Φ(s), where s is the ceil((n + 1) c)-th smallest of n held-out
scores: rows exchangeable with the held-out ones lie inside with probability at least c, and the interval is
as wide, row by row, as the predictive is. This holds where all members held out the same rows, apart from the
few numbers, such as the stopping step, that these rows have already chosen. Members that held out different
rows score their own; pooling these scores is a heuristic close to CV+: the mixture of all members has smaller
errors, so intervals are rather too wide. Several targets are covered separately, not jointly.

Beyond coverage n / (n + 1), which is below 0.9 for fewer than 9 held-out rows, no score has a sufficient
rank. Then scores are assumed Gaussian: the quantile is Student's, sqrt(mean z²) t_n((1 + c) / 2), or the
largest score scaled as for a Gaussian where that is more (alone it covers 0.83 to 0.90). Rows that have
chosen the stopping step have lower scores than new rows; with one or two of them this matters.

Weights (Tibshirani, Barber, Candès and Ramdas 2019): a held-out row counts with its weight. Unequal weights
reduce n to Kish's effective sample size (Σw)² / Σw², as if a new row had the weight Σw² / Σw, the mean weight
of rows drawn proportionally to weight.

MAPIE and crepes wrap point predictors and store residuals; here the scores come from the model's own
distribution, members hold out different rows, and the state is one sorted array that is saved without pickle.

Classification: one temperature for the mean probabilities, by held-out log-likelihood with a prior that keeps
it near 1 when rows are few. Prediction sets are conformal with the scores of `conformal_scores`: a set holds
the classes whose score does not exceed the same rank of the held-out scores. The temperature is chosen on the
same rows: one number, which changes all scores and hardly their order. With fewer than 9 held-out rows, the
90% set is that of all classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from scipy.special import ndtri, stdtrit
from torch import Tensor

from compound.predictive import CategoricalPredictive, entropy

MAX_ROWS = 5000  # held-out rows used for calibration, at most
PRIOR_SCALE = 0.1  # of the prior of log T: ensembles that stopped early need little, others may need much


@dataclass(frozen=True)
class ConformalIntervals:
    """Conformal prediction intervals: the scores |z| of held-out rows, with weights."""

    scores: Tensor  # (rows, targets) float64, ascending
    weights: Tensor  # (rows, targets) float64, of each target in the order of its scores
    quantiles: dict[float, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def fit(cls, scores: Iterable[Tensor], targets: int, weights: Tensor | None = None) -> Self:
        """Sort scores, given as blocks of rows (some rows, targets), with the weights (rows,) of all rows.

        Weights are 1 by default.
        """
        ordered, order = torch.cat([torch.zeros(0, targets, dtype=torch.float64), *scores]).sort(0)
        return cls(ordered, torch.ones_like(ordered) if weights is None else weights.double()[order])

    @property
    def effective_rows(self) -> float:
        """The effective sample size of the calibration set."""
        return effective_size(self.weights[:, 0])

    def conformal_quantile(self, coverage: float) -> Tensor:  # (targets,)
        """The s for which the interval from the predictive's quantile Φ(-s) to Φ(s) has this coverage."""
        if coverage not in self.quantiles:  # blocks of rows ask for the same ones
            self.quantiles[coverage] = self._conformal_quantile(coverage)
        return self.quantiles[coverage].clone()

    def _conformal_quantile(self, coverage: float) -> Tensor:
        n = self.effective_rows
        gaussian = float(ndtri((1 + coverage) / 2))
        quantiles = torch.full((self.scores.shape[1],), gaussian, dtype=torch.float64)
        for target, (scores, weights) in enumerate(zip(self.scores.T, self.weights.T, strict=True)):
            rank = _conformal_rank(weights, coverage)
            if rank <= len(scores):
                quantiles[target] = scores[rank - 1]
            elif len(scores):
                root_mean_square = float((weights @ scores.square() / weights.sum()).sqrt())
                student = root_mean_square * float(stdtrit(n, (1 + coverage) / 2))
                scaled_largest = float(scores[-1]) * gaussian / float(ndtri((1 + n / (n + 1)) / 2))
                quantiles[target] = max(student, scaled_largest, gaussian)
        return quantiles


@dataclass(frozen=True)
class JointScores:
    """Boxes around several targets: scores max_k |z_k| / unit_k of held-out rows, with weights."""

    scores: Tensor  # (rows, 1) float64, ascending
    weights: Tensor  # (rows, 1) float64, in the order of the scores
    units: Tensor  # (targets,) float64, the root mean square of each target's z

    @classmethod
    def fit(cls, scores: Tensor, weights: Tensor) -> Self:
        """From |z| (rows, targets), with weights (rows,)."""
        units = scores.new_ones(scores.shape[1])
        if len(scores):
            units = (weights.double() @ scores.square() / weights.sum()).sqrt().clamp_min(1e-3)
        joint = ConformalIntervals.fit([(scores / units).amax(1, keepdim=True)], 1, weights)
        return cls(joint.scores, joint.weights, units)

    def conformal_quantile(self, coverage: float) -> Tensor:  # (targets,)
        """The |z| of each target's bounds, for which all targets lie inside with this coverage."""
        return ConformalIntervals(self.scores, self.weights).conformal_quantile(coverage) * self.units


@dataclass(frozen=True)
class ConformalSets:
    """Conformal prediction sets: the scores `aps_score` of the labels of held-out rows, with weights."""

    scores: Tensor  # (rows,) float64, ascending
    weights: Tensor  # (rows,) float64, in the order of the scores

    @classmethod
    def fit(cls, scores: Tensor, weights: Tensor | None = None) -> Self:
        """Sort scores (rows,) with their weights (rows,), 1 by default."""
        ordered, order = scores.double().sort()
        return cls(ordered, torch.ones_like(ordered) if weights is None else weights.double()[order])

    @property
    def effective_rows(self) -> float:
        """The effective sample size of the calibration set."""
        return effective_size(self.weights)

    def conformal_quantile(self, coverage: float) -> float:
        """The set of this coverage holds the classes of at most this score; infinite if rows are too few."""
        rank = _conformal_rank(self.weights, coverage)
        return float(self.scores[rank - 1]) if rank <= len(self.scores) else np.inf


@dataclass(frozen=True)
class TemperatureScaler:
    """Temperature scaling: probabilities p become p^(1/T), normalised."""

    value: float = 1.0  # T

    @classmethod
    def fit(cls, probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> Self:
        """The T of highest posterior density on a grid, given predictions and labels of held-out rows.

        probs is (rows, classes), labels and weights (rows,). log T has a Cauchy prior of scale PRIOR_SCALE.
        """
        if len(labels) == 0:
            return cls()
        log_probs = probs.double().clamp_min(torch.finfo(torch.float32).tiny).log()  # (rows, classes)
        weights = torch.ones(len(labels), dtype=torch.float64) if weights is None else weights.double()
        weights = weights * (effective_size(weights) / weights.sum())  # beside the prior, they sum to n
        grid = torch.linspace(-1.5, 1.5, 121, dtype=torch.float64)  # of log T
        log_likelihoods = torch.stack(
            [
                torch.log_softmax(log_probs / log_t.exp(), -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
                for log_t in grid
            ]
        )  # (grid, rows)
        costs = (grid / PRIOR_SCALE).square().log1p() - log_likelihoods @ weights
        return cls(float(grid[int(costs.argmin())].exp()))

    def scale_probs(self, probs: Tensor) -> Tensor:  # (rows, classes)
        """Probabilities (rows, classes) at this temperature."""
        return torch.softmax(probs.clamp_min(torch.finfo(probs.dtype).tiny).log() / self.value, -1)

    def __call__(self, predictive: CategoricalPredictive) -> CategoricalPredictive:
        """The predictive at this temperature; component, mixing and posterior keep their proportions."""
        probs = self.scale_probs(predictive.probs)
        factor = entropy(probs) / predictive.total.clamp_min(torch.finfo(probs.dtype).tiny)
        return replace(
            predictive,
            component=predictive.component * factor,
            mixing=predictive.mixing * factor,
            posterior=predictive.posterior * factor,
            probs=probs,
        )


def effective_size(weights: Tensor) -> float:
    """Kish's effective sample size (Σw)² / Σw² of weights (rows,): the number of rows if all are equal."""
    return float(weights.sum().square() / weights.square().sum()) if len(weights) else 0.0


def _conformal_rank(weights: Tensor, coverage: float) -> int:
    """The rank, from 1, of the ascending score that gives the coverage c: ceil((n + 1) c) for equal weights.

    weights (rows,) are in the order of the scores. A rank beyond their number means too few rows.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage is {coverage}: it must lie between 0 and 1, such as 0.9")
    n = effective_size(weights)
    cumulative = weights.cumsum(0) * (n / weights.sum())  # (scores,) effective rows
    return 1 + int((cumulative < (n + 1) * coverage - 1e-9).sum())
