"""A table of seconds by experiment and method, for training and for evaluation."""

from collections.abc import Sequence
from statistics import fmean

from compound.experiments.runs import Result
from compound.report.page import Cell, Page


def draw_times(results: Sequence[Result], page: Page, name: str) -> None:
    """Add a table and the file `name`.csv to the page: mean seconds per run of each experiment and method.

    The training time of a fit that several runs share counts in full for each of them.
    """
    training: dict[str, float] = {}  # seconds, by key of the fit
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        key = result.run.fit_key
        training[key] = max(training.get(key, 0.0), result.provenance.get("training", 0.0))
        groups.setdefault((result.run.experiment, result.run.method), []).append(result)
    rows: list[list[Cell]] = []
    for (experiment, method), group in groups.items():
        timed = [result for result in group if "training" in result.provenance]
        seconds = (
            fmean(training[result.run.fit_key] for result in timed) if timed else None,
            fmean(result.provenance["answering"] for result in timed) if timed else None,
            fmean(result.provenance["seconds"] for result in group),
        )
        rows.append([experiment, method, len(group), *(None if s is None else round(s, 1) for s in seconds)])
    columns = ("experiment", "method", "runs", "training", "evaluation", "spent in this run")
    page.table(columns, rows, "Seconds, means over runs. A fit that another run has made costs nothing.")
    page.csv_data(name, columns, rows)
