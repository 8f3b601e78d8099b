"""Honest intervals and probabilities from held-out rows.

Targets: split conformal prediction in the space of the predictive's own quantiles (Chernozhukov, Wüthrich and Zhu 2021). A
held-out y that lies at the predictive's quantile Φ(z) has the score |z|. The interval of coverage c goes from quantile Φ(-s) to
Φ(s), s being the ceil((n + 1) c)-th smallest of n scores: rows like the held-out ones fall inside with probability c at least, and
the interval stays as wide or narrow, row by row, as the predictive is. That holds where all members held out the same rows, but for
the few numbers, such as the stopping step, that these rows have already chosen. Members that each held out
others score their own. Pooling these scores is a heuristic, near CV+: the mixture of all errs less, so intervals come out rather wide.
Several targets are covered one by one: that all of a row's lie inside at once is not promised.
Few rows cannot vouch for a high coverage: beyond n / (n + 1), which is below .9 for fewer than 9 held-out rows, scores are taken for
Gaussian. The reach is Student's, sqrt(mean z²) t_n((1 + c) / 2), or the largest score stretched as a Gaussian's where that is more (by
itself it covers .83 to .90). Rows that have chosen the stopping step have better scores than others: of one or two that is felt.

Weights (Tibshirani, Barber, Candès and Ramdas 2019): a held-out row counts as much as it weighs. Weights that differ vouch for less:
n becomes Kish's effective number (Σw)² / Σw², as if a new row weighed Σw² / Σw, what rows drawn by weight do on average.

These are a few lines of our own. MAPIE and crepes wrap point predictors and keep residuals; here the scores come from the model's
own distribution, members hold out different rows, and the state is one sorted array that can be saved without pickle.

Classes: one temperature on the mean probabilities, by held-out log-likelihood with a prior that keeps it near 1 when rows are few.
Sets of classes are conformal too: a held-out label has as score the probability of all classes that seemed likelier, and a set takes
the likeliest classes while their scores stay within the same rank of the held-out scores (Romano, Sesia and Candès 2020).
The temperature is chosen on the same rows as the sets: one number, which moves all scores and hardly their order.
Fewer than 9 held-out rows vouch for no 90% set but that of all classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from scipy.special import ndtri, ndtri_exp, stdtrit
from torch import Tensor

from compound.distributions import weighted_log_sum
from compound.predictive import CategoricalPredictive, GaussianPredictive, entropy

ROWS = 5000  # held-out rows that calibration looks at
WIDTH = 0.5  # standard deviation of the prior of log T


@dataclass(frozen=True)
class ConformalIntervals:
    """Scores |z| of held-out rows, and what each weighs."""

    scores: Tensor  # (rows, targets) float64, ascending
    weights: Tensor  # (rows, targets) float64, each target's in the order of its scores

    @classmethod
    def fit(cls, scores: Iterable[Tensor], targets: int, weights: Tensor | None = None) -> Self:
        ordered, order = torch.cat([torch.zeros(0, targets, dtype=torch.float64), *scores]).sort(0)
        return cls(ordered, torch.ones_like(ordered) if weights is None else weights.double()[order])

    @property
    def rows(self) -> float:
        """How many rows vouch: effective ones, where weights differ."""
        return effective(self.weights[:, 0])

    def conformal_quantile(self, coverage: float) -> Tensor:  # (targets,)
        """How many standard deviations, on the predictive's own scale, the interval reaches to either side."""
        nominal, rows = float(ndtri((1 + coverage) / 2)), self.rows
        out = torch.full((self.scores.shape[1],), nominal, dtype=torch.float64)
        for target, (scores, weights) in enumerate(zip(self.scores.T, self.weights.T, strict=True)):
            rank = _rank(weights, coverage)
            if rank <= len(scores):
                out[target] = scores[rank - 1]
            elif len(scores):
                size = float((weights @ scores.square() / weights.sum()).sqrt())
                largest = float(scores[-1]) * nominal / float(ndtri((1 + rows / (rows + 1)) / 2))
                out[target] = max(size * float(stdtrit(rows, (1 + coverage) / 2)), largest, nominal)
        return out


@dataclass(frozen=True)
class ConformalSets:
    """Scores of held-out labels, the probability of all classes before the true one, and what each weighs."""

    scores: Tensor  # (rows,) float64, ascending
    weights: Tensor  # (rows,) float64

    @classmethod
    def fit(cls, scores: Tensor, weights: Tensor | None = None) -> Self:
        ordered, order = scores.double().sort()
        return cls(ordered, torch.ones_like(ordered) if weights is None else weights.double()[order])

    @property
    def rows(self) -> float:
        """How many rows vouch: effective ones, where weights differ."""
        return effective(self.weights)

    def conformal_quantile(self, coverage: float) -> float:
        """Classes belong to the set of this coverage while those before them have no more probability than this."""
        rank = _rank(self.weights, coverage)
        return (
            float(self.scores[rank - 1]) if rank <= len(self.scores) else np.inf
        )  # few rows vouch for all classes only


