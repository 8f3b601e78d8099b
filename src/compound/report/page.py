"""One self-contained page: text, tables, figures and their data in a single HTML file that asks nothing of the network."""

import base64
import csv
import io
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Literal, NamedTuple

import matplotlib
from matplotlib.figure import Figure

from compound.io.atomic import write_atomic

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1rem; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; } figcaption, caption { color: #555; text-align: left; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: 1rem 0; } caption { margin-bottom: .4rem; }
th, td { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right; } th:first-child, td:first-child { text-align: left; }
td.words { text-align: left; }
p.data { margin-top: -1rem; font-size: .85rem; color: #555; } h3 { margin-top: 2rem; }
td.yes { color: #17692b; } td.no { color: #a32020; font-weight: 600; }
"""

LONG = 30  # letters of a cell that is read as a sentence
Cell = str | float | int | bool | None


class Claim(NamedTuple):
    """A claim in a number, and the limit it must keep; no number keeps no limit."""

    claim: str
    value: float | None
    limit: float
    sense: Literal["at least", "at most"] = "at least"

    @property
    def held(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.limit if self.sense == "at least" else self.value <= self.limit

    @property
    def verdict(self) -> Cell:
        return self.held if self.value is not None else "not run"


class Page:
    """A page that grows from top to bottom; `write` puts it in a file, with its pictures and their data as files beside it."""

    def __init__(self, title: str):
        self.title = title
        self.files: dict[str, bytes] = {}  # beside the page
        self.prefix = ""  # of the names of those files: a page may show one experiment twice
        self._parts: list[str] = [f"<h1>{escape(title)}</h1>"]

    def heading(self, words: str) -> None:
        self._parts.append(f"<h2>{escape(words)}</h2>")

    def subheading(self, words: str) -> None:
        self._parts.append(f"<h3>{escape(words)}</h3>")

    def points(self, words: Sequence[str]) -> None:
        """A list."""
        self._parts.append("<ul>" + "".join(f"<li>{escape(one)}</li>\n" for one in words) + "</ul>")

    def text(self, words: str) -> None:
        self._parts.append(f"<p>{escape(words)}</p>")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = "") -> None:
        """True and False become "yes" and "no", None a dash, numbers four significant digits."""
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(
                    f"a row of the table {caption!r} has {len(row)} cells for {len(columns)} columns: give one each"
                )
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>\n" for row in rows)
        words = f"<caption>{escape(caption)}</caption>" if caption else ""
        self._parts.append(
            f'<div class="wide"><table>{words}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>'
        )

    def picture(
        self, name: str, figure: Figure, caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]
    ) -> None:
        """A figure and the numbers in it; both also become files, name.png and name.csv."""
        self.figure(figure, caption)
        self.keep(name, figure)
        self.data(name, columns, rows)

    def keep(self, name: str, figure: Figure | None) -> None:
        """A figure as a file beside the page."""
        if figure is not None:
            self.files[f"{self.prefix}{name}.png"] = drawn(figure, "png")

    def data(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """A link to a table as csv, which the page carries in itself; it also becomes a file."""
        name, content = f"{self.prefix}{name}.csv", spreadsheet(columns, rows)
        self.files[name] = content
        link = f'<a download="{escape(name)}" href="data:text/csv;base64,{base64.b64encode(content).decode()}">{escape(name)}</a>'
        self._parts.append(f'<p class="data">data: {link}</p>')

    def figure(self, figure: Figure, caption: str) -> None:
        # as an image and not as inline markup: the names inside one drawing cannot meet those of another
        data, words = base64.b64encode(drawn(figure, "svg")).decode(), escape(caption)
        image = f'<img src="data:image/svg+xml;base64,{data}" alt="{words}">'
        self._parts.append(f"<figure>{image}<figcaption>{words}</figcaption></figure>")

    def bars(self, bars: Sequence[Claim], caption: str = "Claims and their bars") -> None:
        rows = [(bar.claim, bar.value, f"{bar.sense} {bar.limit:g}", bar.verdict) for bar in bars]
        self.table(("claim", "measured", "bar", "held"), rows, caption)

    def origins(self, records: Sequence[Mapping[str, object]]) -> None:
        """Which code gave the numbers of this page."""
        columns = ("command", "version", "commit", "torch")
        self.heading("Where the numbers come from")
        self.table(columns, sorted({tuple(str(record[column]) for column in columns) for record in records}))

    def html(self) -> str:
        head = (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n<body>\n'
        )
        page = head + "\n".join(self._parts) + "\n</body></html>\n"
        return page.encode(
            errors="backslashreplace"
        ).decode()  # a file's name may hold bytes that are no letters

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            write_atomic(path.with_name(name), content)
        write_atomic(path, self.html().encode())


def spreadsheet(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bytes:
    """A table as csv; None is an empty cell, numbers keep all their digits."""
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(
                f"a row of {columns[0]!r} has {len(row)} cells for {len(columns)} columns: give one each"
            )
    buffer = io.StringIO()
    lines = csv.writer(buffer, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(rows)
    return buffer.getvalue().encode()


def drawn(figure: Figure, kind: str) -> bytes:
    """The figure as the bytes of a file ("svg" or "png"), the same bytes for the same figure."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "compound"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # letters that the font lacks are drawn as boxes
        figure.savefig(buffer, format=kind, dpi=120, bbox_inches="tight", metadata=metadata)
    return buffer.getvalue()


def _cell(value: Cell) -> str:
    if isinstance(value, bool):
        return '<td class="yes">yes</td>' if value else '<td class="no">no</td>'
    words = ' class="words"' if isinstance(value, str) and len(value) > LONG else ""
    return f"<td{words}>{escape(shown(value))}</td>"


def shown(value: Cell) -> str:
    """A value as a person reads it."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
