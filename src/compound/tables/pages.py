"""Report of `compound fit`: summary lines for the terminal, and the page that is saved with the model."""

from typing import Any

import numpy as np

from compound.estimators.base import Array
from compound.estimators.row_predictions import RowScores, first_target_frame
from compound.report.page import Cell, Page, format_number
from compound.tables import figures
from compound.tables.confidence_intervals import Metric
from compound.tables.fitting import FitResult
from compound.tables.prediction_metrics import NOMINAL, calibration_curve
from compound.tables.row_measures import risk_coverage
from compound.tables.summary import calibration_sentence, columns_sentence, error_sentence

TOP_ROWS = 10  # of a list of rows
MAX_IMPORTANT = 15  # columns whose importance is shown
MAX_COLUMNS = 8  # features of a listed row
MAX_CELL = 24  # characters of a listed value
METRIC_COLUMNS = ("metric", "value", "95% low", "95% high")
NOT_IN_SUMMARY = ("MAE", "mean std", "mean confidence")  # metrics


def fit_summary(result: FitResult) -> list[tuple[str, str]]:
    """Name and text of every summary line: data, method, calibration, metrics on the test rows."""
    estimator = result.estimator
    task = estimator.model_.task
    task_name = "regression" if result.is_regression else f"classification into {task.size} classes"
    return [
        ("rows", f"{result.n_train:,} training, {len(result.y_test):,} held-out test"),
        ("features", f"{len(estimator.encoder_.columns)} columns, {estimator.encoder_.width} encoded"),
        *_column_notes(result),
        ("task", f"{task_name}: {result.test.y.name}"),
        *_target_notes(result),
        ("method", estimator.model_.method),
        ("calibration", calibration_note(estimator.n_calibration_, result.is_regression)),
        *((m.name, format_metric(m)) for m in result.metrics if m.name not in NOT_IN_SUMMARY),
        ("outliers", ood_note(estimator.false_positive_rate, estimator.ood_detector_.promised)),
        ("time", f"{result.seconds:.1f} s"),
    ]


def _target_notes(result: FitResult) -> list[tuple[str, str]]:
    """The kind of the target and why; groups, times and weights; metrics of further targets."""
    estimator: Any = result.estimator
    roles = getattr(estimator, "roles_", {})
    notes = []
    kind = getattr(estimator, "target_kind_", "ordinal" if estimator.model_.task.family else "")
    if kind and (kind != "gaussian" or result.reason not in ("", "numbers")):
        notes.append(("target kind", f"{kind}: {result.reason}" if result.reason else kind))
    if result.test.left_out:
        rows = "row" if result.test.left_out == 1 else "rows"
        notes.append(("no target", f"{result.test.left_out:,} {rows} left out"))
    if "event" in roles:
        notes.append(("events", f"{roles['event']}, censored where it is 0"))
    if "group" in roles:
        own = ", ".join(estimator.group_calibrations_) or "none has enough rows"
        notes.append(("groups", f"{roles['group']}, with thresholds of their own: {own}"))
    if "time" in roles:
        notes.append(("time order", f"{roles['time']}: the newest rows calibrate and judge"))
    if "weight" in roles:
        notes.append(("weights", roles["weight"]))
    for name, metrics in result.more_metrics.items():
        shown = (f"{m.name} {format_metric(m)}" for m in metrics if m.name not in NOT_IN_SUMMARY)
        notes.append((name, "; ".join(shown)))
    return notes


def _column_notes(result: FitResult) -> list[tuple[str, str]]:
    """Which columns were left out because they seem to name the rows, and whose numbers have a form."""
    ids = ", ".join(result.test.ids)
    forms = (f"{name} (as {form.example})" for name, form in result.test.forms.items())
    return [
        *([("left out", f"{ids}: seems to name the rows, --keep uses it")] if ids else []),
        *([("read as numbers", ", ".join(forms))] if result.test.forms else []),
    ]


