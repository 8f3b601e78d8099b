"""Which columns a model's predictions and their uncertainty depend on, and how: for the report of a fit.

Permutation importance (Breiman 2001): the values of one column are permuted among held-out rows. How much
worse the predictions get is the column's importance for the prediction, how much their uncertainty moves the
one for the uncertainty: the root mean square change of std, or of the entropy of classes, relative to its
mean. The out-of-distribution part of a prediction takes part in both.

Partial dependence (Friedman 2001): the mean prediction over rows whose column has one value, for several
values; with the mean 90% interval of targets, or the range of 80% of the rows for classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pandas.api import types
from torch import Generator, Tensor

from compound.estimators.base import Estimator
from compound.estimators.prediction import map_rows
from compound.estimators.validation import encode_table
from compound.random import named_generator

Array = NDArray[Any]
MAX_ROWS = 300  # permuted
MAX_PREDICTIONS = 60_000  # rows predicted for importance, so that it takes seconds
MAX_COLUMNS = 600  # tables of more have none
DEPENDENCE_COLUMNS = 4  # that partial dependence is shown on
DEPENDENCE_ROWS = 60  # that partial dependence averages over
GRID = 15  # values of a numeric column
MAX_VALUES = 8  # of a category, the most frequent
LEVELS = (0.05, 0.95)  # of the interval

RowCallback = Callable[[int], None]  # called with the number of rows predicted


class Importance(NamedTuple):
    """How much a column matters."""

    column: str
    prediction: float  # increase of RMSE or of NLL where its values are permuted
    uncertainty: float  # relative change of std or of entropy


@dataclass(frozen=True)
class Dependence:
    """Mean predictions with bands for values of one column."""

    column: str
    values: list[Any]  # numbers, times or text
    mean: Array  # (values,) target, or probability of `label`
    low: Array  # (values,)
    high: Array  # (values,)
    label: str | None = None  # the class whose probability it is


@dataclass(frozen=True)
class ColumnEffects:
    """What a report says about the columns."""

    importance: list[Importance]  # the largest first
    dependence: list[Dependence]  # on the most important columns


def column_effects(
    estimator: Estimator, table: pd.DataFrame, y: Array, seed: int, callback: RowCallback
) -> ColumnEffects:
    """Importance of the columns, and partial dependence on the first of them, by held-out rows."""
    importance = permutation_importance(estimator, table, y, named_generator(seed, "importance"), callback)
    names = [each.column for each in importance[:DEPENDENCE_COLUMNS]]
    return ColumnEffects(
        importance, partial_dependence(estimator, table, names, named_generator(seed, "dependence"))
    )


def permutation_importance(
    estimator: Estimator, table: pd.DataFrame, y: Array, generator: Generator, callback: RowCallback
) -> list[Importance]:
    """Importance of all columns, the largest first; none for a table of very many columns.

    `y` (rows,) are numbers, or indices of classes, of the rows of `table`.
    """
    encoder = estimator.encoder_
    columns = len(encoder.columns)
    if columns > MAX_COLUMNS or len(table) < 2:
        return []
    rows = min(MAX_ROWS, max(50, MAX_PREDICTIONS // columns), len(table))
    chosen = torch.randperm(len(table), generator=generator)[:rows].numpy()
    part = table.iloc[chosen].reset_index(drop=True)
    x = encode_table(estimator, part)  # (rows, width)
    surprises = torch.from_numpy(encoder.surprises(part)).float()  # (rows, columns)
    target = torch.from_numpy(y[chosen])
    loss, uncertainty = _losses(estimator, x, target)
    base, level = _risk(estimator, loss), float(uncertainty.mean())
    out, start = [], 0
    for i, column in enumerate(encoder.columns):
        order = torch.randperm(rows, generator=generator)
        moved = x.clone()
        moved[:, start : start + column.width] = x[order, start : start + column.width]
        moved[:, -1] += surprises[order, i] - surprises[:, i]
        start += column.width
        new_loss, new = _losses(estimator, moved, target)
        change = float((new - uncertainty).square().mean().sqrt()) / max(level, 1e-300)
        out.append(Importance(column.name, _risk(estimator, new_loss) - base, change))
        callback((i + 1) * rows)
    return sorted(out, key=lambda each: -each.prediction)


def _losses(estimator: Estimator, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # (rows,) each
    """Squared error and std, or NLL and entropy, of encoded rows."""
    if estimator.model_.task.kind == "regression":
        moments = map_rows(estimator, x, lambda p: torch.stack([p.mean[:, 0], p.std[:, 0]], -1))
        return (moments[:, 0] - y.double()).square(), moments[:, 1]
    probs = map_rows(estimator, x, lambda p: p.probs)
    nll = -probs.gather(-1, y.unsqueeze(-1)).squeeze(-1).clamp_min(1e-300).log()
    return nll, -torch.xlogy(probs, probs).sum(-1)


def _risk(estimator: Estimator, losses: Tensor) -> float:
    mean = float(losses.mean())
    return mean**0.5 if estimator.model_.task.kind == "regression" else mean


def partial_dependence(
    estimator: Any, table: pd.DataFrame, columns: Sequence[str], generator: Generator
) -> list[Dependence]:
    """Partial dependence on some columns: of the target, or of the probability of one class.

    That is the second of two classes, or the most probable one of several.
    """
    rows = torch.randperm(len(table), generator=generator)[:DEPENDENCE_ROWS].numpy()
    part = table.iloc[rows].reset_index(drop=True)
    is_regression = estimator.model_.task.kind == "regression"
    label = None if is_regression else _shown_class(estimator, part)
    out = []
    for name in columns:
        values = grid_values(table[name])
        if len(values) < 2:
            continue
        repeated = pd.concat([part] * len(values), ignore_index=True)
        moved = pd.Series(np.repeat(np.array(values, dtype=object), len(part)))
        repeated[name] = moved.astype(table[name].dtype)
        if is_regression:
            lower, upper = estimator.predict_interval(repeated, LEVELS[1] - LEVELS[0])
            rows_of = (estimator.predict(repeated), lower, upper)
            first = (each.reshape(len(repeated), -1)[:, 0] for each in rows_of)  # of several targets
            mean, low, high = (each.reshape(len(values), -1).mean(1) for each in first)
        else:
            probs = estimator.predict_proba(repeated)[:, label].reshape(len(values), -1)
            mean, (low, high) = probs.mean(1), np.quantile(probs, [0.1, 0.9], axis=1)
        text = None if label is None else str(estimator.classes_[label])
        out.append(Dependence(name, values, mean, low, high, text))
    return out


def _shown_class(estimator: Any, table: pd.DataFrame) -> int:
    return 1 if len(estimator.classes_) == 2 else int(estimator.predict_proba(table).mean(0).argmax())


def grid_values(column: "pd.Series[Any]") -> list[Any]:
    """Values that occur in a column: quantiles of numbers and times, the most frequent of others."""
    present = column.dropna()
    is_number = types.is_numeric_dtype(column) and not types.is_bool_dtype(column)
    if is_number or types.is_datetime64_any_dtype(column):
        ordered = present.sort_values(ignore_index=True)
        index = np.linspace(0.01, 0.99, GRID) * (len(ordered) - 1)
        return [] if ordered.empty else ordered[index.round().astype(int)].drop_duplicates().tolist()
    return sorted(present.value_counts().index[:MAX_VALUES].tolist(), key=str)
