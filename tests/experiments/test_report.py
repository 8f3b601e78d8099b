"""HTML reports: escaping, embedded data, claims, and distinct plot styles."""

import base64
import csv
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from compound.experiments.provenance import command
from compound.models import METHODS
from compound.report.page import Claim, Page, format_cell, render_figure
from compound.report.plot_styles import CDNS, FAMILIES, METHOD_STYLES, plot_style


class Cells(HTMLParser):
    """Collects the text of cells; fails where tags do not close in order."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th", "p", "h1", "figcaption"):
            self.cells.append(data)


def line() -> Figure:
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1], [0, 1])
    return figure


def page() -> Page:
    made = Page("A <b> & c")
    made.text("x < y")
    made.table(
        ("name", "value"),
        [("a & b", 0.123456), ("count", 12), ("held", True), ("missed", False), ("none", None)],
    )
    made.figure(line(), 'a "line"')
    return made


def test_page_is_well_formed_and_escapes_text():
    cells = Cells(page().html()).cells
    assert {"A <b> & c", "x < y", "a & b", "0.1235", "12", "yes", "no", "–", 'a "line"'} <= set(cells)


def test_page_has_no_external_resources():
    text = page().html()
    for source in re.findall(r'(?:src|href)="([^"]*)', text):
        assert source.startswith("data:")
    picture = base64.b64decode(re.findall(r"base64,([^\"]*)", text)[0])
    assert picture.startswith(b"<?xml")
    assert b"<svg" in picture


def test_same_page_same_bytes():
    assert page().html() == page().html()
    assert render_figure(line(), "png") == render_figure(line(), "png")


def test_write_replaces_the_page_as_a_whole(tmp_path: Path):
    target = tmp_path / "deep" / "index.html"
    page().write(target)
    page().write(target)
    assert target.read_text() == page().html()
    assert [path.name for path in target.parent.iterdir()] == ["index.html"]  # no temporary file remains


def test_ragged_table_is_refused():
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        Page("t").table(("a", "b"), [("only",)], "pairs")


@pytest.mark.parametrize(
    "value,limit,sense,held",
    [
        (2.0, 2, "at least", True),
        (1.9, 2, "at least", False),
        (2.1, 2, "at most", False),
        (2, 2, "at most", True),
        (None, 0, "at most", False),
    ],
)
def test_claims_hold_on_the_right_side_of_their_limit(value, limit, sense, held):
    claim = Claim("claim", value, limit, sense)
    assert claim.held is held
    made = Page("t")
    made.claims([claim])
    assert ("not run" if value is None else "yes" if held else "no") in Cells(made.html()).cells


def test_nan_satisfies_no_claim():
    assert not Claim("claim", float("nan"), 0).held
    assert not Claim("claim", float("nan"), 0, "at most").held


def test_figure_data_are_embedded_and_attached(tmp_path: Path):
    made = Page("t")
    made.prefix = "paper-"
    rows = [("a, b", 0.1 + 0.2, None), ('say "x"', 1e-17, 3)]
    made.figure_with_data("curves", line(), "caption", ("name", "x", "n"), rows)
    made.write(tmp_path / "index.html")
    content = (tmp_path / "paper-curves.csv").read_bytes()
    (link,) = re.findall(r'download="paper-curves.csv" href="data:text/csv;base64,([^"]*)', made.html())
    assert base64.b64decode(link) == content
    read = list(csv.reader(content.decode().splitlines()))
    assert (
        read[0] == ["name", "x", "n"]
        and read[1][0] == "a, b"
        and float(read[1][1]) == 0.1 + 0.2
        and read[1][2] == ""
    )
    assert read[2][0] == 'say "x"' and float(read[2][1]) == 1e-17
    assert (tmp_path / "paper-curves.png").read_bytes() == render_figure(line(), "png")
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        made.csv_data("short", ("a", "b"), [("only",)])


def test_methods_are_distinct_without_colour():
    assert set(METHOD_STYLES) == set(METHODS)
    for members in FAMILIES.values():
        shapes = [(str(style.line), style.marker) for style in members.values()]
        assert len({marker for _, marker in shapes}) == len(shapes) == len(set(shapes))
    assert len({style.colour for style in METHOD_STYLES.values()}) == len(METHOD_STYLES)
    for method in FAMILIES[CDNS]:
        forms = [plot_style(method, form) for form in ("", "other", "published")]
        assert (
            len({form["color"] for form in forms}) == 1
            and len({str(form["linestyle"]) for form in forms}) == 3
        )


def test_provenance_command_has_no_folders():
    arguments = [
        "/home/me/bin/compound",
        "run",
        "toy",
        "--out",
        "/home/me/x y",
        "--runs=../deep/runs",
        "--json",
        "a.json",
        "--seeds",
        "3",
    ]
    assert command(arguments) == "compound run toy --out 'x y' --runs=runs --json a.json --seeds 3"


@pytest.mark.parametrize(
    "value,text",
    [
        (0.123456, "0.1235"),
        (-0.0, "0"),
        (20561.3, "20,561"),
        (2.5e7, "25,000,000"),
        (2.5e13, "2.50 × 10¹³"),
        (9.987e-07, "9.99 × 10⁻⁷"),
        (-3e-5, "-3.00 × 10⁻⁵"),
        (0.0001, "0.0001"),
        (float("inf"), "inf"),
        (12, "12"),
        (None, "–"),
    ],
)
def test_cells_are_formatted(value, text):
    assert format_cell(value) == text


def test_text_is_aligned_left_and_numbers_right():
    made = Page("t")
    made.table(("name", "number", "text"), [("a", "0.1 ± 0.2", "12"), ("b", 3.0, "unknown")])
    html = made.html()
    assert "<th>number</th>" in html and "<td>0.1 ± 0.2</td>" in html
    assert '<th class="text">text</th>' in html and '<td class="text">12</td>' in html
