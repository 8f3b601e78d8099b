"""Why a row is strange and why its answer is in doubt, column by column.

Strangeness. The score is the length of the whitened difference between the row and the nearest prototype. Turned back by the
eigenvectors (zero-phase whitening: of all whitened coordinates the ones closest to the columns, Kessy et al. 2018) each coordinate
belongs to one encoded number; their squares add up to the squared score, those of one column are its share. Shapes of clusters, which
wide tables have, turn the whitened difference by a symmetric root, which keeps that.

Doubt. The row is reached from the nearest prototype in small equal steps along a straight line, so that on the way columns keep
going together; within a step the columns move one after the other. A column's share is what the epistemic part rises by when it
moves: the integral of the gradient (Sundararajan et al. 2017) without a gradient, and the shares add up to the whole rise exactly.
Swapping values column by column, as Shapley values do, would ask about rows that cannot be (a heavy diamond of small width).

Prototypes are the centres of the training rows that the score is measured from, in the table's own units. No training row is kept.
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
from compound.estimators.encoder import CategoricalColumn, Encoder, NumericColumn
from compound.estimators.row_predictions import epistemic, predict_frame
from compound.estimators.validation import encode_table
from compound.ood.noise import DistanceAwareNoise
from compound.random import named_generator
from compound.tables.reading import asked_table, load_estimator

Array = NDArray[Any]
STEPS = 32  # from the prototype to the row, each walked in both orders of the columns
PROTOTYPES = 3
SURE = 0.995  # share of a centre's rows that is as good as all
ROUNDING = (
    1e-5  # standard deviations: centres are kept in float32, and nearer to zero than this a mean is zero
)


class Share(NamedTuple):
    """What one column has to do with it."""

    column: str
    value: str
    prototype: str  # the nearest one's value
    ood_share: float  # part of the squared score, 0 to 1
    epistemic: float  # in the unit of the epistemic part


@dataclass(frozen=True)
class Explanation:
    answer: pd.DataFrame  # one row, the columns of `predict_frame`
    threshold: float
    shares: list[Share]  # strangest column first
    prototypes: pd.DataFrame  # nearest first; the columns of the table
    distances: list[float]  # of the prototypes
    usual: float  # epistemic part of the nearest prototype


def explain_row(model: Path, table: Path, row: int, seed: int) -> Explanation:
    """Row `row` of a table file, counted from 1."""
    estimator = load_estimator(model)
    rows = asked_table(table, estimator)
    if row > len(rows):
        raise ValueError(f"{table} has {len(rows):,} rows: there is no row {row}")
    return explain(
        estimator, rows.iloc[row - 1 : row].reset_index(drop=True), named_generator(seed, "explain")
    )


def explain(estimator: Estimator, row: pd.DataFrame, generator: Generator) -> Explanation:
    """`row` is a table of one row."""
    x, encoder = encode_table(estimator, row), estimator.encoder_
    far = estimator.ood_detector_.far
    centres, near = centre_rows(far), near_centres(far, x[0])
    parts = _by_column(encoder, contributions(far, x[0], near[0]).numpy())
    rises, usual = path_shares(estimator, x[0], centres[near[0]], generator)
    spelt = pd.DataFrame(
        [spell(encoder, centre) for centre in centres[near]], columns=[c.name for c in encoder.columns]
    )
    total = max(float(parts.sum()), np.finfo(np.float64).tiny)
    shares = [
        Share(
            column.name,
            _shown(column, row[column.name].iloc[0]),
            str(spelt[column.name].iloc[0]),
            float(part / total),
            float(rise),
        )
        for column, part, rise in zip(encoder.columns, parts, rises, strict=True)
    ]
    shares.sort(key=lambda share: -share.ood_share)
    distances = [float(contributions(far, x[0], k).sum().sqrt()) for k in near]
    return Explanation(predict_frame(estimator, row), estimator.threshold_, shares, spelt, distances, usual)


def centre_rows(far: DistanceAwareNoise) -> Tensor:  # (centres, width) float64
    """The centres as encoded rows: whitening undone; directions that whitening leaves out stay at the mean."""
    whiten = far.whiten.double()
    lengths = whiten.square().sum(0)  # eigenvectors have length 1
    return far.shift.double() + far.centres.double() @ (whiten / lengths).T


def near_centres(far: DistanceAwareNoise, x: Tensor) -> list[int]:
    """The PROTOTYPES nearest ones, in ordinary whitened length; the first is the one that the score is measured from."""
    u = (x.double() - far.shift.double()) @ far.whiten.double()
    return (u - far.centres.double()).square().sum(-1).argsort()[:PROTOTYPES].tolist()


def contributions(far: DistanceAwareNoise, x: Tensor, k: int) -> Tensor:  # (width,)
    """Squares that add up to the squared distance of x (encoded) from centre k."""
    whiten = far.whiten.double()
    length = whiten.square().sum(0).sqrt()
    vectors = whiten / length  # (width, rank), orthonormal
    difference = x.double() - far.shift.double()
    along = difference @ vectors
    gap, rest = along * length - far.centres[k].double(), far.rest.double()
    if len(far.precision_roots):
        gap, rest = gap @ far.precision_roots[k].double(), rest * far.residual_precision[k].double().sqrt()
    return (gap @ vectors.T + rest * (difference - along @ vectors.T)).square()


def path_shares(estimator: Estimator, x: Tensor, start: Tensor, generator: Generator) -> tuple[Array, float]:
    """Each column's share (columns,) of the rise of the epistemic part from `start` to x (both encoded), and that of `start`."""
    spans = _spans(estimator.encoder_)
    stops = [torch.lerp(start.double(), x.double(), step / STEPS).float() for step in range(STEPS + 1)]
    orders, walks = [], []
    for before, after in pairwise(stops):
        order = torch.randperm(len(spans), generator=generator).tolist()
        for way in (
            order,
            order[::-1],
        ):  # the two together: what a pair of columns does jointly is halved between them
            orders.append(way)
            walks.append(_walk(before, after, spans, way))
    values = epistemic(estimator, torch.cat(walks)).reshape(len(orders), len(spans) + 1)
    rises = np.zeros(len(spans))
    for order, walk in zip(orders, values, strict=True):
        rises[order] += np.diff(walk) / 2
    return rises, float(values[0, 0])


