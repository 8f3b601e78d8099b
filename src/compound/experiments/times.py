"""Seconds by method: training and answering apart."""

from collections.abc import Sequence
from statistics import fmean

from compound.experiments.runs import Result
from compound.report.page import Cell, Page


def draw_times(results: Sequence[Result], page: Page, name: str) -> None:
    """A table of means over runs. A fit that several runs share counts for each of them; old runs know only their total."""
    trained: dict[str, float] = {}
    for result in results:
        key = result.run.fit_key
        trained[key] = max(trained.get(key, 0.0), result.record.get("training", 0.0))
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.run.experiment, result.run.method), []).append(result)
    rows: list[list[Cell]] = []
    for (experiment, method), found in groups.items():
        known = [result for result in found if "training" in result.record]
        training = fmean(trained[result.run.fit_key] for result in known) if known else None
        answering = fmean(result.record["answering"] for result in known) if known else None
        spent = fmean(result.record["seconds"] for result in found)
        rows.append(
            [
                experiment,
                method,
                len(found),
                *(None if v is None else round(v, 1) for v in (training, answering, spent)),
            ]
        )
    columns = ("experiment", "method", "runs", "training", "answering", "spent in this run")
    page.table(
        columns,
        rows,
        "Seconds, means over runs. A fit that another run had made already costs a run nothing.",
    )
    page.csv_data(name, columns, rows)
