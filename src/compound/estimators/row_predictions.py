"""Everything an estimator says about each row of a table, in one pass over the model.

`predict_frame` gives the columns that a person reads. `score_frame` compares the answers with the truth. `epistemic` and `ood_scores`
start from encoded rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compound import metrics
from compound.estimators.base import Array, Estimator
from compound.estimators.calibration import aps_score, quantile, score
from compound.estimators.prediction import blocks, first, sound
from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive

BETWEEN = "|"  # labels of a set

RowCallback = Callable[[int], None]  # told how many rows are done


@dataclass(frozen=True)
class RowScores:
    """Answers beside the truth, row by row."""

    answers: pd.DataFrame  # the columns of `predict_frame`, without an interval or set
    nll: Array  # (rows,)
    error: Array  # (rows,) truth minus mean, or 1 where the class is wrong
    score: Array  # (rows,) how far out the truth lies: |z|, or the probability of all classes before the true one
    brier: Array  # (rows,) squared distance of the probabilities from the truth; NaN for numbers
    levels: Array  # of coverage
    inside: Array  # (rows, levels) the interval or set of that coverage holds the truth

    def __len__(self) -> int:
        return len(self.nll)


def is_targets(estimator: Estimator) -> bool:
    return estimator.model_.task.kind == "regression"


def encoded(estimator: Estimator, table: pd.DataFrame) -> Tensor:  # (rows, width)
    """The rows as the model takes them, in standard units."""
    return estimator._encoded(table)


def predict_frame(estimator: Estimator, table: pd.DataFrame, coverage: float = 0.9) -> pd.DataFrame:
    """One line per row. Numbers: mean, std, lower, upper. Classes: class, probability, set (labels that hold the truth with
    probability `coverage`). Both: aleatoric, epistemic, ood_score, is_ood. Classes, last: the probability of each."""
    if not 0 < coverage < 1:
        raise ValueError(f"coverage is {coverage}: it must lie between 0 and 1, such as 0.9")
    x = encoded(estimator, table)
    parts = []
    for answer, rows in _blocks(estimator, x):
        if isinstance(answer, GaussianPredictive):
            reach = estimator.intervals_.conformal_quantile(coverage)  # type: ignore[attr-defined]
            ends = {
                "lower": quantile(answer, -reach)[:, 0].numpy(),
                "upper": quantile(answer, reach)[:, 0].numpy(),
            }
        else:
            ends = {"set": _sets(estimator, answer, coverage)}
        parts.append(_cut({**_best(estimator, answer), **ends, **_doubts(answer)}, rows))
    return _with_ood_columns(estimator, x, parts)


def no_progress(done: int) -> None:
    """A watch that tells nobody."""


def score_frame(
    estimator: Estimator, table: pd.DataFrame, y: Array, levels: Array, callback: RowCallback = no_progress
) -> RowScores:
    """`y` holds numbers, or places in `classes_`."""
    x, start = encoded(estimator, table), 0
    parts, truths = [], []
    for answer, rows in _blocks(estimator, x):
        own = torch.tensor(y[start : start + rows])
        start += len(own)
        parts.append(_cut({**_best(estimator, answer), **_doubts(answer)}, rows))
        truths.append(_compared(first(answer, rows), own))
        callback(start)
    found = _with_ood_columns(estimator, x, parts)
    nll, error, far, brier = (np.concatenate(column) for column in zip(*truths, strict=True))
    if is_targets(estimator):
        reach = [float(estimator.intervals_.conformal_quantile(float(level))[0]) for level in levels]  # type: ignore[attr-defined]
        inside = far[:, None] <= np.array(reach)
    else:
        inside = far[:, None] <= np.array(
            [estimator.sets_.conformal_quantile(float(level)) for level in levels]
        )  # type: ignore[attr-defined]
    return RowScores(found, nll, error, far, brier, levels, inside)


def uncertainty_frame(estimator: Estimator, table: pd.DataFrame) -> pd.DataFrame:
    """The columns of `predict_frame`, without an interval or set."""
    x = encoded(estimator, table)
    return _with_ood_columns(
        estimator,
        x,
        [_cut({**_best(estimator, answer), **_doubts(answer)}, n) for answer, n in _blocks(estimator, x)],
    )


def epistemic(estimator: Estimator, x: Tensor) -> Array:  # (rows,)
    """The epistemic part of the answers to encoded rows."""
    return torch.cat(
        [
            answer.epistemic.reshape(len(answer.component), -1)[:rows, 0]
            for answer, rows in _blocks(estimator, x)
        ]
    ).numpy()


def ood_scores(estimator: Estimator, x: Tensor) -> Array:  # (rows,)
    """The score of strangeness of encoded rows."""
    return estimator._ood_scores(x)


def _blocks(estimator: Estimator, x: Tensor) -> Iterator[tuple[Predictive, int]]:
    """Answers, padding included, and how many rows of each are meant: cut what was computed, not what it is computed from."""
    return (
        (sound(estimator._postprocess(answer)), rows)
        for answer, rows in blocks(estimator.model_, x, estimator.seed_)
    )


def _cut(columns: dict[str, Array], rows: int) -> dict[str, Array]:
    return {name: values[:rows] for name, values in columns.items()}


def _best(estimator: Estimator, answer: Predictive) -> dict[str, Array]:
    if isinstance(answer, GaussianPredictive):
        return {"mean": answer.mean[:, 0].numpy(), "std": answer.std[:, 0].numpy()}
    assert isinstance(answer, CategoricalPredictive)
    classes = estimator.classes_  # type: ignore[attr-defined]
    each = {name: answer.probs[:, i].numpy() for i, name in enumerate(_each(estimator))}
    return {"class": classes[answer.label.numpy()], "probability": answer.confidence.numpy(), **each}


def _doubts(answer: Predictive) -> dict[str, Array]:
    rows = len(answer.component)
    return {
        name: getattr(answer, name).reshape(rows, -1)[:, 0].numpy() for name in ("aleatoric", "epistemic")
    }


def _sets(estimator: Estimator, answer: Predictive, coverage: float) -> Array:
    """The classes of the conformal set, most probable first."""
    assert isinstance(answer, CategoricalPredictive)
    order = answer.probs.argsort(dim=-1, descending=True, stable=True)
    reach = estimator.sets_.conformal_quantile(coverage)  # type: ignore[attr-defined]
    within = (aps_score(answer.probs).gather(-1, order) <= reach).numpy()
    names = np.array([str(label) for label in estimator.classes_], dtype=object)  # type: ignore[attr-defined]
    return np.array(
        [BETWEEN.join(names[o[w]]) for o, w in zip(order.numpy(), within, strict=True)], dtype=object
    )


def _compared(answer: Predictive, y: Tensor) -> tuple[Array, Array, Array, Array]:
    """NLL, error, score and Brier score of every row."""
    if isinstance(answer, GaussianPredictive):
        column = y.double().unsqueeze(-1)  # (rows, 1)
        nothing = torch.full_like(y, torch.nan, dtype=torch.float64)
        found = (
            -answer.log_prob(column),
            column[:, 0] - answer.mean[:, 0],
            score(answer, column)[:, 0],
            nothing,
        )
    else:
        assert isinstance(answer, CategoricalPredictive)
        likelier = aps_score(answer.probs).gather(-1, y.unsqueeze(-1)).squeeze(-1)
        distance = metrics.brier_scores(answer.probs, y)
        found = (-answer.log_prob(y), (answer.label != y).double(), likelier, distance)
    a, b, c, d = (value.double().numpy() for value in found)
    return a, b, c, d


def _with_ood_columns(estimator: Estimator, x: Tensor, parts: list[dict[str, Array]]) -> pd.DataFrame:
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    columns["ood_score"] = ood_scores(estimator, x)
    columns["is_ood"] = columns["ood_score"] > estimator.threshold_
    return pd.DataFrame(
        {name: columns[name] for name in sorted(columns, key=lambda name: name in _each(estimator))}
    )


def _each(estimator: Estimator) -> list[str]:
    """The probabilities of single classes stand last."""
    return [] if is_targets(estimator) else [f"p({label})" for label in estimator.classes_]  # type: ignore[attr-defined]
