"""Reports of `compound explain`: tables for the terminal, an HTML page or a figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compound.io.atomic import write_atomic
from compound.io.paths import check_writable
from compound.report.page import Cell, Page, format_cell, format_percent, render_figure
from compound.tables.explaining import Explanation
from compound.tables.figures import contribution_bars

MAX_COLUMNS = 12  # shown in a figure or on the terminal

TitledTable = tuple[str, Sequence[str], Sequence[Sequence[Cell]]]  # title, column names, rows


def check_output(out: Path) -> None:
    """Raise ValueError, before any work, if `out` has an unknown format or cannot be written."""
    if out.suffix not in (".html", ".png"):
        raise ValueError(f"{out} has an unknown format: end it in .html or .png")
    check_writable(out)


def explanation_tables(explanation: Explanation, max_columns: int = MAX_COLUMNS) -> list[TitledTable]:
    """Tables of the prediction, the contributions and the nearest prototypes, for the first `max_columns`."""
    prediction = explanation.prediction
    values = [(name, _to_cell(prediction[name].iloc[0])) for name in prediction]
    values += [
        ("threshold of ood_score", explanation.threshold),
        ("epistemic at the nearest prototype", explanation.prototype_epistemic),
    ]
    shown = explanation.contributions[:max_columns]
    first = f" (the first {max_columns})" if len(explanation.contributions) > max_columns else ""
    columns = ("column", "value", "nearest prototype", "fraction of distance²", "increase of epistemic")
    prototypes = [[c.column, *map(str, explanation.prototypes[c.column])] for c in shown]
    headings = [
        f"prototype {i}, at distance {format_cell(distance)}"
        for i, distance in enumerate(explanation.distances, 1)
    ]
    return [
        ("Prediction", ("", ""), values),
        (
            f"Contributions by column{first}",
            columns,
            [(c.column, c.value, c.prototype, format_percent(c.distance), c.epistemic) for c in shown],
        ),
        ("Nearest prototypes", ("column", *headings), prototypes),
    ]


def write_explanation(explanation: Explanation, title: str, out: Path) -> None:
    """Write an HTML page or, where `out` ends in .png, the figure."""
    shown = explanation.contributions[:MAX_COLUMNS]
    panels = [
        ("fraction of squared distance", [contribution.distance for contribution in shown]),
        ("increase of epistemic uncertainty", [contribution.epistemic for contribution in shown]),
    ]
    figure = contribution_bars([f"{c.column} = {c.value}" for c in shown], panels)
    if out.suffix == ".png":
        write_atomic(out, render_figure(figure, "png"))
        return
    page = Page(title)
    page.lead(summary(explanation))
    page.figure(figure, "Contributions of the columns to the distance and to the epistemic uncertainty.")
    for name, columns, rows in explanation_tables(explanation, len(explanation.contributions)):
        page.heading(name)
        page.table(columns, rows)
    write_atomic(out, page.html().encode())


def summary(explanation: Explanation) -> str:
    """A paragraph in plain words."""
    row = explanation.prediction.iloc[0]
    score, threshold = format_cell(float(row["ood_score"])), format_cell(float(explanation.threshold))
    like = "unlike" if bool(row["is_ood"]) else "like"
    verdict = f"The row is {like} the training rows: its OOD score is {score}, the threshold {threshold}."
    first = max(explanation.contributions, key=lambda c: c.distance)
    near = f"Most of its distance from the nearest prototype is in {first.column}"
    distance = f"{near} ({format_percent(first.distance)}): {first.value} instead of {first.prototype}."
    most = max(explanation.contributions, key=lambda c: c.epistemic)
    grown = f"Its epistemic uncertainty grows most with {most.column}." if most.epistemic > 0 else ""
    return " ".join(filter(None, (verdict, distance, grown)))


def _to_cell(value: Any) -> Cell:
    """A value of a data frame as a Python object; booleans as yes or no."""
    value = value.item() if hasattr(value, "item") else value
    return ("yes" if value else "no") if isinstance(value, bool) else value
