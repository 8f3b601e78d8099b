"""Scores of predictive distributions: accuracy, calibration, and separation of outliers from other rows.

Functions of a predictive take the true y as second argument. Functions that measure how well a score
separates outliers take the scores of in-distribution rows and of outliers, (rows,) each.

The classes at the end hold such a score over the batches of an epoch: `update`, `compute`, `reset`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive


def nll(predictive: Predictive, y: Tensor) -> float:
    """Mean negative log-density or log-probability of y, in nats per row."""
    return -predictive.log_prob(y).double().mean().item()


def rmse(predictive: GaussianPredictive, y: Tensor) -> float:
    """Root of the mean squared error of the predictive mean, over rows and targets."""
    return (predictive.mean - y).double().square().mean().sqrt().item()


def accuracy(predictive: CategoricalPredictive, y: Tensor) -> float:
    return (predictive.label == y).double().mean().item()


def mmc(predictive: CategoricalPredictive) -> float:
    """Mean maximal confidence: the mean over rows of the largest class probability."""
    return predictive.confidence.double().mean().item()


def brier(predictive: CategoricalPredictive, y: Tensor) -> float:
    """Mean Brier score: 0 to 2."""
    return brier_scores(predictive.probs, y).mean().item()


def brier_scores(probs: Tensor, y: Tensor) -> Tensor:  # (rows,)
    """Squared distance of probabilities (rows, classes) from the one-hot vector of the label, in float64."""
    return (probs.double() - torch.nn.functional.one_hot(y, probs.shape[-1])).square().sum(-1)


def ece(predictive: CategoricalPredictive, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error: mean gap between confidence and accuracy over equal bins of confidence."""
    correct = (predictive.label == y).double()  # (rows,)
    return resampled_ece(predictive.confidence.double(), correct, torch.ones_like(correct), bins).item()


def resampled_ece(confidence: Tensor, correct: Tensor, counts: Tensor, bins: int = 15) -> Tensor:
    """Expected calibration error of each resample of the rows, (...).

    confidence and correct (0 or 1) are (rows,); counts (..., rows) is how often a resample has each row. All
    are float64.
    """
    index = confidence_bins(confidence, bins).expand_as(counts)
    gaps = counts.new_zeros(*counts.shape[:-1], bins)
    gaps.scatter_add_(-1, index, counts * (confidence - correct))
    return gaps.abs().sum(-1) / counts.sum(-1)


def confidence_bins(confidence: Tensor, bins: int) -> Tensor:  # (rows,)
    """Index of the bin (low, high] of width 1 / bins that each confidence (rows,) lies in."""
    return (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)


def crps(predictive: GaussianPredictive, y: Tensor) -> float:
    """Continuous ranked probability score of the mixture, mean over rows and targets, in the unit of y."""
    return crps_scores(predictive, y).mean().item()


def crps_scores(predictive: GaussianPredictive, y: Tensor) -> Tensor:  # (rows, targets)
    """Continuous ranked probability score of each row of y (rows, targets), in float64.

    E|X - y| - ½ E|X - X'| with E|N(m, v)| in closed form. Grimit et al. (2006).
    """
    means, variances = predictive.means.double(), predictive.variances.double()  # (draws, rows, targets)
    n = len(means)
    weights = means.new_full((n, 1, 1), 1 / n)  # (draws, rows or 1, 1)
    if predictive.log_weights is not None:
        weights = predictive.log_weights.double().exp()
    to_y = (weights * _mean_absolute(y.double() - means, variances)).sum(0)  # (rows, targets)
    between = torch.zeros_like(to_y)
    for i in range(n):  # one draw against itself and all later ones: memory stays that of the predictive
        pairs = weights[i:] * _mean_absolute(means[i] - means[i:], variances[i] + variances[i:])
        between += weights[i] * (2 * pairs.sum(0) - pairs[0])
    return to_y - 0.5 * between


def _mean_absolute(mean: Tensor, variance: Tensor) -> Tensor:
    """E|X| for X ~ N(mean, variance), elementwise."""
    std = variance.sqrt()
    z = mean / std
    return mean * (2 * torch.special.ndtr(z) - 1) + std * math.sqrt(2 / math.pi) * (-0.5 * z.square()).exp()


def coverage(predictive: GaussianPredictive, y: Tensor, level: float = 0.9) -> float:
    """Fraction of y inside the central interval of probability `level`."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}: it must lie between 0 and 1, such as 0.9")
    return ((predictive.cdf(y).double() - 0.5).abs() <= level / 2).double().mean().item()


def interval_score(lower: Tensor, upper: Tensor, y: Tensor, level: float = 0.9) -> float:
    """Width of the interval plus 2 / (1 - level) times the distance of y outside it, mean over all entries.

    It is lowest in expectation for the central interval of probability `level`. Gneiting and Raftery (2007).
    """
    return interval_scores(lower, upper, y, level).mean().item()


def interval_scores(lower: Tensor, upper: Tensor, y: Tensor, level: float = 0.9) -> Tensor:
    """`interval_score` of each entry, in float64."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}: it must lie between 0 and 1, such as 0.9")
    lower, upper, y = lower.double(), upper.double(), y.double()
    outside = (lower - y).clamp_min(0) + (y - upper).clamp_min(0)
    return upper - lower + 2 / (1 - level) * outside


def auroc(in_dist: Tensor, ood: Tensor) -> float:
    """Probability that an outlier scores higher than an in-distribution row; ties count half."""
    once = [torch.ones(scores.shape, dtype=torch.float64) for scores in (in_dist, ood)]
    return resampled_auroc(in_dist, ood, [(once[0], once[1])]).item()


