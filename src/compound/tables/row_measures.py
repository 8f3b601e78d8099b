"""What `compound evaluate` measures of each row beside `RowScores`, and curves of these measures.

Targets: CRPS, the score and width of the 90% interval, and the PIT, the predictive's cdf at the target, which
is uniform where the predictive is right. Classes: the number of classes in the 90% set.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compound.estimators.conformal_scores import aps_score
from compound.estimators.row_predictions import RowScores
from compound.metrics import crps_scores, interval_scores
from compound.tables.prediction_metrics import NOMINAL, PIT

Array = NDArray[Any]
CRPS = "CRPS"
INTERVAL_SCORE = "interval score of 90%"
WIDTH = "mean width of 90%"
SET_SIZE = "mean size of 90% sets"
PIT_BINS = 20
CRPS_LEVELS = 40  # of the quadrature for other families than the Gaussian
RISK_POINTS = 50  # of a risk-coverage curve


class QuantilePoint(NamedTuple):
    """A point of the reliability of quantiles: how many targets lie below the quantile of a level."""

    level: float
    observed: float
    rows: int


class RiskPoint(NamedTuple):
    """RMSE, or error rate, on the fraction of the rows whose prediction is least uncertain."""

    accepted: float
    risk: float


def row_measures(
    estimator: Any, predictive: Any, y: Tensor, target: int = 0
) -> dict[str, Tensor]:  # (rows,) each
    """The measures of rows with targets y (rows,): numbers, or indices of classes; of times with events.

    Of several targets the predictive is that of `target`.
    """
    if estimator.model_.task.kind == "classification":
        inside = aps_score(predictive.probs) <= estimator.sets_.conformal_quantile(NOMINAL)
        return {SET_SIZE: inside.sum(-1)}
    column = y.double().reshape(len(y), -1)[:, :1]  # (rows, 1)
    z = estimator.intervals_.conformal_quantile(NOMINAL)[target].reshape(1)
    lower, upper = predictive.z_quantiles(torch.stack([-z, z]))[..., 0]
    return {
        CRPS: (crps_scores if hasattr(predictive, "variances") else quantile_crps)(predictive, column)[:, 0],
        INTERVAL_SCORE: interval_scores(lower, upper, column[:, 0], NOMINAL),
        WIDTH: upper - lower,
        PIT: predictive.cdf(column)[:, 0],
    }


def quantile_crps(predictive: Any, y: Tensor) -> Tensor:  # (rows, targets)
    """CRPS of any predictive: twice the mean pinball loss over levels, by quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(CRPS_LEVELS)
    levels = torch.from_numpy(0.5 * (1 + nodes))
    quantiles = predictive.z_quantiles(torch.special.ndtri(levels).unsqueeze(-1))  # (levels, rows, targets)
    level = levels.view(-1, 1, 1)
    loss = torch.where(y < quantiles, (1 - level) * (quantiles - y), level * (y - quantiles))
    return (torch.from_numpy(weights).view(-1, 1, 1) * loss).sum(0)


def pit_histogram(scores: RowScores) -> Array:  # (PIT_BINS,)
    """How many rows have a PIT in each of PIT_BINS equal bins of (0, 1)."""
    return np.histogram(scores.measures[PIT], PIT_BINS, (0, 1))[0]


def quantile_reliability(scores: RowScores) -> list[QuantilePoint]:
    """How many targets lie below the calibrated quantiles of several levels, ascending.

    An interval of coverage c goes from the quantile (1 - c) / 2 to (1 + c) / 2: a target is below its upper
    bound if it is inside or below the median.
    """
    below = scores.measures[PIT] < 0.5
    points = {0.5: float(below.mean())}
    for k, coverage in enumerate(scores.levels):
        inside = scores.inside[:, k]
        points[(1 - coverage) / 2] = float((below & ~inside).mean())
        points[(1 + coverage) / 2] = float((below | inside).mean())
    return [QuantilePoint(round(float(level), 4), points[level], len(scores)) for level in sorted(points)]


def risk_coverage(scores: RowScores, is_regression: bool) -> list[RiskPoint]:
    """The risk of the least uncertain rows, by std or by confidence, for growing fractions of all rows."""
    uncertainty = scores.predictions["std"] if is_regression else -scores.predictions["probability"]
    order = np.argsort(uncertainty.to_numpy(), kind="stable")
    losses = scores.error[order] ** 2 if is_regression else scores.error[order]
    means = np.cumsum(losses) / np.arange(1, len(order) + 1)
    risks = np.sqrt(means) if is_regression else means
    counts = np.unique(np.linspace(min(len(order), 10), len(order), RISK_POINTS).astype(int))
    return [RiskPoint(count / len(order), float(risks[count - 1])) for count in counts.tolist()]
