"""Tables of means over runs, one row for each method or form, and claims about such means."""

from collections.abc import Iterable, Mapping, Sequence

from compound.experiments.means import Mean
from compound.report.page import Cell, Claim, Page

Numbers = Mapping[str, float]  # of one run


def mean_of(runs: Iterable[Numbers], name: str) -> Mean | None:
    """The mean of a number over the runs that have it; None if there is none."""
    values = [run[name] for run in runs if name in run]
    return Mean.from_values(values) if values else None


def mean_table(
    page: Page, first: str, columns: Mapping[str, str], rows: Mapping[str, Sequence[Numbers]]
) -> None:
    """Add a table of means to the page.

    `columns` are the titles of numbers by their names, `first` that of the column before them; `rows` are the
    numbers of runs by the label of their row.
    """
    cells: list[list[Cell]] = []
    for label, runs in rows.items():
        means = [mean_of(runs, name) for name in columns]
        cells.append([label, *(None if mean is None else mean.text(4) for mean in means)])
    page.table((first, *columns.values()), cells)


def claims_about(
    text: str, mean: Mean | None, limit: Mean | float | None, at_most: bool = False
) -> list[Claim]:
    """The claim that a mean is at least, or at most, a limit; none where one of both is missing."""
    if mean is None or limit is None:
        return []
    bound = limit.mean if isinstance(limit, Mean) else limit
    return [Claim(text, mean.mean, bound, "at most" if at_most else "at least")]
