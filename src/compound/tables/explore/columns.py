"""The controls of a page, one per column of the table: their kinds, ranges, options and usual values."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compound.estimators.base import Estimator
from compound.estimators.columns import category_values, numeric_values
from compound.estimators.encoder import Column, Encoder
from compound.estimators.encoder_columns import SURE, CategoricalColumn, NumericColumn
from compound.estimators.time_column import TimeColumn
from compound.estimators.times import DAYS, time_values

Array = NDArray[Any]
Spec = dict[str, Any]  # JSON
BINS = 24  # of the histogram below a slider
BEYOND = 0.2  # of its range that a slider goes beyond the training rows
INTEGER_TOLERANCE = 1e-3  # standardised values are float32


def controls(estimator: Estimator) -> list[Spec]:
    """What the page needs of each column; histograms and usual values are those of a sample of training rows.

    No single row can be read from them.
    """
    encoder = estimator.encoder_
    sample = estimator.ood_detector_.sample.double().numpy() * encoder.scale + encoder.shift
    start = 0
    out = []
    for column in encoder.columns:
        values = sample[:, start : start + column.width]
        out.append({"name": column.name, "at": start, "width": column.width, **_control(column, values)})
        start += column.width
    return out


def row_values(encoder: Encoder, table: pd.DataFrame) -> list[list[Any]]:
    """The rows of a table as values of the controls: numbers, numbers of options, or None where missing."""
    columns = [_page_values(c, table.iloc[:, i]) for i, c in enumerate(encoder.columns)]
    return [list(row) for row in zip(*columns, strict=True)]


def _control(column: Column, values: Array) -> Spec:
    """The control of a column; `values` (rows, width) are encoded, not standardised."""
    if isinstance(column, CategoricalColumn):
        options = category_options(column)
        counts = values.sum(0)
        return {
            "kind": "category",
            "options": options,
            "counts": counts.tolist(),
            "usual": int(counts.argmax()) if len(counts) else 0,
        }
    number = column.elapsed if isinstance(column, TimeColumn) else column
    present = values[:, 0] if not number.has_missing else values[values[:, 1] < 0.5, 0]
    if number.boolean:
        usual = None if not len(present) else float(present.mean() > 0.5)
        return {"kind": "boolean", "number": _finite(number), "usual": usual}
    low, high = _range(number, present)
    spec = {
        "kind": "number",
        "number": _finite(number),
        "low": low,
        "high": high,
        "histogram": np.histogram(present, BINS, (low, high))[0].tolist(),
        "integer": bool(len(present)) and _are_integers(present, number.scale),
        "usual": number.fill,
    }
    if isinstance(column, TimeColumn):
        parts = [asdict(part) for part in column.parts]
        spec |= {"kind": "time", "parts": parts, "clock": column.has_clock, "days": DAYS, "integer": False}
    return spec


def _finite(number: NumericColumn) -> Spec:
    """The fields of a column as JSON knows them: no bound is None."""
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in asdict(number).items()}


def _range(number: NumericColumn, values: Array) -> tuple[float, float]:
    """Ends of a slider: those of the training rows, and some more."""
    known = np.isfinite(number.low) and np.isfinite(number.high)
    low, high = (number.low, number.high) if known else (values.min(initial=0), values.max(initial=1))
    width = (high - low) or max(1.0, abs(high))
    return float(low - BEYOND * width), float(high + BEYOND * width)


def _are_integers(values: Array, scale: float) -> bool:
    return (
        bool((np.abs(values - values.round()) < INTEGER_TOLERANCE * max(scale, 1e-3)).all()) and scale > 0.1
    )


def category_options(column: CategoricalColumn) -> list[Spec]:
    """The choices of a category: its values, a rare one, one never seen, and a missing value.

    Each has the indicator that is set (None: no one) and the surprise.
    """
    rare = len(column.values) if column.has_other else None
    options = [
        {
            "label": "missing" if value is None else value,
            "plain": value is not None,
            "index": i,
            "surprise": 0.0,
        }
        for i, value in enumerate(column.values)
    ]
    if column.has_other and column.rare != ():
        options.append({"label": "a rare value", "plain": False, "index": rare, "surprise": 0.0})
    new = 0.0 if column.rare is None else SURE
    if new or not column.has_other:
        options.append({"label": "a value never seen", "plain": False, "index": rare, "surprise": new})
    if None not in column.values:
        options.append(
            {
                "label": "missing",
                "plain": False,
                "index": rare,
                "surprise": float(column.surprise(np.array([None], dtype=object))[0]),
            }
        )
    return options


def _page_values(column: Column, values: "pd.Series[Any]") -> Sequence[Any]:
    """A column of a table as values of its control."""
    if isinstance(column, CategoricalColumn):
        return _page_options(column, category_values(values))
    read = time_values if isinstance(column, TimeColumn) else numeric_values
    numbers = read(values, column.name)
    return [None if np.isnan(number) else float(number) for number in numbers]


def _page_options(column: CategoricalColumn, labels: Array) -> list[int]:
    """The number of the option for each label (rows,)."""
    options = category_options(column)
    indicators = np.zeros((len(labels), column.width))
    column.encode(indicators, labels)
    keys = zip(indicators, column.surprise(labels), labels, strict=True)
    out = []
    for indicator, surprise, label in keys:
        index = int(indicator.argmax()) if indicator.any() else None
        same = [
            k
            for k, option in enumerate(options)
            if option["index"] == index and option["surprise"] == surprise
        ]
        missing = [k for k in same if options[k]["label"] == "missing" and not options[k]["plain"]]
        out.append((missing or same)[0] if label is None else same[0])
    return out
