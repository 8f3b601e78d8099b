"""Figures of the table reports: calibration, intervals, accuracy-rejection, column contributions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from compound.estimators.row_predictions import RowScores
from compound.tables.confidence_intervals import Array, wilson_interval
from compound.tables.prediction_metrics import CalibrationPoint

BLUE, RED, LIGHT, GREY = "#0b3c8c", "#c1272d", "#9db4d6", "#888888"
MAX_ROWS = 60  # of an interval plot
MAX_LABEL = 60  # characters of an axis label
PLAIN_TEXT: dict[str, Any] = {"parse_math": False}  # labels come from tables, where "$" is no formula


def calibration_plot(points: Sequence[CalibrationPoint], is_regression: bool) -> Figure:
    """Nominal against observed coverage, or confidence against accuracy, with the diagonal."""
    nominal = np.array([point.nominal for point in points])
    observed = np.array([point.observed for point in points])
    rows = np.array([point.rows for point in points])
    errors = np.abs(wilson_interval(observed, rows) - observed)  # (2, points)
    figure = Figure(figsize=(4.6, 4.2))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1)
    axes.errorbar(
        nominal, observed, errors, color=BLUE, marker="o", markersize=4, linewidth=1.2, elinewidth=0.8
    )
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.set_xlabel("nominal coverage" if is_regression else "confidence")
    axes.set_ylabel("observed coverage" if is_regression else "accuracy")
    return figure


def interval_plot(predictions: pd.DataFrame, y: Array, target: str) -> Figure:
    """Prediction intervals (columns lower, mean, upper) of rows ordered by mean, and targets y (rows,)."""
    order = np.argsort(predictions["mean"].to_numpy(), kind="stable")
    lower, mean, upper = (predictions[name].to_numpy()[order] for name in ("lower", "mean", "upper"))
    y = y[order]
    position = np.arange(len(order))
    covered = (y >= lower) & (y <= upper)
    figure = Figure(figsize=(8, 3.6))
    axes = figure.subplots()
    axes.vlines(position, lower, upper, color=LIGHT, linewidth=3)
    axes.plot(position, mean, "_", color=BLUE, markersize=5)
    axes.plot(position[covered], y[covered], "o", color=BLUE, markersize=3)
    axes.plot(position[~covered], y[~covered], "X", color=RED, markersize=6)
    axes.set_xlabel("rows, ordered by predicted mean")
    axes.set_ylabel(_shorten(target), **PLAIN_TEXT)
    axes.set_xticks([])
    return figure


def accuracy_rejection_curve(scores: RowScores) -> Figure:
    """Accuracy on the most confident rows, against their fraction of all rows; for classification."""
    order = np.argsort(-scores.predictions["probability"].to_numpy(), kind="stable")
    n_rows = np.arange(1, len(order) + 1)
    figure = Figure(figsize=(5.6, 3.6))
    axes = figure.subplots()
    axes.plot(n_rows / len(order), np.cumsum(1 - scores.error[order]) / n_rows, color=BLUE)
    axes.set_xlabel("fraction of rows accepted, most confident first")
    axes.set_ylabel("accuracy")
    return figure


def contribution_bars(columns: Sequence[str], panels: Sequence[tuple[str, Sequence[float]]]) -> Figure:
    """One panel per (title, values) with one horizontal bar per column; negative values are lighter."""
    figure = Figure(figsize=(4.6 * len(panels), 0.8 + 0.3 * len(columns)), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, values) in zip(all_axes, panels, strict=True):
        axes.barh(range(len(columns)), values, color=[BLUE if value >= 0 else LIGHT for value in values])
        axes.set_yticks(range(len(columns)), [_shorten(column) for column in columns], **PLAIN_TEXT)
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.set_title(title, fontsize=10)
    figure.axes[0].invert_yaxis()
    return figure


def _shorten(name: str) -> str:
    """A name on one line of at most MAX_LABEL characters."""
    line = " ".join(name.split())
    return line if len(line) <= MAX_LABEL else f"{line[: MAX_LABEL - 1]}…"