def resampled_auroc(in_dist: Tensor, ood: Tensor, counts: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """AUROC of each resample of the rows, (resamples,).

    A resample is a pair of float64 tensors: how often it has each in-distribution row, and each outlier.
    """
    below, up_to = _counts_below(in_dist, ood)
    order = in_dist.argsort(stable=True)
    areas = []
    for in_dist_counts, ood_counts in counts:
        sums = torch.nn.functional.pad(in_dist_counts[order].cumsum(0), (1, 0))
        wins = (ood_counts * (sums[below] + sums[up_to])).sum() / 2
        areas.append(wins / ood_counts.sum() / in_dist_counts.sum())
    return torch.stack(areas)


def aupr(in_dist: Tensor, ood: Tensor) -> float:
    """Average precision of finding the outliers by a high score."""
    recall, precision, _ = _threshold_rates(in_dist, ood)
    gained = recall.diff(prepend=recall.new_zeros(1))
    return (gained * precision).sum().item()


def fpr95(in_dist: Tensor, ood: Tensor) -> float:
    """False positive rate at the highest threshold that finds 95 % of the outliers."""
    recall, _, false_positive_rate = _threshold_rates(in_dist, ood)
    enough = torch.nonzero(recall >= 0.95 - 1e-12)[0]
    return false_positive_rate[enough].item()


def _counts_below(values: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """How many values lie below, and how many at or below, each threshold; ValueError for NaN or no rows."""
    for scores in (values, thresholds):
        if scores.ndim != 1 or len(scores) == 0 or bool(scores.isnan().any()):
            raise ValueError(
                f"scores have shape {tuple(scores.shape)} or hold NaN: give one number for each row, "
                "in-distribution rows and outliers alike"
            )
    ordered = values.sort().values
    return torch.searchsorted(ordered, thresholds), torch.searchsorted(ordered, thresholds, right=True)


def _threshold_rates(in_dist: Tensor, ood: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Recall, precision and false positive rate at every distinct score as threshold, highest first."""
    thresholds = torch.cat([in_dist, ood]).unique().flip(0)  # sorted, ties once
    true_positives = len(ood) - _counts_below(ood, thresholds)[0].double()
    false_positives = len(in_dist) - _counts_below(in_dist, thresholds)[0].double()
    recall = true_positives / len(ood)
    precision = true_positives / (true_positives + false_positives)
    return recall, precision, false_positives / len(in_dist)


class RunningMetric(ABC):
    """A score of all rows since the last `reset`: `update` adds a batch, `compute` gives the score."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, Tensor]] = []

    def reset(self) -> None:
        """Forget all rows, for the next epoch."""
        self._parts = []

    @abstractmethod
    def compute(self) -> float:
        """The score of all rows so far; ValueError before the first `update`."""

    def _add(self, first: Tensor, second: Tensor) -> None:
        self._parts.append((first.detach().cpu(), second.detach().cpu()))

    def _all(self) -> tuple[Tensor, Tensor]:
        if not self._parts:
            raise ValueError(f"{type(self).__name__} has no rows: call update with a batch before compute")
        first, second = (torch.cat(part) for part in zip(*self._parts, strict=True))
        return first, second


class RunningMean(RunningMetric):
    """A score that is a mean over rows, such as `nll`, `crps`, `accuracy`, `brier` or `coverage`.

    Parameters
    ----------
    score : callable
        Maps a predictive and the true y (rows, ...) to the mean over rows.

    Examples
    --------
    >>> import torch
    >>> from compound import CategoricalPredictive, metrics
    >>> nll = metrics.RunningMean(metrics.nll)
    >>> for probs, y in ((torch.tensor([[0.5, 0.5]]), [0]), (torch.tensor([[0.2, 0.8], [0.2, 0.8]]), [1, 1])):
    ...     nll.update(CategoricalPredictive.from_draws(probs.log()[None, None]), torch.tensor(y))
    >>> round(nll.compute(), 4)
    0.3798
    """

    def __init__(self, score: Callable[[Any, Tensor], float]):
        super().__init__()
        self.score = score

    def update(self, predictive: Predictive, y: Tensor) -> None:
        """Add the rows of a batch with their true y."""
        count = torch.tensor([len(y)], dtype=torch.float64)
        self._add(count * self.score(predictive, y), count)

    def compute(self) -> float:
        total, count = self._all()
        return (total.sum() / count.sum()).item()


class RunningECE(RunningMetric):
    """`ece` of all rows, from their confidences."""

    def __init__(self, bins: int = 15):
        super().__init__()
        self.bins = bins

    def update(self, predictive: CategoricalPredictive, y: Tensor) -> None:
        """Add the rows of a batch with their labels y (rows,)."""
        self._add(predictive.confidence.double(), (predictive.label == y).double())

    def compute(self) -> float:
        confidence, correct = self._all()
        return resampled_ece(confidence, correct, torch.ones_like(correct), self.bins).item()


class RunningSeparation(RunningMetric):
    """`auroc`, `aupr` or `fpr95` of scores of all rows, such as entropies, between outliers and others."""

    def __init__(self, score: Callable[[Tensor, Tensor], float] = auroc):
        super().__init__()
        self.score = score

    def update(self, scores: Tensor, is_outlier: Tensor) -> None:
        """Add scores (rows,), and which of the rows are outliers (rows,)."""
        self._add(scores.double(), is_outlier.bool())

    def compute(self) -> float:
        scores, is_outlier = self._all()
        return self.score(scores[~is_outlier], scores[is_outlier])
