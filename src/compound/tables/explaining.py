"""`compound explain`: contributions of the columns to a row's distance and to its epistemic uncertainty.

Distance, one of the witnesses of the OOD score. It is the norm of the whitened difference between the row and
the nearest prototype. The difference is rotated back by the eigenvectors (ZCA whitening, Kessy et al. 2018),
so that each coordinate belongs to one encoded feature; the squared coordinates add up to the squared
distance. Where the clusters have precision matrices (wide tables), the whitened difference is first
multiplied by their symmetric square root.

Epistemic uncertainty. Rows are evaluated on a straight line from the nearest prototype to the row, in small
equal steps, so that correlated columns change together; within a step, one column changes after another. A
column's contribution is the sum of the increases of the epistemic component at its changes, a finite
difference form of integrated gradients (Sundararajan et al. 2017); contributions add up to the total
increase. Shapley values would evaluate implausible rows (a heavy diamond of small width).

Prototypes are the cluster centres of the training rows in the OOD distance, decoded to the units of the
table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from compound.estimators.base import Estimator
from compound.estimators.encoder import Column, Encoder
from compound.estimators.encoder_columns import CategoricalColumn, NumericColumn
from compound.estimators.prediction import epistemic
from compound.estimators.row_predictions import first_target_frame
from compound.estimators.time_column import TimeColumn
from compound.estimators.times import format_time, time_values
from compound.estimators.validation import encode_table
from compound.ood.distance import Distance
from compound.random import named_generator
from compound.tables.model_inputs import load_estimator, read_features

Array = NDArray[Any]
STEPS = 32  # of the path; in each, the columns change in a random order and in its reverse
N_PROTOTYPES = 3
PURE = 0.995  # a category of more than this fraction of a cluster is shown without its percentage
ROUNDING = 1e-5  # standard deviations: centres are stored in float32, means closer to zero than this are zero


class Contribution(NamedTuple):
    """Contribution of one column to the whitened distance and to the epistemic uncertainty of a row."""

    column: str
    value: str  # in the row
    prototype: str  # value in the nearest prototype
    distance: float  # fraction of the squared distance, 0 to 1
    epistemic: float  # increase, in the unit of the epistemic component


@dataclass(frozen=True)
class Explanation:
    """Prediction of a row, with the contributions of its columns and the nearest prototypes."""

    prediction: pd.DataFrame  # one row, the columns of `first_target_frame`
    threshold: float  # of ood_score
    contributions: list[Contribution]  # largest contribution to the distance first
    prototypes: pd.DataFrame  # nearest first; the columns of the table
    distances: list[float]  # of the prototypes
    prototype_epistemic: float  # epistemic component at the nearest prototype


def explain_row(model: Path, table: Path, row: int | None, seed: int) -> tuple[int, Explanation]:
    """Explain row `row`, counted from 1, of a table file; None: that of the highest OOD score.

    Returns the number of the row too.
    """
    estimator = load_estimator(model)
    features = read_features(table, estimator)
    if row is not None and row > len(features):
        raise ValueError(f"{table} has {len(features):,} rows: there is no row {row}")
    if row is None:
        row = 1 + int(estimator.ood_score(features).argmax())
    selected = features.iloc[row - 1 : row].reset_index(drop=True)
    return row, explain(estimator, selected, named_generator(seed, "explain"))


def explain(estimator: Estimator, row: pd.DataFrame, generator: Generator) -> Explanation:
    """How much each column adds to the OOD score and to the epistemic uncertainty of `row`.

    `row` is a data frame of one row; `generator` draws the order in which columns change (see above).
    """
    encoder = estimator.encoder_
    distance = estimator.ood_detector_.distance
    x = encode_table(estimator, row)[0]
    centres = centre_rows(distance)
    nearest = nearest_centres(distance, x)
    squares = _sum_by_column(encoder, squared_distance_terms(distance, x, nearest[0]).numpy(), row)
    total = max(float(squares.sum()), np.finfo(np.float64).tiny)
    surprises = torch.from_numpy(encoder.surprises(row)[0]).float()
    increases, prototype_epistemic = path_contributions(
        estimator, x, centres[nearest[0]], surprises, generator
    )
    names = [column.name for column in encoder.columns]
    prototypes = pd.DataFrame([decode_row(encoder, centre) for centre in centres[nearest]], columns=names)
    contributions = [
        Contribution(
            column.name,
            _format_value(column, row[column.name].iloc[0]),
            str(prototypes[column.name].iloc[0]),
            float(square / total),
            float(increase),
        )
        for column, square, increase in zip(encoder.columns, squares, increases, strict=True)
    ]
    contributions.sort(key=lambda contribution: -contribution.distance)
    return Explanation(
        first_target_frame(estimator, row),
        estimator.threshold_,
        contributions,
        prototypes,
        [float(squared_distance_terms(distance, x, k).sum().sqrt()) for k in nearest],
        prototype_epistemic,
    )


def centre_rows(distance: Distance) -> Tensor:  # (centres, width) float64
    """Cluster centres as encoded rows, by inverting the whitening; directions it drops are at the mean."""
    whiten = distance.whiten.double()
    squared_norms = whiten.square().sum(0)  # columns are scaled eigenvectors
    return distance.shift.double() + distance.centres.double() @ (whiten / squared_norms).T


def nearest_centres(distance: Distance, x: Tensor) -> list[int]:
    """Indices of the N_PROTOTYPES centres nearest to x (width,), whitened; the distance is to the first."""
    u = (x.double() - distance.shift.double()) @ distance.whiten.double()
    return (u - distance.centres.double()).square().sum(-1).argsort()[:N_PROTOTYPES].tolist()


def squared_distance_terms(distance: Distance, x: Tensor, k: int) -> Tensor:  # (width,)
    """Squares, one per encoded feature, that add up to the squared distance of x (width,) from centre k."""
    whiten = distance.whiten.double()
    norms = whiten.square().sum(0).sqrt()
    eigenvectors = whiten / norms  # (width, rank), orthonormal
    difference = x.double() - distance.shift.double()
    projection = difference @ eigenvectors
    whitened = projection * norms - distance.centres[k].double()
    residual_scale = distance.residual_scale.double()
    if len(distance.precision_roots):
        whitened = whitened @ distance.precision_roots[k].double()
        residual_scale = residual_scale * distance.residual_precision[k].double().sqrt()
    residual = difference - projection @ eigenvectors.T
    return (whitened @ eigenvectors.T + residual_scale * residual).square()


def path_contributions(
    estimator: Estimator, x: Tensor, start: Tensor, surprises: Tensor, generator: Generator
) -> tuple[Array, float]:
    """Contributions of the columns to the epistemic component at x, relative to `start`.

    x and start are encoded rows (width,); surprises (columns,) are those of the values of x, which
    `estimators.encoder` defines. Returns the increases (columns,) and the value at `start`.
    """
    spans = _column_slices(estimator.encoder_)
    points = [torch.lerp(start.double(), x.double(), step / STEPS).float() for step in range(STEPS + 1)]
    orders = []
    walks = []
    for before, after in pairwise(points):
        order = torch.randperm(len(spans), generator=generator).tolist()
        for direction in (
            order,
            order[::-1],
        ):  # both orders, so that an interaction of two columns is split equally
            orders.append(direction)
            walks.append(_change_in_turn(before, after, spans, surprises / STEPS, direction))
    values = epistemic(estimator, torch.cat(walks)).numpy().reshape(len(orders), len(spans) + 1)
    increases = np.zeros(len(spans))
    for order, walk in zip(orders, values, strict=True):
        increases[order] += np.diff(walk) / 2
    return increases, float(values[0, 0])


def _change_in_turn(
    before: Tensor, after: Tensor, spans: Sequence[slice], surprises: Tensor, order: Sequence[int]
) -> Tensor:
    """Encoded rows (columns + 1, width); row k has the first k columns of `order` from `after`.

    The last number, the surprise, grows by that of each column, surprises (columns,).
    """
    rows = before.repeat(len(order) + 1, 1)
    for step, column in enumerate(order, 1):
        rows[step:, spans[column]] = after[spans[column]]
        rows[step:, -1] += surprises[column]
    return rows


def _column_slices(encoder: Encoder) -> list[slice]:
    """The positions of each column in an encoded row."""
    ends = np.cumsum([0, *(column.width for column in encoder.columns)]).tolist()
    return [slice(start, stop) for start, stop in pairwise(ends)]


def _sum_by_column(encoder: Encoder, values: Array, row: pd.DataFrame) -> Array:  # (width,) -> (columns,)
    """Sum the values of each column's numbers; that of the surprise goes to the columns that caused it."""
    surprises = encoder.surprises(row)[0]
    shares = surprises / max(surprises.sum(), np.finfo(np.float64).tiny)
    return np.array([values[span].sum() for span in _column_slices(encoder)]) + values[-1] * shares


