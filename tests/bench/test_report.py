import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from compound.bench.report import Bar, Page, drawn


class Cells(HTMLParser):
    """Tags must close in order; the text of cells is kept."""

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
    made.table(("name", "value"), [("a & b", 0.123456), ("count", 12), ("held", True), ("missed", False), ("none", None)])
    made.figure(line(), 'a "line"')
    return made


def test_page_is_well_formed_and_shows_words_as_they_are():
    cells = Cells(page().html()).cells
    assert {"A <b> & c", "x < y", "a & b", "0.1235", "12", "yes", "no", "–", 'a "line"'} <= set(cells)


def test_page_needs_nothing_from_outside():
    text = page().html()
    for source in re.findall(r'(?:src|href)="([^"]*)', text):
        assert source.startswith("data:")
    picture = base64.b64decode(re.findall(r"base64,([^\"]*)", text)[0])
    assert picture.startswith(b"<?xml")
    assert b"<svg" in picture


def test_same_page_same_bytes():
    assert page().html() == page().html()
    assert drawn(line(), "png") == drawn(line(), "png")


def test_write_replaces_the_page_as_a_whole(tmp_path: Path):
    target = tmp_path / "deep" / "index.html"
    page().write(target)
    page().write(target)
    assert target.read_text() == page().html()
    assert [path.name for path in target.parent.iterdir()] == ["index.html"]  # no temporary file is left


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
def test_bars_are_held_on_the_right_side(value, limit, sense, held):
    bar = Bar("claim", value, limit, sense)
    assert bar.held is held
    made = Page("t")
    made.bars([bar])
    assert ("yes" if held else "no") in Cells(made.html()).cells


def test_nan_holds_no_bar():
    assert not Bar("claim", float("nan"), 0).held
    assert not Bar("claim", float("nan"), 0, "at most").held
