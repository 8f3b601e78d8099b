"""Pictures of answers: calibration, intervals, confidence, and which columns something comes from."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from compound.estimators.row_predictions import RowScores
from compound.tables.scores import Point, wilson

GOOD, BAD, PALE = "#0b3c8c", "#c1272d", "#9db4d6"
SHOWN = 60  # rows of an interval plot
LETTERS = 60  # of a name that is drawn
PLAIN: dict[str, Any] = {"parse_math": False}  # names come from tables, and "$" is no formula there


def calibration(points: Sequence[Point], targets: bool) -> Figure:
    """What was said against what was seen: on the diagonal the model is honest."""
    figure = Figure(figsize=(4.6, 4.2))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#888888", linewidth=1)
    said, seen = np.array([p.said for p in points]), np.array([p.seen for p in points])
    error = np.abs(wilson(seen, np.array([p.rows for p in points])) - seen)  # (2, points)
    axes.errorbar(said, seen, error, color=GOOD, marker="o", markersize=4, linewidth=1.2, elinewidth=0.8)
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.set_xlabel("coverage of the interval" if targets else "confidence")
    axes.set_ylabel("share of rows inside" if targets else "share of rows that were right")
    return figure


def intervals(
    frame: pd.DataFrame, truth: "np.ndarray[tuple[int], np.dtype[np.float64]]", target: str
) -> Figure:
    """Intervals (lower, mean, upper) of some rows, ordered by their mean, and the truth."""
    order = np.argsort(frame["mean"].to_numpy(), kind="stable")
    low, mean, high = (frame[name].to_numpy()[order] for name in ("lower", "mean", "upper"))
    truth, place = truth[order], np.arange(len(order))
    inside = (truth >= low) & (truth <= high)
    figure = Figure(figsize=(8, 3.6))
    axes = figure.subplots()
    axes.vlines(place, low, high, color=PALE, linewidth=3)
    axes.plot(place, mean, "_", color=GOOD, markersize=5)
    axes.plot(place[inside], truth[inside], "o", color=GOOD, markersize=3)
    axes.plot(place[~inside], truth[~inside], "X", color=BAD, markersize=6)
    axes.set_xlabel("rows, ordered by what was expected")
    axes.set_ylabel(_label(target), **PLAIN)
    axes.set_xticks([])
    return figure


def accuracy_rejection_curve(judged: RowScores) -> Figure:
    """Accuracy of the surest part of the rows: it should rise as the part gets smaller."""
    order = np.argsort(-judged.predictions["probability"].to_numpy(), kind="stable")
    count = np.arange(1, len(order) + 1)
    figure = Figure(figsize=(5.6, 3.6))
    axes = figure.subplots()
    axes.plot(count / len(order), np.cumsum(1 - judged.error[order]) / count, color=GOOD)
    axes.set_xlabel("part of the rows that are answered, surest first")
    axes.set_ylabel("accuracy")
    return figure


def shares(columns: Sequence[str], panels: Sequence[tuple[str, Sequence[float]]]) -> Figure:
    """For each panel one bar per column; shares that pull the other way point left."""
    figure = Figure(figsize=(4.6 * len(panels), 0.8 + 0.3 * len(columns)), layout="constrained")
    for axes, (title, values) in zip(
        figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels, strict=True
    ):
        axes.barh(range(len(columns)), values, color=[GOOD if value >= 0 else PALE for value in values])
        axes.set_yticks(range(len(columns)), [_label(column) for column in columns], **PLAIN)
        axes.axvline(0, color="#888888", linewidth=0.8)
        axes.set_title(title, fontsize=10)
    figure.axes[0].invert_yaxis()
    return figure


def _label(name: str) -> str:
    """A name in one line that leaves room for the picture."""
    line = " ".join(name.split())
    return line if len(line) <= LETTERS else f"{line[: LETTERS - 1]}…"
