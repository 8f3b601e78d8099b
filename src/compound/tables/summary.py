"""Plain sentences about a model's results, for the top of its pages."""

from collections.abc import Mapping, Sequence

import numpy as np

from compound.report.page import format_number
from compound.tables.confidence_intervals import Array, Metric
from compound.tables.prediction_metrics import COVERAGE, NOMINAL
from compound.tables.slices import RANKED, Slice, lowest_coverage


def error_sentence(metrics: Mapping[str, Metric], is_regression: bool, y: Array | None = None) -> str:
    """How large errors are; of targets y (rows,), if given, relative to their standard deviation."""
    if not is_regression:
        accuracy = metrics["accuracy"]
        return f"The predicted class is right for {_range(accuracy)} of the rows."
    rmse = format_number(metrics["RMSE"].value, 3)
    sentence = f"Predictions are off by {rmse} on average (root mean square)"
    if y is None or not np.std(y) > 0:
        return f"{sentence}."
    explained = 1 - (metrics["RMSE"].value / float(np.std(y))) ** 2
    if explained <= 0:
        return f"{sentence}, no better than the mean of the target."
    return f"{sentence}; they explain {100 * explained:.0f}% of the variance."


def calibration_sentence(metrics: Mapping[str, Metric], is_regression: bool) -> str:
    """Whether intervals or sets hold what they promise."""
    covered = metrics[COVERAGE]
    kind = "intervals" if is_regression else "sets"
    if covered.high < NOMINAL:
        verdict = "fewer than promised"
    elif covered.low > NOMINAL:
        verdict = (
            f"more than promised, so {kind} are wider than necessary"
            if is_regression
            else "more than promised"
        )
    else:
        verdict = "as promised"
    return f"The 90% {kind} hold {_range(covered)} of the targets: {verdict}."


def slices_sentence(slices: Sequence[Slice]) -> str:
    """Which slice has the lowest coverage, if that is below the nominal one by more than chance."""
    worst = lowest_coverage(slices, 1)
    if not worst:
        return f"No slice has {RANKED} rows, so none is judged."
    count = sum(part.verdict == "too low" for part in slices)
    judged = sum(part.rows >= RANKED for part in slices)
    if not count:
        return (
            f"In none of the {judged} slices of {RANKED} rows or more coverage is lower than chance allows."
        )
    (part,) = worst
    return (
        f"In {count} of {judged} slices of {RANKED} rows or more coverage is too low, lowest where "
        f"{part.column} is {part.value}: {100 * part.coverage.value:.0f}%."
    )


def columns_sentence(names: Sequence[str], uncertain: Sequence[str]) -> str:
    """Which columns matter most for the prediction, and for its uncertainty."""
    if not names:
        return ""
    sentence = f"Predictions depend most on {_join(names)}"
    return f"{sentence}, their uncertainty on {_join(uncertain)}." if uncertain else f"{sentence}."


def _join(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _range(metric: Metric) -> str:
    """94% (90 to 97%)"""
    return f"{100 * metric.value:.0f}% ({100 * metric.low:.0f} to {100 * metric.high:.0f}%)"