def calibration_note(n_calibration: float, is_regression: bool) -> str:
    """How many rows calibrate the 90% intervals or sets, and what is used instead if they are too few."""
    kind = "intervals" if is_regression else "sets"
    rows = "row" if round(n_calibration) == 1 else "rows"
    note = f"90% prediction {kind} from {n_calibration:.0f} calibration {rows}"
    if n_calibration >= (n_calibration + 1) * NOMINAL - 1e-9:  # n rows guarantee at most n / (n + 1)
        return note
    if not is_regression:
        return f"{note}, too few: sets hold every class"
    fallback = "Gaussian errors assumed" if n_calibration else "intervals of the predictive distribution"
    return f"{note}, too few: {fallback}"


def ood_note(false_positive_rate: float, promised: bool) -> str:
    """A sentence with the false positive rate of `is_ood`; `promised`: whether it is guaranteed."""
    note = f"is_ood flags about {false_positive_rate:.3g} of in-distribution rows"
    return note if promised else f"{note}, not guaranteed with so few training rows: rather fewer"


def format_metric(metric: Metric) -> str:
    """Value and confidence interval; without interval where that is a single point."""
    value, low, high = (format_number(part) for part in metric[1:])
    return value if metric.low == metric.high else f"{value}  ({low} to {high})"


def fit_page(result: FitResult) -> Page:
    """The report saved with a model."""
    page = Page(f"{result.test.y.name} from {result.test.path.name}")
    page.lead(summary(result))
    page.text(
        "Metrics are computed on held-out test rows, used neither for training nor for calibration. "
        "In brackets: 95% confidence intervals, Wilson's for proportions, bootstrap otherwise. "
        "ECE: expected calibration error."
    )
    page.table(("", ""), fit_summary(result))
    _column_sections(page, result)
    calibration_section(page, result.scores, result.is_regression)
    if result.is_regression:
        _interval_section(page, result)
    else:
        confidence_section(page, result.scores)
    predictions = result.scores.predictions
    page.heading("Most uncertain rows")
    page.text(
        "Aleatoric uncertainty is noise in the data. "
        "Epistemic uncertainty is what more data like this row would reduce."
    )
    _row_table(page, result, _largest((predictions["aleatoric"] + predictions["epistemic"]).to_numpy()))
    page.heading("Rows of highest OOD score")
    page.text(
        "The score is -log10 of how rarely ordinary rows are so unusual; "
        f"rows beyond {result.estimator.threshold_:.4g} are flagged as out-of-distribution. "
        f"{ood_note(result.estimator.false_positive_rate, result.estimator.ood_detector_.promised)}."
    )
    _row_table(page, result, _largest(predictions["ood_score"].to_numpy()))
    return page


def summary(result: FitResult) -> str:
    """A paragraph in plain words."""
    metrics = {metric.name: metric for metric in result.metrics}
    target, task = result.test.y.name, result.estimator.model_.task
    what = f"the number {target}" if result.is_regression else f"{target} ({task.size} classes)"
    columns = len(result.estimator.encoder_.columns)
    known = f"{columns} columns" if columns > 1 else "one column"
    start = f"The model predicts {what} from {known}, learnt from {result.n_train:,} rows."
    judged = f"It was judged on {len(result.y_test):,} other rows."
    matters = [each for each in result.effects.importance if each.prediction > 0][:3]
    uncertain = sorted(result.effects.importance, key=lambda each: -each.uncertainty)[:2]
    flagged = float(result.scores.predictions["is_ood"].mean())
    sentences = (
        start,
        judged,
        error_sentence(metrics, result.is_regression, result.y_test if result.is_regression else None),
        calibration_sentence(metrics, result.is_regression),
        columns_sentence([each.column for each in matters], [each.column for each in uncertain]),
        f"{100 * flagged:.1f}% of these rows look unlike the training rows (is_ood).",
    )
    return " ".join(filter(None, sentences))


