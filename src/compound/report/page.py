"""A self-contained HTML report: text, tables, figures and their data in one file, no external resources."""

import base64
import csv
import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
from matplotlib.figure import Figure

from compound.io.atomic import write_atomic
from compound.report.theme import document

NUMERIC = re.compile(r"[-+−–±<>≤≥~ ]*(\d|\.\d|$)")  # start of a text that is aligned as a number
MAX_NUMERIC = 30  # characters of such a text
LARGE, HUGE = 1e4, 1e12  # floats between them are shown as integers
SMALL = 1e-4  # smaller floats are shown as a multiple of a power of ten, like those from HUGE on
TALL = 40  # rows of a table from which on it scrolls
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
Cell = str | float | int | bool | None
Rows = Sequence[Sequence[Cell]]


class Bold(str):
    """A text cell in bold, such as the best number of a row."""


class Claim(NamedTuple):
    """A claim in words, a measured value and the limit it must satisfy; without a value it does not hold."""

    claim: str
    value: float | None
    limit: float
    sense: Literal["at least", "at most"] = "at least"

    @property
    def held(self) -> bool:
        """Whether the measured value satisfies the limit."""
        if self.value is None:
            return False
        return self.value >= self.limit if self.sense == "at least" else self.value <= self.limit

    @property
    def verdict(self) -> Cell:
        """`held` as a table cell; "not run" if there is no value."""
        return self.held if self.value is not None else "not run"


class Page:
    """An HTML page, built from top to bottom.

    `html` returns it as a string. `write` saves it with the attached files: figures as PNG, data as CSV.
    """

    def __init__(self, title: str):
        self.title = title
        self.files: dict[str, bytes] = {}  # attached files by name
        self.prefix = ""  # of the names of attached files, for a page that shows an experiment twice
        self._parts: list[str] = [f"<h1>{escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def subheading(self, text: str) -> None:
        self._parts.append(f"<h3>{escape(text)}</h3>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def lead(self, text: str) -> None:
        """Add a paragraph that stands out: the summary of the page."""
        self._parts.append(f'<p class="lead">{escape(text)}</p>')

    def bullets(self, items: Sequence[str]) -> None:
        """Add a bullet list."""
        self._parts.append("<ul>" + "".join(f"<li>{escape(item)}</li>\n" for item in items) + "</ul>")

    def table(self, columns: Sequence[str], rows: Rows, caption: str = "") -> None:
        """Add a table; booleans are shown as yes and no, None as a dash, other cells as in `format_cell`.

        Columns of numbers are aligned right, columns of text left. If all names are "", there is no header.
        """
        _check_widths(columns, rows, f"the table {caption!r}")
        styles = [_column_style([row[i] for row in rows]) for i in range(len(columns))]
        styled = zip(columns, styles, strict=True)
        names = [f"<th{_classes(style)}>{escape(name)}</th>" for name, style in styled]
        head = f"<thead><tr>{''.join(names)}</tr></thead>\n" if any(columns) else ""
        cells = ("".join(map(_html_cell, row, styles)) for row in rows)
        body = "".join(f"<tr>{row}</tr>\n" for row in cells)
        title = f"<caption>{escape(caption)}</caption>" if caption else ""
        table = f"<table>{title}{head}<tbody>\n{body}</tbody></table>"
        tall = " tall" if len(rows) >= TALL else ""
        self._parts.append(f'<div class="scroll{tall}" tabindex="0">{table}</div>')

    def bars(self, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]], caption: str) -> None:
        """Add a table with a horizontal bar for each number, the largest of a column being the longest.

        Negative numbers have no bar.
        """
        _check_widths(columns[1:], [values for _, values in rows], f"the bars {caption!r}")
        largest = [max(0.0, *column) for column in zip(*(values for _, values in rows), strict=True)]
        head = "".join(f'<th class="text">{escape(name)}</th>' for name in columns)
        body = ""
        for name, values in rows:
            cells = "".join(
                f'<td class="bar"><span style="width:{80 * max(value, 0.0) / (most or 1.0):.2f}%"></span>'
                f"{escape(format_number(value + 0.0, 2))}</td>"
                for value, most in zip(values, largest, strict=True)
            )
            body += f'<tr><td title="{escape(name)}">{escape(name)}</td>{cells}</tr>\n'
        table = f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        self._parts.append(f'<div class="scroll"><table class="bars">{table}</table></div>')

    def figure(self, figure: Figure, caption: str) -> None:
        """Add a figure as SVG; it is embedded as an image, so that ids of different figures cannot clash."""
        self._parts.append(_html_figure(figure, caption))

    def figures(self, figures: Sequence[tuple[Figure, str]]) -> None:
        """Add small figures with captions side by side, as many as the page has room for."""
        parts = "".join(_html_figure(figure, caption) for figure, caption in figures)
        self._parts.append(f'<div class="figures">{parts}</div>')

    def csv_data(self, name: str, columns: Sequence[str], rows: Rows) -> None:
        """Add a download link to a table as CSV, embedded in the page and attached as name.csv."""
        name = f"{self.prefix}{name}.csv"
        content = to_csv(columns, rows)
        self.files[name] = content
        target = f"data:text/csv;base64,{base64.b64encode(content).decode()}"
        link = f'<a download="{escape(name)}" href="{target}">{escape(name)}</a>'
        self._parts.append(f'<p class="data">data: {link}</p>')

    def figure_with_data(
        self, name: str, figure: Figure, caption: str, columns: Sequence[str], rows: Rows
    ) -> None:
        """Add a figure and a link to its data (columns and rows), also attached as name.png and name.csv."""
        self.figure(figure, caption)
        self.files[f"{self.prefix}{name}.png"] = render_figure(figure, "png")
        self.csv_data(name, columns, rows)

    def claims(self, claims: Sequence[Claim], caption: str = "Claims and required values") -> None:
        """Add a table of claims: measured value, limit, and whether it is met."""
        rows = [(each.claim, each.value, f"{each.sense} {each.limit:g}", each.verdict) for each in claims]
        self.table(("claim", "measured", "required", "met"), rows, caption)

    def provenance(self, records: Sequence[Mapping[str, object]]) -> None:
        """Add a section with the commands and versions that the numbers come from.

        Each record has the keys command, version, commit and torch.
        """
        columns = ("command", "version", "commit", "torch")
        self.heading("Provenance")
        self.table(columns, sorted({tuple(str(record[column]) for column in columns) for record in records}))

    def html(self) -> str:
        """The page as a string; bytes of file names that are not UTF-8 are escaped."""
        return document(escape(self.title), "\n".join(self._parts))

    def write(self, path: Path) -> None:
        """Save the page at `path`, and the attached files in the same folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            write_atomic(path.with_name(name), content)
        write_atomic(path, self.html().encode())


def to_csv(columns: Sequence[str], rows: Rows) -> bytes:
    """A table as CSV: None is an empty cell, floats keep all their digits."""
    _check_widths(columns, rows, repr(columns[0]))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue().encode()


def render_figure(figure: Figure, file_format: str) -> bytes:
    """The figure as "svg" (on a transparent ground) or "png"; equal figures give equal bytes."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if file_format == "svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "compound"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # characters missing in the font are drawn as boxes
        options: dict[str, Any] = {"dpi": 120, "bbox_inches": "tight", "metadata": metadata}
        figure.savefig(buffer, format=file_format, transparent=file_format == "svg", **options)
    return buffer.getvalue()