def spell(encoder: Encoder, centre: Tensor) -> list[str]:
    """An encoded row in the table's own units; words with their share where the rows of a centre differ."""
    out = []
    for column, span in zip(encoder.columns, _spans(encoder), strict=True):
        part = centre[span].tolist()
        out.append(_number(column, part) if isinstance(column, NumericColumn) else _word(column, part))
    return out


def _walk(
    before: Tensor, after: Tensor, spans: Sequence[slice], order: Sequence[int]
) -> Tensor:  # (columns + 1, width)
    rows = before.repeat(len(order) + 1, 1)
    for step, column in enumerate(order, 1):
        rows[step:, spans[column]] = after[spans[column]]
    return rows


def _spans(encoder: Encoder) -> list[slice]:
    ends = np.cumsum([0, *(column.width for column in encoder.columns)]).tolist()
    return [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]


def _by_column(encoder: Encoder, values: Array) -> Array:
    return np.array([values[span].sum() for span in _spans(encoder)])


def _number(column: NumericColumn, part: Sequence[float]) -> str:
    if column.has_missing and part[1] > 0.5:
        return "missing"
    value = part[0] * column.scale + column.mean
    if column.boolean:
        likely = max(value, 1 - value)
        return f"{value > 0.5}" if likely > SURE else f"{value > 0.5} ({100 * likely:.0f}%)"
    return f"{0.0 if abs(value) < ROUNDING * column.scale else value:.4g}"


def _word(column: CategoricalColumn, part: Sequence[float]) -> str:
    names = ["missing" if value is None else value for value in column.values] + ["other"]
    best = int(np.argmax(part))
    return names[best] if part[best] > SURE else f"{names[best]} ({100 * part[best]:.0f}%)"


def _shown(column: NumericColumn | CategoricalColumn, value: Any) -> str:
    if value is None or value != value:
        return "missing"
    if isinstance(column, NumericColumn) and column.boolean and value in (0, 1):
        return str(bool(value))
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)
