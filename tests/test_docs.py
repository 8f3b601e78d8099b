"""The documentation is complete, and its site builds without warnings and without network."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import test_imports

import compound
import compound.nn

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "results").glob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def extensions():
    """The modules of docs/_ext."""
    sys.path.insert(0, str(DOCS / "_ext"))
    import docstrings
    import draw_architecture
    import generated_pages

    yield {"docstrings": docstrings, "drawing": draw_architecture, "pages": generated_pages}
    sys.path.remove(str(DOCS / "_ext"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page: Path):
    targets = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    generated = [link for link in targets if link.startswith("generated/")]  # the site's build checks these
    assert not [link for link in targets if link not in generated and not (page.parent / link).exists()]


def test_architecture_names_modules_that_exist():
    source = Path(compound.__file__).parent
    rooms = {room.partition(".")[0] for room in test_imports.TABLE}
    named = re.findall(r"`(\w+)[./](\w+)(?:\.py)?`", (ROOT / "ARCHITECTURE.md").read_text())
    modules = [source / room / f"{module}.py" for room, module in named if room in rooms and module != "html"]
    assert len(modules) >= 5
    assert not [path for path in modules if not path.is_file() and not path.with_suffix("").is_dir()]


def test_reference_lists_every_public_name():
    page = (DOCS / "api.md").read_text()
    layers = [name for name, value in vars(compound.nn).items() if isinstance(value, type)]
    assert not [name for name in (*compound.__all__, *layers) if not re.search(rf"^   {name}$", page, re.M)]


def test_method_pages_hold_docstring_equations_and_options(extensions):
    pages = extensions["pages"]
    for name in pages.method_names():
        text = pages.method_page(name)
        assert "\n\n    " in text.partition("## Options")[0]  # an indented equation
        assert "A draw:" in text
        assert f'build("{name}"' in text
    assert "| [`ml-cdn`]" in pages.method_index()
    assert "compound fit" in pages.command_page()


def test_docstrings_become_restructured_text(extensions):
    convert = extensions["docstrings"]
    lines = [
        "A norm |x|, a star *, a field_.",
        "",
        "    p = |x| * y_",
        "",
        "Parameters",
        "----------",
        "*args : shape (*n, k_)",
    ]
    out = convert.escape_prose(convert.literal_blocks(lines))
    assert out[0] == r"A norm \|x\|, a star \*, a field\_."
    assert out[2:5] == ["::", "", "    p = |x| * y_"]
    assert out[-1] == r"*args : shape (\*n, k\_)"


def test_drawing_shows_every_room_above_what_it_imports(extensions):
    drawing = extensions["drawing"]
    assert (DOCS / "architecture.svg").read_text() == drawing.draw()  # python docs/_ext/draw_architecture.py
    order = [name for _, rooms in drawing.LAYERS for name in rooms]
    table = {room: allowed for room, allowed in test_imports.TABLE.items() if room != "__init__"}
    assert {room.partition(".")[0] for room in table} == set(order)
    place = {name: i for i, name in enumerate(order)}
    upwards = [
        (room, other)
        for room, allowed in table.items()
        for other in {name.partition(".")[0] for name in allowed} - {room.partition(".")[0]}
        if place[other] < place[room.partition(".")[0]]
    ]
    assert not upwards


@pytest.mark.slow
def test_site_builds_without_warnings_and_without_network(tmp_path: Path):
    pytest.importorskip("sphinx")
    copy = tmp_path / "copy"  # pages are generated beside the sources
    for name in ("docs", "results", "examples"):
        shutil.copytree(
            ROOT / name, copy / name, ignore=shutil.ignore_patterns("generated", "*.json", "*.csv")
        )
    for page in ROOT.glob("*.md"):
        shutil.copy(page, copy)
    (copy / "src").symlink_to(ROOT / "src")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-D",
        "gallery_run=0",
    ]
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(
        [*command, copy / "docs", tmp_path / "html"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "html").rglob("*.html"))
    assert len(pages) > 50
    asset = re.compile(
        r"<(?:script|img)[^>]*src=\"https?:|<link[^>]*(?:stylesheet|preload|icon)[^>]*href=\"https?:"
    )
    assert not [page for page in pages if asset.search(page.read_text())]