def format_cell(value: Cell) -> str:
    """A cell as text: floats with four significant digits, large ones with thousands separators."""
    if value is None:
        return "–"
    return format_number(value) if isinstance(value, float) else str(value)


def format_number(value: float, digits: int = 4) -> str:
    """A number for readers: 0.1235, 20,561, 2.5 × 10¹³, 9.98 × 10⁻⁷."""
    size = abs(value)
    if size == 0 or not math.isfinite(value):
        return f"{value + 0.0:g}"  # -0.0 + 0.0 = 0.0
    if LARGE <= size < HUGE:
        return f"{value:,.0f}"
    if SMALL <= size < LARGE:
        return f"{value:.0f}" if size >= 10**digits else f"{value:.{digits}g}"
    mantissa, exponent = f"{value:.{digits - 2}e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def format_percent(fraction: float) -> str:
    """A fraction between 0 and 1 for readers: 93.5%, < 0.1%."""
    return "< 0.1%" if 0 < fraction < 0.0005 else f"{100 * fraction:.1f}%"


def _html_figure(figure: Figure, caption: str) -> str:
    data = base64.b64encode(render_figure(figure, "svg")).decode()
    text = escape(caption)
    image = f'<img src="data:image/svg+xml;base64,{data}" alt="{text}">'
    return f"<figure>{image}<figcaption>{text}</figcaption></figure>"


def _column_style(cells: Sequence[Cell]) -> str:
    """The CSS class of a column: "text" where a cell is text and does not start like a number."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    return "text" if any(len(text) > MAX_NUMERIC or not NUMERIC.match(text) for text in texts) else ""


def _html_cell(value: Cell, style: str) -> str:
    if isinstance(value, bool):
        text = "yes" if value else "no"
        return f"<td{_classes(style, text)}>{text}</td>"
    text = escape(format_cell(value))
    style = f"{style} long".strip() if len(text) > MAX_NUMERIC else style
    return f"<td{_classes(style)}>{f'<b>{text}</b>' if isinstance(value, Bold) else text}</td>"


def _classes(*names: str) -> str:
    """The HTML attribute of some CSS classes."""
    names = tuple(filter(None, names))
    return f' class="{" ".join(names)}"' if names else ""


def _check_widths(columns: Sequence[str], rows: Rows, table: str) -> None:
    """Raise ValueError if a row has more or fewer cells than columns; `table` names it in the message."""
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(
                f"a row of {table} has {len(row)} cells for {len(columns)} columns: give one each"
            )
