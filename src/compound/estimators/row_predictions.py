"""All predictions of an estimator for each row of a table, as data frames; the model is evaluated once.

`predict_frame` gives the columns that the command line writes, and `score_frame` compares predictions with
known targets.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compound.estimators.base import Estimator
from compound.estimators.columns import Array
from compound.estimators.conformal_scores import aps_score, z_quantiles, z_score
from compound.estimators.prediction import estimator_blocks, ood_scores, take_first
from compound.estimators.validation import encode_table
from compound.metrics import brier_scores
from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive

SET_SEPARATOR = "|"  # between the labels of a set

RowCallback = Callable[[int], None]  # called with the number of rows done
# An estimator, the predictive of some rows and their targets: further measures of each row, by name.
RowMeasure = Callable[[Any, Predictive, Tensor], dict[str, Tensor]]


@dataclass(frozen=True)
class RowScores:
    """Predictions compared with known targets, row by row."""

    predictions: pd.DataFrame  # the columns of `predict_frame` without lower, upper and set
    nll: Array  # (rows,)
    error: Array  # (rows,) y minus mean, or 1 where the class is wrong
    score: Array  # (rows,) nonconformity score: |z|, or the probability of all likelier classes
    brier: Array  # (rows,) squared distance of the probabilities from the one-hot label; NaN for regression
    levels: Array  # (levels,) of coverage
    inside: Array  # (rows, levels) whether the interval or set of that coverage holds the target
    measures: dict[str, Array] = field(default_factory=dict)  # (rows,) each, by name

    def __len__(self) -> int:
        return len(self.nll)


def is_regression(estimator: Estimator) -> bool:
    """Whether the estimator predicts numbers."""
    return estimator.model_.task.kind == "regression"


def predict_frame(estimator: Estimator, table: pd.DataFrame, coverage: float = 0.9) -> pd.DataFrame:
    """Predictions of a table, one line per row.

    Regression: mean, std, lower, upper. Classification: class, probability, set (the labels of the conformal
    set). Both: aleatoric, epistemic, ood_score, is_ood. Classification, last: the probability of each class.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage is {coverage}: it must lie between 0 and 1, such as 0.9")
    x = encode_table(estimator, table)
    parts = []
    for predictive, rows in estimator_blocks(estimator, x):
        columns = {
            **_point_columns(estimator, predictive),
            **_region_columns(estimator, predictive, coverage),
            **_uncertainty_columns(predictive),
        }
        parts.append(_head(columns, rows))
    return _with_ood_columns(estimator, x, parts)


def uncertainty_frame(estimator: Estimator, table: pd.DataFrame) -> pd.DataFrame:
    """The columns of `predict_frame` without lower, upper and set."""
    x = encode_table(estimator, table)
    parts = [
        _head({**_point_columns(estimator, predictive), **_uncertainty_columns(predictive)}, rows)
        for predictive, rows in estimator_blocks(estimator, x)
    ]
    return _with_ood_columns(estimator, x, parts)


def no_progress(done: int) -> None:
    """A callback that does nothing."""


def score_frame(
    estimator: Estimator,
    table: pd.DataFrame,
    y: Array,
    levels: Array,
    callback: RowCallback = no_progress,
    measure: RowMeasure | None = None,
) -> RowScores:
    """Compare predictions with `y` (rows,): numbers, or indices into `classes_`.

    `levels` (levels,) are coverages, `callback` is called after each block. `measure` gives further
    measures of the rows.
    """
    x = encode_table(estimator, table)
    start = 0
    parts = []
    comparisons = []
    measured: list[dict[str, Tensor]] = []
    for predictive, rows in estimator_blocks(estimator, x):
        target = torch.tensor(y[start : start + rows])
        start += len(target)
        parts.append(
            _head({**_point_columns(estimator, predictive), **_uncertainty_columns(predictive)}, rows)
        )
        comparisons.append(_compare(take_first(predictive, rows), target))
        if measure is not None:
            measured.append(measure(estimator, take_first(predictive, rows), target))
        callback(start)
    predictions = _with_ood_columns(estimator, x, parts)
    nll, error, score, brier = (np.concatenate(column) for column in zip(*comparisons, strict=True))
    max_scores = np.array([_max_score(estimator, float(level)) for level in levels])
    inside = score[:, None] <= max_scores
    names = measured[0] if measured else {}
    measures = {name: torch.cat([part[name] for part in measured]).double().numpy() for name in names}
    return RowScores(predictions, nll, error, score, brier, levels, inside, measures)


