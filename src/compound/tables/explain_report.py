"""An explanation for people: tables for the terminal, a page or a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compound.io.atomic import write_atomic
from compound.io.paths import check_writable
from compound.report.page import Cell, Page, drawn, shown
from compound.tables import figures
from compound.tables.explaining import Explanation

COLUMNS = 12  # that a picture or the terminal shows

Shown = tuple[str, Sequence[str], Sequence[Sequence[Cell]]]


def check_output(out: Path) -> None:
    if out.suffix not in (".html", ".png"):
        raise ValueError(f"{out} is of no known kind: end it in .html or .png")
    check_writable(out)


def tables(found: Explanation, most: int = COLUMNS) -> list[Shown]:
    """A title, column heads, rows: the answer, the columns' shares, the prototypes."""
    answer = [(name, _plain(found.answer[name].iloc[0])) for name in found.answer]
    answer += [
        ("threshold of ood_score", found.threshold),
        ("epistemic of the nearest prototype", found.usual),
    ]
    heads = ("column", "value", "nearest prototype", "share of strangeness", "epistemic rises by")
    first = sorted(found.shares, key=lambda share: -share.ood_share)[:most]
    title = "Columns, strangest first" + (f" (the first {most})" if len(found.shares) > most else "")
    names = [share.column for share in first]
    near = [[name, *(str(value) for value in found.prototypes[name])] for name in names]
    numbered = [
        f"prototype {i + 1}, at distance {shown(distance)}" for i, distance in enumerate(found.distances)
    ]
    return [
        ("The answer", ("", ""), answer),
        (title, heads, first),
        ("Nearest prototypes", ("column", *numbered), near),
    ]


def write(found: Explanation, title: str, out: Path) -> None:
    shares = found.shares[:COLUMNS]
    panels = [
        ("share of strangeness", [share.ood_share for share in shares]),
        ("epistemic part rises by", [share.epistemic for share in shares]),
    ]
    picture = figures.shares([f"{share.column} = {share.value}" for share in shares], panels)
    if out.suffix == ".png":
        write_atomic(out, drawn(picture, "png"))
        return
    page = Page(title)
    verdict = "stranger than" if bool(found.answer["is_ood"].iloc[0]) else "within"
    score = float(found.answer["ood_score"].iloc[0])
    page.text(f"Its score of strangeness, {score:.4g}, is {verdict} the threshold of {found.threshold:.4g}.")
    page.figure(picture, "Where strangeness and epistemic doubt come from, column by column.")
    for name, heads, rows in tables(found, len(found.shares)):
        page.heading(name)
        page.table(heads, rows)
    write_atomic(out, page.html().encode())


def _plain(value: Any) -> Cell:
    return value.item() if hasattr(value, "item") else value
