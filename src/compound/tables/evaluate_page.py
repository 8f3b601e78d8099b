"""The page of `compound evaluate`."""

from collections.abc import Sequence

from compound.estimators.row_predictions import RowScores
from compound.report.page import Page
from compound.tables import figures
from compound.tables.confidence_intervals import Metric
from compound.tables.pages import METRIC_COLUMNS, calibration_section
from compound.tables.row_measures import (
    pit_histogram,
    quantile_reliability,
    risk_coverage,
)
from compound.tables.slice_tables import slice_columns, slice_rows
from compound.tables.slices import RANKED, Slice
from compound.tables.summary import calibration_sentence, error_sentence, slices_sentence

TARGET_TERMS = (
    "NLL: mean negative log-density of the target, in nats. RMSE, MAE: errors of the mean. CRPS: the mean "
    "distance between distribution and target, in the target's unit; for a prediction without uncertainty it "
    "is the MAE. Interval score: width plus a penalty for targets outside. Mean width and mean std say how "
    "sharp predictions are. ECE: mean gap between nominal and observed coverage. Of all but coverage and "
    "sharpness, lower is better."
)
CLASS_TERMS = (
    "NLL: mean negative log-probability of the class, in nats. Brier score: squared distance of the "
    "probabilities from the class. ECE: mean gap between confidence and accuracy. Mean confidence and size "
    "of sets say how sharp predictions are."
)


def evaluate_page(
    title: str,
    scores: RowScores,
    is_regression: bool,
    metrics: Sequence[Metric],
    ood_metrics: Sequence[Metric],
    slices: Sequence[Slice],
    slice_names: Sequence[str] = (),
) -> Page:
    """The report; slices of the columns in `slice_names` come first."""
    page = Page(title)
    named = {metric.name: metric for metric in metrics}
    sentences = (
        error_sentence(named, is_regression),
        calibration_sentence(named, is_regression),
        slices_sentence(slices),
    )
    page.lead(" ".join(filter(None, sentences)))
    page.table(METRIC_COLUMNS, metrics, f"{len(scores):,} rows, with 95% confidence intervals")
    page.text(TARGET_TERMS if is_regression else CLASS_TERMS)
    calibration_section(page, scores, is_regression)
    if is_regression:
        _distribution_section(page, scores)
    _risk_section(page, scores, is_regression)
    if ood_metrics:
        page.heading("Out-of-distribution detection")
        page.table(METRIC_COLUMNS, ood_metrics, "With 95% confidence intervals")
    page.heading("Slices")
    page.text(
        "With 95% confidence intervals. Coverage that differs from 90% by more than chance is marked; slices "
        f"of fewer than {RANKED} rows are not judged. Of many slices, one in twenty is marked by chance."
    )
    first = [part for part in slices if part.column in slice_names]
    rest = [part for part in slices if part.column not in slice_names]
    page.table(slice_columns(is_regression), slice_rows([*first, *rest]))
    return page


def _distribution_section(page: Page, scores: RowScores) -> None:
    """PIT and quantiles of targets."""
    counts, points = pit_histogram(scores), quantile_reliability(scores)
    page.heading("Distributions")
    page.text(
        "The PIT of a row is the predicted probability of a target below the observed one. It is uniform "
        "where distributions are right; a hump means too wide, a bowl too narrow, a slope a bias. Quantiles "
        "are right where as many targets lie below as their level says."
    )
    page.figures(
        [
            (figures.pit_plot(counts), "PIT histogram; grey: 95% of what uniform PITs would show."),
            (figures.quantile_plot(points), "Calibrated quantiles: targets below, with 95% intervals."),
        ]
    )
    page.csv_data("quantiles", ("level", "observed", "rows"), points)


def _risk_section(page: Page, scores: RowScores, is_regression: bool) -> None:
    points = risk_coverage(scores, is_regression)
    name = "RMSE" if is_regression else "error rate"
    order = "standard deviation" if is_regression else "confidence"
    page.heading("Risk and coverage")
    page.figure(
        figures.risk_plot(points, name),
        f"{name} on the rows of least uncertainty, by their {order}. A curve that rises says that the "
        "uncertainty knows which rows are hard.",
    )
    page.csv_data("risk-coverage", ("accepted", "risk"), points)
