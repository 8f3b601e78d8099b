"""Figures of the table reports: calibration, intervals, PIT, quantiles, risk, contributions of columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import binom

from compound.tables.confidence_intervals import Array, wilson_interval
from compound.tables.importance import Dependence
from compound.tables.prediction_metrics import CalibrationPoint
from compound.tables.row_measures import QuantilePoint, RiskPoint

BLUE, RED, LIGHT, GREY = "#0b3c8c", "#c1272d", "#9db4d6", "#888888"
MAX_ROWS = 60  # of an interval plot
MAX_LABEL = 60  # characters of an axis label
MAX_TICK = 14  # characters of a value on an axis
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


def risk_plot(points: Sequence[RiskPoint], risk: str) -> Figure:
    """A risk-coverage curve; `risk` names the vertical axis."""
    figure = Figure(figsize=(5.6, 3.6))
    axes = figure.subplots()
    axes.plot([point.accepted for point in points], [point.risk for point in points], color=BLUE)
    axes.set(xlim=(0, 1.02), ylim=(0, None))
    axes.set_xlabel("fraction of rows accepted, most certain first")
    axes.set_ylabel(f"{risk} on these rows")
    return figure


def pit_plot(counts: Array) -> Figure:
    """A histogram of PITs with the range that 95% of the counts of uniform PITs lie in."""
    rows, bins = int(counts.sum()), len(counts)
    figure = Figure(figsize=(4.2, 3.2))
    axes = figure.subplots()
    low, high = binom.ppf([0.025, 0.975], rows, 1 / bins) * bins / rows
    axes.axhspan(low, high, color=GREY, alpha=0.25, linewidth=0)
    axes.bar((np.arange(bins) + 0.5) / bins, counts * bins / rows, 0.92 / bins, color=BLUE)
    axes.axhline(1, color=GREY, linewidth=1)
    axes.set(xlim=(0, 1), xlabel="PIT", ylabel="density")
    return figure


def quantile_plot(points: Sequence[QuantilePoint]) -> Figure:
    """Levels of quantiles against the fraction of targets below them, with the diagonal."""
    level = np.array([point.level for point in points])
    observed = np.array([point.observed for point in points])
    errors = np.abs(wilson_interval(observed, np.array([point.rows for point in points])) - observed)
    figure = Figure(figsize=(4.2, 3.2))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1)
    axes.errorbar(level, observed, errors, color=BLUE, marker="o", markersize=3, linewidth=1, elinewidth=0.7)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="level", ylabel="targets below")
    return figure


def dependence_plot(curve: Dependence, target: str) -> Figure:
    """Partial dependence: a line with a band for numbers and times, points with bars for categories."""
    figure = Figure(figsize=(4.2, 3.0), layout="constrained")
    axes = figure.subplots()
    if isinstance(curve.values[0], str | bool | np.bool_):
        place = np.arange(len(curve.values))
        axes.vlines(place, curve.low, curve.high, color=LIGHT, linewidth=6)
        axes.plot(place, curve.mean, "o", color=BLUE, markersize=5)
        labels = [_shorten(str(value), MAX_TICK) for value in curve.values]
        turn = 30 if sum(map(len, labels)) > 36 else 0
        axes.set_xticks(place, labels, rotation=turn, ha="right" if turn else "center", **PLAIN_TEXT)
    else:
        axes.fill_between(curve.values, curve.low, curve.high, color=LIGHT, alpha=0.6, linewidth=0)
        axes.plot(curve.values, curve.mean, color=BLUE)
        axes.tick_params("x", labelrotation=0 if np.isreal(curve.values[0]) else 30)
    axes.set_xlabel(_shorten(curve.column, 40), **PLAIN_TEXT)
    axes.set_ylabel(_shorten(target if curve.label is None else f"p({curve.label})", 40), **PLAIN_TEXT)
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


def _shorten(name: str, most: int = MAX_LABEL) -> str:
    """A name on one line of at most this many characters."""
    line = " ".join(name.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
