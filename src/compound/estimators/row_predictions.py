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
from compound.estimators.conformal_scores import aps_score, event_scores
from compound.estimators.prediction import map_blocks, score_block
from compound.estimators.thresholds import pad_labels
from compound.estimators.validation import encode_table
from compound.metrics import brier_scores
from compound.predictive import CategoricalPredictive, Predictive, TargetPredictive
from compound.random import named_generator

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

    Regression: mean, std, lower, upper, of several targets as mean(price) and so on; of times until an event
    the median too, and last the probability of no event until some times. Classification: class,
    probability, set (the labels of the conformal set), and last the probability of each class. Both:
    aleatoric, epistemic, ood_score, is_ood.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage is {coverage}: it must lie between 0 and 1, such as 0.9")
    x = encode_table(estimator, table)
    labels = estimator.row_groups(table)

    def columns(predictive: Predictive, block: Tensor, rows: int, start: int) -> dict[str, Array]:
        groups = None if labels is None else pad_labels(labels[start : start + rows], len(predictive))
        point = _point_columns(estimator, predictive)
        point |= _region_columns(estimator, predictive, coverage, groups)
        return _with_uncertainty(estimator, point, predictive, block, rows)

    return _join(estimator, list(map_blocks(estimator, x, columns)))


def uncertainty_frame(estimator: Estimator, table: pd.DataFrame) -> pd.DataFrame:
    """The columns of `predict_frame` without lower, upper and set, of the first target."""
    x = encode_table(estimator, table)

    def columns(predictive: Predictive, block: Tensor, rows: int, _: int) -> dict[str, Array]:
        point = _point_columns(estimator, predictive, single=True)
        return _with_uncertainty(estimator, point, predictive, block, rows, single=True)

    return _join(estimator, list(map_blocks(estimator, x, columns)))


def first_target_frame(estimator: Estimator, table: pd.DataFrame) -> pd.DataFrame:
    """`predict_frame` with the columns of the first of several targets only, as if it were the only one."""
    frame = predict_frame(estimator, table)
    if not is_regression(estimator) or estimator.model_.task.size == 1:
        return frame
    first, *others = target_names(estimator)
    dropped = [name for name in frame if any(name.endswith(f"({other})") for other in others)]
    frame = frame.drop(columns=dropped)
    return frame.rename(columns=lambda name: name.removesuffix(f"({first})"))


def no_progress(done: int) -> None:
    """A callback that does nothing."""


def score_frame(
    estimator: Estimator,
    table: pd.DataFrame,
    y: Array,
    levels: Array,
    callback: RowCallback = no_progress,
    target: int = 0,
    measure: RowMeasure | None = None,
) -> RowScores:
    """Compare predictions with `y` (rows,): numbers, or indices into `classes_`.

    Times until an event are (rows, 2), with 1 where the event was observed. `levels` (levels,) are
    coverages, `callback` is called after each block. Of several targets `target` is the one compared.
    `measure` gives further measures of the rows.
    """
    x = encode_table(estimator, table)

    def compare(
        predictive: Predictive, block: Tensor, rows: int, start: int
    ) -> tuple[dict[str, Array], tuple[Array, ...], dict[str, Tensor]]:
        truth = torch.tensor(y[start : start + rows])
        if is_regression(estimator):
            predictive = one_target(predictive, target)
        point = _point_columns(estimator, predictive, single=True)
        columns = _with_uncertainty(estimator, point, predictive, block, rows, single=True)
        of_rows = predictive[:rows]
        comparison = _compare(of_rows, truth, estimator.seed_)
        return columns, comparison, {} if measure is None else measure(estimator, of_rows, truth)

    parts, comparisons, measured = [], [], []
    done = 0
    for columns, comparison, further in map_blocks(estimator, x, compare):
        parts.append(columns)
        comparisons.append(comparison)
        measured.append(further)
        done += len(comparison[0])
        callback(done)
    predictions = _join(estimator, parts)
    nll, error, score, brier = (np.concatenate(column) for column in zip(*comparisons, strict=True))
    labels = estimator.row_groups(table)
    thresholds = [estimator.thresholds(float(level), len(x), labels)[:, target].numpy() for level in levels]
    inside = score[:, None] <= np.stack(thresholds, 1)
    names = measured[0]
    measures = {name: torch.cat([part[name] for part in measured]).double().numpy() for name in names}
    return RowScores(predictions, nll, error, score, brier, levels, inside, measures)


def _head(columns: dict[str, Array], rows: int) -> dict[str, Array]:
    """The first `rows` rows of each column: those that are not padding."""
    return {name: values[:rows] for name, values in columns.items()}


def target_names(estimator: Any) -> list[str]:
    """The names of several targets, for the columns of their predictions; ["y1", "y2"] if they have none."""
    count = estimator.model_.task.size
    names = getattr(estimator, "target_names_", None) or [f"y{k + 1}" for k in range(count)]
    return [str(name) for name in names]


def _of_targets(estimator: Any, columns: dict[str, Tensor], single: bool) -> dict[str, Array]:
    """Columns (rows, targets): by their names for one target, as mean(price) for several."""
    if single or estimator.model_.task.size == 1:
        return {name: values[:, 0].numpy() for name, values in columns.items()}
    targets = enumerate(target_names(estimator))
    return {f"{name}({target})": v[:, k].numpy() for k, target in targets for name, v in columns.items()}