@dataclass(frozen=True)
class TemperatureScaler:
    """Probabilities p^(1/T), normalised."""

    value: float = 1.0

    @classmethod
    def fit(cls, probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> Self:
        if len(labels) == 0:
            return cls()
        logs = probs.double().clamp_min(torch.finfo(torch.float32).tiny).log()  # (rows, classes)
        weights = torch.ones(len(labels), dtype=torch.float64) if weights is None else weights.double()
        weights = weights * (
            effective(weights) / weights.sum()
        )  # the prior is up against as many rows as vouch
        grid = torch.linspace(-1.5, 1.5, 121, dtype=torch.float64)
        own = [
            torch.log_softmax(logs / t.exp(), -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1) for t in grid
        ]  # each (rows,)
        costs = 0.5 * (grid / WIDTH).square() - torch.stack(own) @ weights
        return cls(float(grid[int(costs.argmin())].exp()))

    def soften(self, probs: Tensor) -> Tensor:
        return torch.softmax(probs.clamp_min(torch.finfo(probs.dtype).tiny).log() / self.value, -1)

    def __call__(self, answer: CategoricalPredictive) -> CategoricalPredictive:
        """The answer at this temperature; its shares of the entropy keep their proportions."""
        probs = self.soften(answer.probs)
        factor = entropy(probs) / answer.total.clamp_min(torch.finfo(probs.dtype).tiny)
        parts = {name: getattr(answer, name) * factor for name in ("component", "mixing", "posterior")}
        return replace(answer, **parts, probs=probs)


def aps_score(probs: Tensor) -> Tensor:  # (rows, classes)
    """The probability of all classes likelier than each; of equal ones, of those that come first."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    return torch.empty_like(probs).scatter_(-1, order, ordered.cumsum(-1) - ordered)


def effective(weights: Tensor) -> float:
    """Kish's effective number of rows, (Σw)² / Σw²: their number where all weigh the same."""
    return float(weights.sum().square() / weights.square().sum()) if len(weights) else 0.0


def _rank(weights: Tensor, coverage: float) -> int:
    """Which of the scores, in ascending order, vouches for the coverage: of n alike the ceil((n + 1) c)-th, beyond n none does."""
    if not 0 < coverage < 1:
        raise ValueError(f"coverage is {coverage}: it must lie between 0 and 1, such as 0.9")
    rows = effective(weights)
    upto = weights.cumsum(0) * (rows / weights.sum())  # (scores,) effective rows
    return 1 + int((upto < (rows + 1) * coverage - 1e-9).sum())


def score(answer: GaussianPredictive, y: Tensor) -> Tensor:  # (rows, targets)
    """|z|, where y is the predictive's quantile Φ(z); exact however far out y lies."""
    below = _log_cdf(answer, y)
    above = _log_cdf(replace(answer, means=-answer.means), -y)
    return torch.from_numpy(-ndtri_exp(torch.minimum(below, above).numpy())).clamp_min(0)


def quantile(answer: GaussianPredictive, z: Tensor) -> Tensor:  # (rows, targets)
    """The predictive's quantile Φ(z), z (targets,), by Newton's method on the log of the cdf, kept within a shrinking bracket."""
    side = torch.where(
        z > 0, -1.0, 1.0
    ).double()  # an upper quantile is a lower one of -y, where the log keeps its digits
    means, std = side * answer.means, answer.variances.sqrt()  # (draws, rows, targets)
    mirrored = replace(answer, means=means)
    goal = torch.special.log_ndtr(-z.abs())
    at = means - z.abs() * std  # each component's own quantile
    low, high = at.amin(0), at.amax(0)
    y = 0.5 * (low + high)
    done = torch.zeros_like(y, dtype=torch.bool)
    for _ in range(100):
        excess = _log_cdf(mirrored, y) - goal
        low, high = torch.where(excess < 0, y, low), torch.where(excess < 0, high, y)
        density = weighted_log_sum(_log_density(y, means, std), answer.log_weights)
        step = y - excess * (excess + goal - density).exp()  # F / f = exp(log F - log f)
        # a small step ends it even where rounding points out of the bracket: halving would start all over from there
        done = done | ((step - y).abs() <= 1e-12 * (y.abs() + std.amax(0)))
        fresh = torch.where((step > low) & (step < high), step, 0.5 * (low + high))
        y = torch.where(done, y, fresh)  # a row that is done stays, whatever its neighbours do
        if bool(done.all()):
            break
    return side * y


def _log_density(y: Tensor, means: Tensor, std: Tensor) -> Tensor:
    return -0.5 * ((y - means) / std).square() - std.log() - 0.9189385332046727


def _log_cdf(answer: GaussianPredictive, y: Tensor) -> Tensor:  # (rows, targets)
    return weighted_log_sum(
        torch.special.log_ndtr((y - answer.means) / answer.variances.sqrt()), answer.log_weights
    )