def decode_row(encoder: Encoder, centre: Tensor) -> list[str]:
    """A cluster centre (width,) as text, one per column; mixed categories as the mode and its percentage."""
    out = []
    for column, span in zip(encoder.columns, _column_slices(encoder), strict=True):
        values = centre[span].tolist()
        if isinstance(column, NumericColumn):
            out.append(_decode_number(column, values))
        elif isinstance(column, TimeColumn):
            out.append(_decode_time(column, values))
        else:
            out.append(_decode_category(column, values))
    return out


def _decode_number(column: NumericColumn, values: Sequence[float]) -> str:
    """Text of a numeric or boolean column; `values` is its part of a cluster centre."""
    if column.has_missing and values[1] > 0.5:
        return "missing"
    value = values[0] * column.scale + column.mean
    if column.boolean:
        proportion = max(value, 1 - value)
        return f"{value > 0.5}" if proportion > PURE else f"{value > 0.5} ({100 * proportion:.0f}%)"
    return f"{0.0 if abs(value) < ROUNDING * column.scale else value:.4g}"


def _decode_time(column: TimeColumn, values: Sequence[float]) -> str:
    """The time that has passed, as a date; `values` is the column's part of a cluster centre."""
    if column.elapsed.has_missing and values[1] > 0.5:
        return "missing"
    return format_time(values[0] * column.elapsed.scale + column.elapsed.mean, column.has_clock)


def _decode_category(column: CategoricalColumn, values: Sequence[float]) -> str:
    """The commonest category; `values` are the fractions of the cluster in each category."""
    names = ["missing" if value is None else value for value in column.values] + ["other"]
    mode = int(np.argmax(values))
    return names[mode] if values[mode] > PURE else f"{names[mode]} ({100 * values[mode]:.0f}%)"


def _format_value(column: Column, value: Any) -> str:
    if value is None or value != value:
        return "missing"
    if isinstance(column, TimeColumn):
        return format_time(float(time_values(pd.Series([value]), column.name)[0]), column.has_clock)
    if isinstance(column, NumericColumn) and column.boolean and value in (0, 1):
        return str(bool(value))
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)