def _max_score(estimator: Any, coverage: float) -> float:
    """The largest nonconformity score inside the interval or set of this coverage."""
    if is_regression(estimator):
        return float(estimator.intervals_.conformal_quantile(coverage)[0])
    return float(estimator.sets_.conformal_quantile(coverage))


def _head(columns: dict[str, Array], rows: int) -> dict[str, Array]:
    """The first `rows` rows of each column: those that are not padding."""
    return {name: values[:rows] for name, values in columns.items()}


def _point_columns(estimator: Any, predictive: Predictive) -> dict[str, Array]:
    """Columns mean and std, or class, probability (of that class) and p(...) of each class."""
    if isinstance(predictive, GaussianPredictive):
        return {"mean": predictive.mean[:, 0].numpy(), "std": predictive.std[:, 0].numpy()}
    assert isinstance(predictive, CategoricalPredictive)
    probabilities = {
        name: predictive.probs[:, i].numpy() for i, name in enumerate(_probability_columns(estimator))
    }
    labels = estimator.classes_[predictive.label.numpy()]
    return {"class": labels, "probability": predictive.confidence.numpy(), **probabilities}


def _region_columns(estimator: Any, predictive: Predictive, coverage: float) -> dict[str, Array]:
    """Columns lower and upper, or set: the labels of the conformal set as text, most probable first."""
    if isinstance(predictive, GaussianPredictive):
        z = estimator.intervals_.conformal_quantile(coverage)
        lower, upper = z_quantiles(predictive, torch.stack([-z, z]))[..., 0].numpy()
        return {"lower": lower, "upper": upper}
    assert isinstance(predictive, CategoricalPredictive)
    order = predictive.probs.argsort(dim=-1, descending=True, stable=True)
    in_set = aps_score(predictive.probs).gather(-1, order) <= _max_score(estimator, coverage)
    labels = np.array([str(label) for label in estimator.classes_], dtype=object)
    sets = [
        SET_SEPARATOR.join(labels[row_order[row_in_set]])
        for row_order, row_in_set in zip(order.numpy(), in_set.numpy(), strict=True)
    ]
    return {"set": np.array(sets, dtype=object)}


def _uncertainty_columns(predictive: Predictive) -> dict[str, Array]:
    """Columns aleatoric and epistemic, of the first target."""
    rows = len(predictive.component)
    return {
        name: getattr(predictive, name).reshape(rows, -1)[:, 0].numpy() for name in ("aleatoric", "epistemic")
    }


def _compare(predictive: Predictive, y: Tensor) -> tuple[Array, ...]:  # (rows,) each
    """NLL, error, nonconformity score and Brier score, as in `RowScores`, for targets y (rows,)."""
    if isinstance(predictive, GaussianPredictive):
        column = y.double().unsqueeze(-1)  # (rows, 1)
        columns = (
            -predictive.log_prob(column),
            column[:, 0] - predictive.mean[:, 0],
            z_score(predictive, column)[:, 0],
            torch.full_like(y, torch.nan, dtype=torch.float64),
        )
    else:
        assert isinstance(predictive, CategoricalPredictive)
        columns = (
            -predictive.log_prob(y),
            (predictive.label != y).double(),
            aps_score(predictive.probs).gather(-1, y.unsqueeze(-1)).squeeze(-1),
            brier_scores(predictive.probs, y),
        )
    return tuple(column.double().numpy() for column in columns)


def _with_ood_columns(estimator: Estimator, x: Tensor, parts: list[dict[str, Array]]) -> pd.DataFrame:
    """Concatenate blocks of columns, and add ood_score and is_ood of encoded rows x (rows, width).

    The probabilities of single classes come last.
    """
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    epistemic = torch.from_numpy(columns["epistemic"])
    columns["ood_score"] = ood_scores(estimator.ood_detector_, x, epistemic).numpy()
    columns["is_ood"] = columns["ood_score"] > estimator.threshold_
    last = set(_probability_columns(estimator))
    return pd.DataFrame({name: columns[name] for name in sorted(columns, key=lambda name: name in last)})


def _probability_columns(estimator: Any) -> list[str]:
    """Names of the columns with the probabilities of single classes."""
    return [] if is_regression(estimator) else [f"p({label})" for label in estimator.classes_]
