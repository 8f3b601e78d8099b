"""Metrics: accuracy of predictions, calibration of their uncertainty, detection of out-of-distribution rows.

Metrics of predictions take a predictive and the targets y. Metrics of detection take two sets of scores, of
in-distribution and of out-of-distribution (OOD) rows; higher scores mean OOD.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive


def nll(predictive: Predictive, y: Tensor) -> float:
    """Mean negative log-likelihood of y, in nats per row."""
    return -predictive.log_prob(y).double().mean().item()


def rmse(predictive: GaussianPredictive, y: Tensor) -> float:
    """Root of the mean squared error of the predictive mean, over rows and targets."""
    return (predictive.mean - y).double().square().mean().sqrt().item()


def accuracy(predictive: CategoricalPredictive, y: Tensor) -> float:
    """Fraction of rows whose most probable class is y."""
    return (predictive.label == y).double().mean().item()


def mmc(predictive: CategoricalPredictive) -> float:
    """Mean maximal confidence."""
    return predictive.confidence.double().mean().item()


def brier(predictive: CategoricalPredictive, y: Tensor) -> float:
    """Mean Brier score, summed over classes: 0 to 2."""
    return brier_rows(predictive.probs.double(), y).mean().item()


def brier_rows(probs: Tensor, y: Tensor) -> Tensor:  # (rows,)
    """Squared distance of probs (rows, classes) from the one-hot labels y (rows,)."""
    one_hot = functional.one_hot(y, probs.shape[-1])
    return (probs - one_hot).square().sum(-1)


def ece(predictive: CategoricalPredictive, y: Tensor, n_bins: int = 15) -> float:
    """Expected calibration error: mean gap between confidence and accuracy, over even bins of confidence."""
    correct = (predictive.label == y).double()  # (rows,)
    return weighted_ece(predictive.confidence.double(), correct, torch.ones_like(correct), n_bins).item()


def weighted_ece(confidence: Tensor, correct: Tensor, weights: Tensor, n_bins: int = 15) -> Tensor:
    """Expected calibration error with weights per row, such as the counts of bootstrap samples.

    confidence and correct: (rows,) float64; weights: (..., rows) float64. Returns (...).
    """
    index = confidence_bins(confidence, n_bins).expand_as(weights)
    gaps = weights.new_zeros(*weights.shape[:-1], n_bins)
    gaps.scatter_add_(-1, index, weights * (confidence - correct))
    return gaps.abs().sum(-1) / weights.sum(-1)


def confidence_bins(confidence: Tensor, n_bins: int = 15) -> Tensor:  # (rows,) int64
    """Index of the even bin (low, high] that holds each confidence."""
    return (confidence * n_bins).ceil().long().sub(1).clamp(0, n_bins - 1)


def crps(predictive: GaussianPredictive, y: Tensor) -> float:
    """Continuous ranked probability score of the mixture, mean over rows and targets, in the unit of y.

    E|X - y| - ½ E|X - X'| with E|N(m, v)| in closed form. Grimit et al. (2006).
    """
    means = predictive.means.double()  # (draws, rows, targets)
    variances = predictive.variances.double()
    n = len(means)
    if predictive.log_weights is None:
        weights = means.new_full((n, 1, 1), 1 / n)
    else:
        weights = predictive.log_weights.double().exp()  # (draws, rows or 1, 1)
    to_target = (weights * _mean_absolute(y.double() - means, variances)).sum(0)  # (rows, targets)
    between_draws = torch.zeros_like(to_target)
    for i in range(n):  # draw i with itself and all later ones, so that memory is that of the predictive
        pairs = weights[i:] * _mean_absolute(means[i] - means[i:], variances[i] + variances[i:])
        between_draws += weights[i] * (2 * pairs.sum(0) - pairs[0])
    return (to_target - 0.5 * between_draws).mean().item()


def _mean_absolute(mean: Tensor, variance: Tensor) -> Tensor:
    """E|N(mean, variance)|."""
    std = variance.sqrt()
    z = mean / std
    return mean * (2 * torch.special.ndtr(z) - 1) + std * math.sqrt(2 / math.pi) * (-0.5 * z.square()).exp()


def coverage(predictive: GaussianPredictive, y: Tensor, level: float = 0.9) -> float:
    """Fraction of y inside the central interval of probability `level`."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}: it must lie between 0 and 1, such as 0.9")
    return ((predictive.cdf(y).double() - 0.5).abs() <= level / 2).double().mean().item()


def auroc(in_dist: Tensor, ood: Tensor) -> float:
    """Probability that an OOD row scores higher than an in-distribution row; ties count half."""
    in_weights, ood_weights = (torch.ones(len(scores), dtype=torch.float64) for scores in (in_dist, ood))
    return weighted_auroc(in_dist, ood, [(in_weights, ood_weights)]).item()


def weighted_auroc(in_dist: Tensor, ood: Tensor, weights: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """AUROC for each pair of weights of in_dist and ood, such as the counts of bootstrap samples.

    in_dist and ood: scores (rows,), sorted once; weights: float64 (rows,) each. Returns (pairs,).
    """
    _check_scores(in_dist, ood)
    ordered, order = in_dist.sort()
    below, up_to = _rank(ordered, ood)
    values = []
    for in_weights, ood_weights in weights:
        cumulative = functional.pad(in_weights[order].cumsum(0), (1, 0))  # weight of the i lowest scores
        wins = (ood_weights * (cumulative[below] + cumulative[up_to])).sum() / 2
        values.append(wins / ood_weights.sum() / in_weights.sum())
    return torch.stack(values)


def aupr(in_dist: Tensor, ood: Tensor) -> float:
    """Area under the precision-recall curve (average precision) for detecting OOD rows."""
    recall, precision, _ = _operating_points(in_dist, ood)
    gain = recall.diff(prepend=recall.new_zeros(1))
    return (gain * precision).sum().item()


def fpr95(in_dist: Tensor, ood: Tensor) -> float:
    """False positive rate at the highest threshold whose true positive rate is at least 95%."""
    recall, _, false_positive_rate = _operating_points(in_dist, ood)
    first = torch.nonzero(recall >= 0.95 - 1e-12)[0]
    return false_positive_rate[first].item()


def _operating_points(in_dist: Tensor, ood: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Recall, precision and false positive rate at every distinct score as threshold, highest first."""
    _check_scores(in_dist, ood)
    thresholds = torch.cat([in_dist, ood]).unique().flip(0)
    true_positives = len(ood) - _rank(ood.sort().values, thresholds)[0].double()
    false_positives = len(in_dist) - _rank(in_dist.sort().values, thresholds)[0].double()
    precision = true_positives / (true_positives + false_positives)
    return true_positives / len(ood), precision, false_positives / len(in_dist)


def _rank(ordered: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """How many of the ordered scores lie below, and how many at or below, each of `values`."""
    return torch.searchsorted(ordered, values), torch.searchsorted(ordered, values, right=True)


def _check_scores(in_dist: Tensor, ood: Tensor) -> None:
    for name, scores in (("in-distribution", in_dist), ("out-of-distribution", ood)):
        if scores.ndim != 1 or len(scores) == 0 or bool(scores.isnan().any()):
            raise ValueError(
                f"{name} scores have shape {tuple(scores.shape)} or hold NaN: give one number per row"
            )
