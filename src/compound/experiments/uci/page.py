"""The page of the UCI experiment: claims, a table per metric with published numbers, outliers."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from compound.experiments.identity import REGION
from compound.experiments.means import Mean
from compound.experiments.published import uci_results
from compound.experiments.runs import Result
from compound.experiments.uci.comparison import (
    DEFAULT,
    DROPOUT,
    ENSEMBLES,
    Splits,
    best_methods,
    claims,
    common_splits,
    pooled_rate,
    values,
)
from compound.report.page import Cell, Claim, Page

SHOWN_PUBLISHED = {"Deep Ensembles": ENSEMBLES, "tuned MC-dropout": DROPOUT}  # published rows on the page
TITLES = {
    "nll": "NLL in nats, on the original scale",
    "rmse": "RMSE, in the unit of the target",
    "crps": "CRPS, in the unit of the target",
    "coverage_calibrated": "Coverage of the 90% interval, calibrated on held-out rows",
    "coverage": "Coverage of the 90% interval of the predictive, not calibrated",
    "epistemic": "Epistemic variance, mean over test rows",
    "aleatoric": "Aleatoric variance, mean over test rows",
    "cpu_seconds": "Seconds of one core per split, training with calibration",
}
REGION_SCORES = {
    "epistemic": "epistemic variance",
    "predictive": "predictive variance",
    "distance": "whitened distance",
}


def draw_page(results: Sequence[Result], page: Page) -> list[Claim]:
    """Fill the page of the UCI experiment; return its claims."""
    splits: Splits = {}
    regions: Splits = {}
    for run, metrics, *_ in results:
        group = regions if run.variant == REGION else splits
        group.setdefault((run.data, run.method), []).append({**metrics, "split": run.seed})
    tables = list(dict.fromkeys(data for data, _ in splits))
    methods = list(dict.fromkeys(result.run.method for result in results))
    page.text(
        "Nine tables, the splits that papers share, one setting for all. Every number is a mean over splits "
        "with its standard error; published numbers stand beside ours. Methods that stop early do so by a "
        "tenth of the training rows, never by test rows. A method that ran fewer splits than its row says "
        "has their number in parentheses; the figure and the best methods are of the splits that every "
        "method of the table has run."
    )
    caption = (
        "NLL by table (lower is better), mean and standard error over the splits all its methods have run. "
        "Lines: published Deep Ensembles (full), tuned MC-dropout (dashed), over all splits."
    )
    columns = ("set", "method", "split", *TITLES)
    page.figure_with_data("uci", _figure(splits, tables, methods), caption, columns, _csv_rows(results))
    all_claims = claims(splits, regions, tables, uci_results())
    page.claims(all_claims, f"{DEFAULT} against the limits; a table that was not run does not count")
    page.heading("Best methods")
    for line in best_methods(splits, tables, methods):
        page.text(line)
    for key in TITLES:
        _draw_metric(key, splits, tables, methods, page)
    _draw_outliers(splits, regions, methods, page)
    return all_claims


def _csv_rows(results: Sequence[Result]) -> list[list[Cell]]:
    """The metrics of every split as rows of the CSV file."""
    shown = [(r.run, r.metrics) for r in results if r.run.variant != REGION]
    return [[run.data, run.method, run.seed, *(metrics.get(key) for key in TITLES)] for run, metrics in shown]


def _draw_metric(key: str, splits: Splits, tables: Sequence[str], methods: Sequence[str], page: Page) -> None:
    """Add the table of one metric: a row per data set, a column per method and published method."""
    shown = {name: uci_results()[row] for name, row in SHOWN_PUBLISHED.items()}
    published = {name: row[key]["values"] for name, row in shown.items() if key in row}
    rows: list[list[Cell]] = []
    for data in tables:
        n_splits = max(len(splits.get((data, method), [])) for method in methods)
        ours = [mean_text(values(splits, data, method, key), n_splits) for method in methods]
        theirs = (_published_text(row, data) for row in published.values())
        rows.append([f"{data} ({n_splits})", *ours, *theirs])
    page.heading(TITLES[key])
    page.table(("set (splits)", *methods, *(f"{name}, published" for name in published)), rows)


def mean_text(numbers: Sequence[float], n_splits: int) -> str | None:
    """Mean ± standard error, with the number of splits where it is not n_splits; None without numbers."""
    if not numbers:
        return None
    text = Mean.from_values(numbers).text_by_error()
    return text if len(numbers) == n_splits else f"{text} ({len(numbers)})"


def _published_text(row: dict[str, Any], data: str) -> str | None:
    """Mean ± standard error of a published method on a data set; None if it was not published."""
    mean, error = row.get(data) or (None, None)
    if mean is None:
        return None
    return f"{mean:g}" + ("" if error is None else f" ± {error:g}")


def _draw_outliers(splits: Splits, regions: Splits, methods: Sequence[str], page: Page) -> None:
    """Add the tables of the out-of-distribution detector, and of AUROC on the region left out of training."""
    page.heading("Outliers")
    tables, keys = [data for data, method in splits if method == DEFAULT], ("false_alarms", "moved_flagged")
    rows: list[list[Cell]] = [[data, *(pooled_rate(splits, data, key) for key in keys)] for data in tables]
    page.table(
        ("set", "false-positive rate", "synthetic outliers flagged"),
        [row for row in rows if row[1] is not None],
        "Rows whose whitened distance is beyond the 99% quantile of the training rows; an outlier is a "
        "test row plus a random vector of norm 5, splits pooled",
    )
    tables = list(dict.fromkeys(data for data, _ in regions))
    for key, title in REGION_SCORES.items():
        rows = []
        for data in tables:
            aurocs = (values(regions, data, method, f"auroc_{key}") for method in methods)
            rows.append([data, *(mean_text(numbers, len(numbers)) for numbers in aurocs)])
        if rows:
            page.table(("set", *methods), rows, f"Region kept out of training: AUROC by {title}")


def _figure(splits: Splits, tables: Sequence[str], methods: Sequence[str]) -> Figure:
    """A panel per data set: the NLL of every method with its standard error, published ones as lines."""
    n_columns = min(3, len(tables)) or 1
    n_rows = max(1, math.ceil(len(tables) / n_columns))
    common = {data: common_splits(splits, data, methods) for data in tables}
    height = 1.2 + 0.22 * max(map(len, common.values()), default=1)
    figure = Figure(figsize=(3.4 * n_columns, height * n_rows), layout="constrained")
    panels = figure.subplots(n_rows, n_columns, squeeze=False).flat
    for panel in panels[len(tables) :]:
        panel.set_visible(False)
    for data, panel in zip(tables, panels, strict=False):
        for position, (method, of_method) in enumerate(common[data].items()):
            if of_method:
                mean, error = Mean.from_values(metrics["nll"] for metrics in of_method)
                colour = "tab:orange" if method == DEFAULT else "tab:blue"
                panel.errorbar(mean, position, xerr=error or 0.0, fmt="o", color=colour)
        for row, line in ((ENSEMBLES, "-"), (DROPOUT, "--")):
            nll = uci_results()[row]["nll"]["values"][data][0]
            panel.axvline(nll, color="black", linewidth=0.8, linestyle=line)
        panel.set_yticks(range(len(common[data])), list(common[data]), fontsize=7)
        panel.set_ylim(len(common[data]) - 0.5, -0.5)  # the first on top
        panel.set_title(data, fontsize=9)
    return figure
