"""The page of `compound explore`: style, program and numbers in one HTML file that needs nothing else."""

import base64
import gzip
import json
import struct
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from compound.estimators.base import Estimator
from compound.estimators.browser import check_explorable, export_program
from compound.report.theme import document
from compound.tables.explore.columns import controls, row_values
from compound.tables.model_inputs import load_estimator, read_feature_chunks

MAX_ROWS = 200  # of a table, to choose from
BODY = """<header><h1>{title}</h1><p class="note">{note}</p></header>
<main id="explore" hidden>
<section id="answer" aria-live="off"></section>
<section id="controls"></section>
<section id="more"></section>
</main>
<p id="status">Loading …</p>
<script type="application/octet-stream" id="numbers">{numbers}</script>"""


def explore_page(model: Path, table: Path | None = None, prototypes: bool = True) -> str:
    """The page of a saved model as HTML; ValueError, before any work, if a browser cannot compute the model.

    The first MAX_ROWS rows of `table`, if given, are in it to choose from. Without `prototypes` no training
    rows are.
    """
    estimator = load_estimator(model)
    check_explorable(estimator, str(model))
    rows = None if table is None else read_first_rows(table, estimator)
    target = str(getattr(estimator, "target_name_", "the target"))
    name = None if table is None else table.name
    return page_of(estimator, target, rows, name, prototypes, str(model))


def read_first_rows(table: Path, estimator: Estimator) -> pd.DataFrame:
    """The first MAX_ROWS rows of a table, as the model reads them."""
    return next(read_feature_chunks(table, estimator, MAX_ROWS, all_columns=False)).frame


def page_of(
    estimator: Estimator,
    target: str,
    rows: pd.DataFrame | None,
    table_name: str | None,
    prototypes: bool,
    model_name: str,
) -> str:
    """The page of a fitted estimator."""
    program = check_explorable(estimator, model_name)
    spec, floats = export_program(estimator, program, prototypes)
    table_rows = [] if rows is None else row_values(estimator.encoder_, rows)
    head = {
        "target": target,
        "program": spec,
        "columns": controls(estimator),
        "table": table_name,
        "rows": table_rows,
    }
    note = privacy_note(len(estimator.ood_detector_.sample) if prototypes else 0, table_rows, table_name)
    body = BODY.format(
        title=escape(f"Explore: {target}"), note=escape(note), numbers=pack(head, floats.bytes())
    )
    return document(
        escape(f"Explore: {target}"),
        body,
        asset("page.css"),
        f"(() => {{{asset('engine.js')}{asset('page.js')}}})();",
    )


def privacy_note(n_prototypes: int, rows: Sequence[Any], table: str | None) -> str:
    """What the page holds of the data, in words."""
    held = [f"{n_prototypes:,} training rows"] if n_prototypes else []
    held += [f"{len(rows):,} rows of {table}"] if rows else []
    if not held:
        return (
            "This file holds no training rows, but averages of groups of them; a group may be a single "
            "unusual row. Everything is computed in this file, without network."
        )
    return (
        f"This file holds {' and '.join(held)}: treat it as confidentially as the table. "
        "Everything is computed in it, without network."
    )


def pack(head: dict[str, Any], floats: bytes) -> str:
    """Length of the JSON text, the text, padding to 4 bytes, and numbers: compressed, as base64."""
    text = json.dumps(head, allow_nan=False, separators=(",", ":")).encode()
    content = struct.pack("<I", len(text)) + text + bytes(-len(text) % 4) + floats
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def asset(name: str) -> str:
    """A file of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