def _column_sections(page: Page, result: FitResult) -> None:
    """Importance of the columns, and partial dependence on the first of them."""
    if not result.effects.importance:
        return
    page.heading("Which columns matter")
    error, spread = ("RMSE", "std") if result.is_regression else ("NLL", "entropy")
    page.text(
        "The values of one column are permuted among held-out rows. For the prediction: by how much the "
        f"{error} rises. For the uncertainty: by how much the predicted {spread} changes, relative "
        "to its mean."
    )
    shown = result.effects.importance[:MAX_IMPORTANT]
    rest = len(result.effects.importance) - len(shown)
    caption = f"Permutation importance, the first {len(shown)}" if rest else "Permutation importance"
    caption = f"{caption}; {rest} more matter less" if rest else caption
    rows = [(each.column, (each.prediction, each.uncertainty)) for each in shown]
    page.bars(("column", "for the prediction", "for the uncertainty"), rows, caption)
    if result.effects.dependence:
        page.heading("How predictions depend on them")
        band = "90% interval of the target" if result.is_regression else "range of 80% of the rows"
        page.text(f"Mean over held-out rows in which this column alone is changed. Band: the {band}.")
        target = str(result.test.y.name)
        page.figures(
            [
                (figures.dependence_plot(curve, target), f"Partial dependence on {curve.column}")
                for curve in result.effects.dependence
            ]
        )


def calibration_section(page: Page, scores: RowScores, is_regression: bool) -> None:
    points = calibration_curve(scores, is_regression)
    text = (
        "Observed against nominal coverage of intervals" if is_regression else "Accuracy against confidence"
    )
    caption = f"{text}, with 95% confidence intervals. The diagonal is perfect calibration."
    page.heading("Calibration")
    page.figure(figures.calibration_plot(points, is_regression), caption)
    page.csv_data("calibration", ("nominal", "observed", "rows"), points)


def confidence_section(page: Page, scores: RowScores) -> None:
    page.heading("Confidence")
    points = risk_coverage(scores, is_regression=False)
    page.figure(figures.risk_plot(points, "error rate"), "Error rate on the most confident rows.")


def _interval_section(page: Page, result: FitResult) -> None:
    n_rows = len(result.y_test)
    shown = np.linspace(0, n_rows - 1, min(n_rows, figures.MAX_ROWS)).astype(int)
    predictions = first_target_frame(result.estimator, result.test.x.iloc[shown].reset_index(drop=True))
    figure = figures.interval_plot(predictions, result.y_test[shown], str(result.test.y.name))
    page.heading("Intervals")
    page.figure(figure, "90% prediction intervals of test rows. Dots: targets; crosses: targets outside.")


def _largest(values: Array) -> Array:
    """Indices of the TOP_ROWS largest values, largest first."""
    return np.argsort(-values, kind="stable")[:TOP_ROWS]


def _row_table(page: Page, result: FitResult, rows: Array) -> None:
    """Add a table of the test rows with indices `rows`: predictions and the first MAX_COLUMNS features."""
    features = result.test.x.iloc[:, :MAX_COLUMNS]
    shown = ["mean", "std"] if result.is_regression else ["class", "probability"]
    shown += ["aleatoric", "epistemic", "ood_score"]
    lines: list[list[Cell]] = []
    for row in rows:
        prediction = result.scores.predictions.iloc[row]
        is_ood = "yes" if prediction["is_ood"] else ""
        values = [result.test.y.iloc[row], *(prediction[name] for name in shown), is_ood]
        feature_values = [features[name].iloc[row] for name in features]
        lines.append(
            [int(result.test_rows[row]) + 1, *(_to_cell(value) for value in (*values, *feature_values))]
        )
    target = f"{result.test.y.name} (target)"
    page.table(["row", target, *shown, "is_ood", *map(str, features)], lines)


def _to_cell(value: Any) -> Cell:
    """A value of a data frame as a table cell: None if missing, text cut to MAX_CELL characters."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or value != value:
        return None
    return value if isinstance(value, bool | int | float) else str(value)[:MAX_CELL]
