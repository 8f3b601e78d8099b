"""Numbers that judge an answer: how good it is, how honest its doubt is, how well it separates outliers from ordinary rows.

The first argument is a predictive, the second the truth; the scores of strangeness come as two sets of rows, ordinary and outlying.
"""

import math

import torch
from torch import Tensor

from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive


def nll(answer: Predictive, y: Tensor) -> float:
    """Mean negative log-density or log-probability of the truth, in nats per row."""
    return -answer.log_prob(y).double().mean().item()


def rmse(answer: GaussianPredictive, y: Tensor) -> float:
    """Root of the mean squared error of the predictive mean, over rows and targets."""
    return (answer.mean - y).double().square().mean().sqrt().item()


def accuracy(answer: CategoricalPredictive, y: Tensor) -> float:
    return (answer.label == y).double().mean().item()


def mmc(answer: CategoricalPredictive) -> float:
    """Mean maximal confidence."""
    return answer.confidence.double().mean().item()


def brier(answer: CategoricalPredictive, y: Tensor) -> float:
    """Mean squared distance of the probabilities from the truth's corner, summed over classes: 0 to 2."""
    truth = torch.nn.functional.one_hot(y, answer.probs.shape[-1])
    return (answer.probs.double() - truth).square().sum(-1).mean().item()


def ece(answer: CategoricalPredictive, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error: mean gap between confidence and accuracy over even bins (low, high] of confidence."""
    right = (answer.label == y).double()  # (rows,)
    return weighted_ece(answer.confidence.double(), right, torch.ones_like(right), bins).item()


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


def crps(answer: GaussianPredictive, y: Tensor) -> float:
    """Continuous ranked probability score of the mixture, mean over rows and targets, in the unit of y.

    E|X - y| - ½ E|X - X'| with E|N(m, v)| in closed form. Grimit et al. (2006).
    """
    means, variances = answer.means.double(), answer.variances.double()  # (draws, rows, targets)
    n = len(means)
    even = means.new_full((n, 1, 1), 1 / n)
    weights = (
        even if answer.log_weights is None else answer.log_weights.double().exp()
    )  # (draws, rows or 1, 1)
    near = (weights * _mean_size(y.double() - means, variances)).sum(0)  # (rows, targets)
    apart = torch.zeros_like(near)
    for i in range(n):  # one draw against itself and all later ones: memory stays that of the answer
        pairs = weights[i:] * _mean_size(means[i] - means[i:], variances[i] + variances[i:])
        apart += weights[i] * (2 * pairs.sum(0) - pairs[0])
    return (near - 0.5 * apart).mean().item()


def _mean_size(mean: Tensor, variance: Tensor) -> Tensor:
    """E|N(mean, variance)|."""
    std = variance.sqrt()
    z = mean / std
    return mean * (2 * torch.special.ndtr(z) - 1) + std * math.sqrt(2 / math.pi) * (-0.5 * z.square()).exp()


def coverage(answer: GaussianPredictive, y: Tensor, level: float = 0.9) -> float:
    """Share of the truth inside the central interval of probability `level`."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}: it must lie between 0 and 1, such as 0.9")
    return ((answer.cdf(y).double() - 0.5).abs() <= level / 2).double().mean().item()


def auroc(in_dist: Tensor, ood: Tensor) -> float:
    """Probability that an out-of-distribution row scores higher than an in-distribution one; ties count half."""
    ones = [torch.ones(len(scores), dtype=torch.float64) for scores in (in_dist, ood)]
    return weighted_auroc(in_dist, ood, *ones).item()


def weighted_auroc(in_dist: Tensor, ood: Tensor, in_weights: Tensor, ood_weights: Tensor) -> Tensor:
    """AUROC with weights per row, such as the counts of bootstrap samples.

    in_dist and ood: scores (rows,); weights: (..., rows) float64 each. Returns (...).
    """
    below, up_to = _counts(in_dist, ood)
    cumulative = in_weights[..., in_dist.argsort()].cumsum(-1)
    cumulative = torch.nn.functional.pad(cumulative, (1, 0))  # weight of the i lowest scores
    wins = (cumulative[..., below] + cumulative[..., up_to]) / 2
    return (ood_weights * wins).sum(-1) / ood_weights.sum(-1) / in_weights.sum(-1)


def aupr(in_dist: Tensor, ood: Tensor) -> float:
    """Average precision of finding the strange rows by a high score."""
    caught, precision, _ = _thresholds(in_dist, ood)
    gained = caught.diff(prepend=caught.new_zeros(1))
    return (gained * precision).sum().item()


def fpr95(in_dist: Tensor, ood: Tensor) -> float:
    """Share of ordinary rows flagged by the highest threshold that catches 95 % of the strange ones."""
    caught, _, flagged = _thresholds(in_dist, ood)
    enough = torch.nonzero(caught >= 0.95 - 1e-12)[0]
    return flagged[enough].item()


def _counts(values: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """How many values lie below, and how many at or below, each entry of `at`."""
    for name, scores in (("ordinary", values), ("strange", at)):
        if scores.ndim != 1 or len(scores) == 0 or bool(scores.isnan().any()):
            raise ValueError(
                f"scores have shape {tuple(scores.shape)} or hold NaN: give one number for each of the rows, {name} ones too"
            )
    ordered = values.sort().values
    return torch.searchsorted(ordered, at), torch.searchsorted(ordered, at, right=True)


def _thresholds(in_dist: Tensor, ood: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """At every distinct score as threshold, highest first: share of strange rows caught, precision, share of ordinary rows flagged."""
    at = torch.cat([in_dist, ood]).unique().flip(0)  # sorted, ties once
    caught = len(ood) - _counts(ood, at)[0].double()
    flagged = len(in_dist) - _counts(in_dist, at)[0].double()
    return caught / len(ood), caught / (caught + flagged), flagged / len(in_dist)
