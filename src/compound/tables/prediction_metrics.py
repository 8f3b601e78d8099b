"""Metrics of a model's predictions on a table with confidence intervals; calibration curve.

The formulas are those of `compound.metrics`, evaluated on bootstrap samples.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from compound.estimators.row_predictions import RowScores
from compound.metrics import confidence_bins, resampled_auroc, resampled_ece
from compound.tables.confidence_intervals import Bootstrap, Metric

Array = NDArray[Any]
LEVELS = np.round(np.arange(0.05, 1.0, 0.05), 2)  # coverages of the calibration curve
NOMINAL = 0.9  # nominal coverage of the intervals or sets whose coverage is reported
COVERAGE = "coverage of 90%"
PIT = "PIT"  # the measure that is no score: the predictive's cdf at the target
BINS = 15  # of confidence, for ECE and calibration curve


class CalibrationPoint(NamedTuple):
    """A point of the calibration curve.

    Regression: `observed` is the coverage of intervals of nominal coverage `nominal`. Classification:
    `observed` is the accuracy of predictions with mean confidence `nominal`.
    """

    nominal: float
    observed: float
    rows: int


def prediction_metrics(scores: RowScores, is_regression: bool, generator: Generator) -> list[Metric]:
    """NLL, RMSE or accuracy, coverage of the 90% interval or set, calibration error and further metrics."""
    bootstrap = Bootstrap(len(scores), generator)
    samples = (_regression_samples if is_regression else _classification_samples)(scores, bootstrap)
    return [
        Metric.from_proportion(name, values[0], len(scores))
        if name in ("accuracy", COVERAGE)
        else Metric.from_samples(name, values)
        for name, values in samples.items()
    ]


def _regression_samples(scores: RowScores, bootstrap: Bootstrap) -> dict[str, Array]:  # (1 + samples,) each
    """Each metric on the data and on each bootstrap sample, by name."""
    std = scores.predictions["std"].to_numpy()
    further = list(scores.measures)  # such as CRPS
    columns = _stack_columns(
        scores.nll, scores.error**2, np.abs(scores.error), std, *scores.measures.values(), scores.inside
    )
    means = bootstrap.evaluate(lambda weights: weights @ columns / len(scores))
    coverage = means[:, 4 + len(further) :]  # (1 + samples, levels)
    return {
        "NLL": means[:, 0],
        "RMSE": np.sqrt(means[:, 1]),
        "MAE": means[:, 2],
        **{name: means[:, 4 + k] for k, name in enumerate(further) if name != PIT},
        COVERAGE: coverage[:, nominal_index(scores.levels)],
        "ECE": np.abs(coverage - scores.levels).mean(1),
        "mean std": means[:, 3],
    }


def _classification_samples(
    scores: RowScores, bootstrap: Bootstrap
) -> dict[str, Array]:  # (1 + samples,) each
    """Each metric on the data and on each bootstrap sample, by name."""
    confidence, correct = _confidence_and_correct(scores)
    covered = scores.inside[:, nominal_index(scores.levels)]
    further = scores.measures.values()  # such as the size of sets
    columns = _stack_columns(scores.nll, correct, scores.brier, covered, confidence, *further)

    def statistics(weights: Tensor) -> Tensor:  # (samples, rows) -> (samples, 6 + further)
        ece = resampled_ece(confidence, correct, weights, BINS)
        return torch.cat([ece.unsqueeze(1), weights @ columns / len(scores)], 1)

    ece, nll, accuracy, brier, coverage, mean_confidence, *rest = bootstrap.evaluate(statistics).T
    return {
        "NLL": nll,
        "accuracy": accuracy,
        "Brier score": brier,
        COVERAGE: coverage,
        "ECE": ece,
        "mean confidence": mean_confidence,
        **dict(zip(scores.measures, rest, strict=True)),
    }


def _stack_columns(*columns: Any) -> Tensor:  # (rows, columns) float64
    """Arrays, series or data frames of one or more columns, side by side."""
    return torch.from_numpy(np.column_stack(columns).astype(np.float64))


def _confidence_and_correct(scores: RowScores) -> tuple[Tensor, Tensor]:  # (rows,) each, float64
    """Probability of the predicted class, and 1 where it is correct, else 0."""
    confidence = torch.tensor(scores.predictions["probability"].to_numpy(np.float64))
    return confidence, torch.from_numpy(1 - scores.error)


def ood_metrics(in_dist: pd.DataFrame, ood: pd.DataFrame, generator: Generator) -> list[Metric]:
    """AUROC of each uncertainty score for telling `ood` from `in_dist`, and the proportions `is_ood` flags.

    Both frames have the columns aleatoric, epistemic, ood_score and is_ood.
    """
    in_bootstrap = Bootstrap(len(in_dist), generator)
    ood_bootstrap = Bootstrap(len(ood), generator)
    metrics = []
    for name in ("ood_score", "epistemic", "total"):
        # large tables have fewer samples
        pairs = zip(in_bootstrap.counts(), ood_bootstrap.counts(), strict=False)
        samples = resampled_auroc(_uncertainty_score(in_dist, name), _uncertainty_score(ood, name), pairs)
        metrics.append(Metric.from_samples(f"AUROC of {name}", samples.numpy()))
    for name, frame in (("flagged in this table", in_dist), ("flagged in the OOD table", ood)):
        metrics.append(Metric.from_proportion(name, frame["is_ood"].mean(), len(frame)))
    return metrics


def _uncertainty_score(frame: pd.DataFrame, name: str) -> Tensor:  # (rows,) float64
    """The column `name` of predictions; "total" is aleatoric plus epistemic."""
    column = frame["aleatoric"] + frame["epistemic"] if name == "total" else frame[name]
    return torch.tensor(column.to_numpy(np.float64))  # pandas arrays are read-only


def calibration_curve(scores: RowScores, is_regression: bool) -> list[CalibrationPoint]:
    """Nominal against observed coverage (regression), or confidence against accuracy (classification)."""
    if is_regression:
        observed = scores.inside.mean(0)
        return [
            CalibrationPoint(float(level), float(coverage), len(scores))
            for level, coverage in zip(scores.levels, observed, strict=True)
        ]
    confidence, correct = _confidence_and_correct(scores)
    bins = confidence_bins(confidence, BINS)
    masks = [bins == i for i in bins.unique()]
    return [
        CalibrationPoint(confidence[rows].mean().item(), correct[rows].mean().item(), int(rows.sum()))
        for rows in masks
    ]


def nominal_index(levels: Array) -> int:
    """Index of the level nearest to NOMINAL."""
    return int(np.abs(levels - NOMINAL).argmin())
