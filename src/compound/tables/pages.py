"""What a person reads at the end: lines for the terminal and pages for the browser."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from compound.estimators.base import Array
from compound.estimators.row_predictions import RowScores, predict_frame
from compound.report.page import Cell, Page
from compound.tables import figures
from compound.tables.fitting import Fitted
from compound.tables.scores import NOMINAL, Number, Slice, curve

ROWS = 10  # most uncertain, strangest
COLUMNS = 8  # of a row that is shown
CELL = 24  # letters of a value that is shown


def summary(fitted: Fitted) -> list[tuple[str, str]]:
    """What was fitted, and how it does on rows that were held out."""
    estimator, task = fitted.estimator, fitted.estimator.model_.task
    kind = "numbers" if fitted.targets else f"{task.size} classes"
    lines = [
        ("rows", f"{fitted.trained:,} to learn from, {len(fitted.truth):,} held out"),
        ("features", f"{len(estimator.encoder_.columns)} columns, {estimator.encoder_.width} numbers"),
        ("task", f"{kind}: {fitted.test.y.name}"),
        ("method", estimator.model_.method),
        ("calibration", resting(estimator.n_calibration_, fitted.targets)),
    ]
    lines += [
        (number.name, spelt(number))
        for number in fitted.numbers
        if number.name not in ("MAE", "mean std", "mean confidence")
    ]
    return [*lines, ("time", f"{fitted.seconds:.1f} s")]


def resting(rows: float, targets: bool) -> str:
    """How many rows stand behind the 90% intervals or sets, and what they cannot promise."""
    what, few = (
        ("intervals", "they take errors for Gaussian") if targets else ("sets", "they hold every class")
    )
    if targets and not rows:
        few = "they are as wide as the model says"
    enough = rows >= (rows + 1) * NOMINAL - 1e-9  # n scores vouch for a coverage of n / (n + 1) at most
    return f"90% {what} rest on {rows:.0f} calibration row{'' if round(rows) == 1 else 's'}" + (
        "" if enough else f", too few: {few}"
    )


def spelt(number: Number) -> str:
    if number.low == number.high:  # one row, or all alike
        return f"{number.value:.4g}"
    return f"{number.value:.4g}  ({number.low:.4g} to {number.high:.4g})"


def fit_page(fitted: Fitted) -> Page:
    """The report of a model."""
    page = Page(f"{fitted.test.y.name} from {fitted.test.path.name}")
    page.text(
        "Numbers below are of rows that were held out: the model never saw them, neither to learn nor to calibrate. "
        "In brackets: 95% intervals (of shares Wilson's, else bootstrap). ECE: mean gap between what was said and what was seen."
    )
    page.table(("", ""), summary(fitted))
    _calibration(page, fitted.judged, fitted.targets)
    if fitted.targets:
        some = np.linspace(0, len(fitted.truth) - 1, min(len(fitted.truth), figures.SHOWN)).astype(int)
        answers = predict_frame(fitted.estimator, fitted.test.x.iloc[some].reset_index(drop=True))
        page.heading("Intervals")
        words = "Intervals of coverage 90% for some held-out rows. Dots: the truth; crosses: truth outside its interval."
        page.figure(figures.intervals(answers, fitted.truth[some], str(fitted.test.y.name)), words)
    else:
        page.heading("Confidence")
        page.figure(
            figures.accuracy_rejection_curve(fitted.judged),
            "Accuracy when only the surest rows are answered.",
        )
    total = (fitted.judged.predictions["aleatoric"] + fitted.judged.predictions["epistemic"]).to_numpy()
    page.heading("Most uncertain rows")
    page.text("Aleatoric doubt is noise in the data; epistemic doubt more data like this row would settle.")
    _rows(page, fitted, np.argsort(-total, kind="stable")[:ROWS])
    page.heading("Strangest rows")
    page.text(
        f"The score is the distance from the rows learnt from; beyond {fitted.estimator.threshold_:.4g} a row counts as strange."
    )
    if not fitted.estimator.ood_detector_.promised:
        rate = fitted.estimator.false_positive_rate
        page.text(
            f"Rows are too few to promise that {rate:.3g} of ordinary rows are flagged: it will rather be fewer than more."
        )
    _rows(page, fitted, np.argsort(-fitted.judged.predictions["ood_score"].to_numpy(), kind="stable")[:ROWS])
    return page


def evaluate_page(
    title: str,
    judged: RowScores,
    targets: bool,
    numbers: Sequence[Number],
    ood_metrics: Sequence[Number],
    parts: Sequence[Slice],
) -> Page:
    """The page of `compound evaluate`."""
    page = Page(title)
    page.table(("", "value", "from", "to"), [tuple(number) for number in numbers], "With 95% intervals")
    _calibration(page, judged, targets)
    if not targets:
        page.heading("Confidence")
        page.figure(
            figures.accuracy_rejection_curve(judged), "Accuracy when only the surest rows are answered."
        )
    if ood_metrics:
        page.heading("Rows of the other table")
        page.table(
            ("", "value", "from", "to"), [tuple(number) for number in ood_metrics], "With 95% intervals"
        )
    page.heading("Slice by slice")
    page.table(slice_columns(targets), [tuple(part) for part in parts])
    return page


def slice_columns(targets: bool) -> tuple[str, ...]:
    return ("column", "value", "rows", "coverage of 90%", "NLL", "RMSE" if targets else "wrong", "epistemic")


def _calibration(page: Page, judged: RowScores, targets: bool) -> None:
    points = curve(judged, targets)
    page.heading("Calibration")
    words = "Share of truths inside intervals" if targets else "Accuracy by confidence"
    page.figure(
        figures.calibration(points, targets), f"{words}, with 95% intervals. On the line the model is honest."
    )
    page.data("calibration", ("said", "seen", "rows"), [tuple(point) for point in points])


def _rows(page: Page, fitted: Fitted, rows: Array) -> None:
    """Some held-out rows with their answers."""
    answers, names = fitted.judged.predictions, [str(name) for name in fitted.test.x.columns[:COLUMNS]]
    best = ["mean", "std"] if fitted.targets else ["class", "probability"]
    lines: list[list[Cell]] = []
    for row in rows:
        said = [_cell(answers[name].iloc[row]) for name in (*best, "aleatoric", "epistemic", "ood_score")]
        said.append("yes" if answers["is_ood"].iloc[row] else "")
        own = [_cell(fitted.test.x[name].iloc[row]) for name in names]
        lines.append([int(fitted.places[row]) + 1, _cell(fitted.test.y.iloc[row]), *said, *own])
    truth = f"{fitted.test.y.name} (truth)"
    page.table(["row", truth, *best, "aleatoric", "epistemic", "ood_score", "strange", *names], lines)


def _cell(value: Any) -> Cell:
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or value != value:
        return None
    return value if isinstance(value, bool | int | float) else str(value)[:CELL]
