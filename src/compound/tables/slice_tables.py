"""Tables of slices for the terminal and for pages."""

from collections.abc import Sequence

from compound.report.page import Cell, format_number
from compound.tables.prediction_metrics import COVERAGE
from compound.tables.slices import Estimate, Slice


def slice_columns(is_regression: bool) -> tuple[str, ...]:
    """Column names of a table of slices."""
    error, size = ("RMSE", "mean width") if is_regression else ("error rate", "set size")
    return ("column", "value", "rows", COVERAGE, "", "NLL", error, size, "epistemic")


def short_slice_columns(is_regression: bool) -> tuple[str, ...]:
    """Column names of a table of slices for the terminal."""
    return ("column", "value", "rows", COVERAGE, "", "NLL", "RMSE" if is_regression else "errors")


def short_slice_rows(parts: Sequence[Slice]) -> list[list[Cell]]:
    """A row for each slice, for the terminal: the interval of coverage alone."""
    return [
        [
            part.column,
            part.value,
            part.rows,
            format_estimate(part.coverage),
            part.verdict,
            format_number(part.nll.value, 3),
            format_number(part.error.value, 3),
        ]
        for part in parts
    ]


def slice_rows(parts: Sequence[Slice]) -> list[list[Cell]]:
    """A row for each slice; estimates with their intervals as text."""
    return [
        [
            part.column,
            part.value,
            part.rows,
            format_estimate(part.coverage),
            part.verdict,
            format_estimate(part.nll),
            format_estimate(part.error),
            None if part.size != part.size else part.size,
            part.epistemic,
        ]
        for part in parts
    ]


def format_estimate(estimate: Estimate) -> str:
    """0.91 (0.87 to 0.94)"""
    if estimate.low != estimate.low:
        return format_number(estimate.value, 3)
    value, low, high = (format_number(part, 3) for part in estimate)
    return f"{value} ({low} to {high})"