def _point_columns(estimator: Any, predictive: Predictive, single: bool = False) -> dict[str, Array]:
    """Columns mean and std, or class, probability (of that class) and p(...) of each class.

    Of times until an event also the median, and P(y > time) at the horizons of the estimator.
    """
    if isinstance(predictive, TargetPredictive):
        columns = {"mean": predictive.mean, "std": predictive.std}
        horizons = getattr(estimator, "horizons_", ())
        if not len(horizons):
            return _of_targets(estimator, columns, single)
        columns = {"median": predictive.quantile(0.5), **columns}
        later = {
            f"p(>{horizon:g})": 1 - predictive.cdf(torch.tensor(horizon, dtype=torch.float64))
            for horizon in horizons
        }
        return _of_targets(estimator, {**columns, **later}, single)
    assert isinstance(predictive, CategoricalPredictive)
    probabilities = {name: predictive.probs[:, i].numpy() for i, name in enumerate(_last_columns(estimator))}
    labels = estimator.classes_[predictive.label.numpy()]
    return {"class": labels, "probability": predictive.confidence.numpy(), **probabilities}


def _region_columns(
    estimator: Any, predictive: Predictive, coverage: float, groups: Array | None
) -> dict[str, Array]:
    """Columns lower and upper, or set: the labels of the conformal set as text, most probable first."""
    if isinstance(predictive, TargetPredictive):
        levels = [(1 - coverage) / 2, (1 + coverage) / 2]
        lower, upper = estimator.calibrated_quantiles(predictive, levels, groups)
        return _of_targets(estimator, {"lower": lower, "upper": upper}, False)
    assert isinstance(predictive, CategoricalPredictive)
    order = predictive.probs.argsort(dim=-1, descending=True, stable=True)
    max_scores = estimator.thresholds(coverage, len(order), groups)
    in_set = aps_score(predictive.probs).gather(-1, order) <= max_scores
    members = torch.where(in_set, order, -1).to(torch.int32).numpy()  # (rows, classes)
    keys = members.view(f"V{4 * members.shape[1]}")[:, 0]  # rows with equal sets share their text
    _, first, index = np.unique(keys, return_index=True, return_inverse=True)
    labels = [str(label) for label in estimator.classes_]
    sets = [SET_SEPARATOR.join(labels[k] for k in members[row] if k >= 0) for row in first]
    return {"set": np.array(sets, dtype=object)[index]}


def _uncertainty_columns(estimator: Any, predictive: Predictive, single: bool = False) -> dict[str, Array]:
    """Columns aleatoric and epistemic."""
    rows = len(predictive)
    parts = {name: getattr(predictive, name).reshape(rows, -1) for name in ("aleatoric", "epistemic")}
    return _of_targets(estimator, parts, single or not is_regression(estimator))


def one_target(predictive: Any, target: int) -> Any:
    """The predictive of one target of several."""
    if predictive.component.shape[1] == 1:
        return predictive
    return predictive.of_target(target)


def _compare(predictive: Predictive, y: Tensor, seed: int) -> tuple[Array, ...]:  # (rows,) each
    """NLL, error, nonconformity score and Brier score, as in `RowScores`, for targets y (rows,)."""
    if isinstance(predictive, TargetPredictive):
        columns = y.double().reshape(len(y), -1)  # (rows, 1), or (rows, 2) with events
        values = (
            -predictive.log_prob(columns),
            columns[:, 0] - predictive.mean[:, 0],
            event_scores(predictive, columns, named_generator(seed, "censored"))[:, 0],
            torch.full_like(columns[:, 0], torch.nan),
        )
    else:
        assert isinstance(predictive, CategoricalPredictive)
        values = (
            -predictive.log_prob(y),
            (predictive.label != y).double(),
            aps_score(predictive.probs).gather(-1, y.unsqueeze(-1)).squeeze(-1),
            brier_scores(predictive.probs, y),
        )
    return tuple(column.double().numpy() for column in values)


def _with_uncertainty(
    estimator: Any,
    columns: dict[str, Array],
    predictive: Predictive,
    block: Tensor,
    rows: int,
    single: bool = False,
) -> dict[str, Array]:
    """Columns of one block with aleatoric, epistemic, ood_score and is_ood, without the rows of padding."""
    uncertainty = _uncertainty_columns(estimator, predictive, single)
    first = next(name for name in uncertainty if name.startswith("epistemic"))  # of the first target
    scores = score_block(estimator.ood_detector_, block, torch.from_numpy(uncertainty[first])).numpy()
    columns = {**columns, **uncertainty, "ood_score": scores, "is_ood": scores > estimator.threshold_}
    return _head(columns, rows)


def _join(estimator: Estimator, parts: list[dict[str, Array]]) -> pd.DataFrame:
    """A data frame of blocks of columns; the probabilities of single classes come last."""
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    last = set(_last_columns(estimator))
    return pd.DataFrame({name: columns[name] for name in sorted(columns, key=lambda name: name in last)})


def _last_columns(estimator: Any) -> list[str]:
    """Names of the columns with the probabilities of single classes, or of no event until some times."""
    if is_regression(estimator):
        return [f"p(>{horizon:g})" for horizon in getattr(estimator, "horizons_", ())]
    return [f"p({label})" for label in estimator.classes_]
