"""A model against the truth in a table: everything `compound evaluate` tells."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compound.estimators.row_predictions import (
    RowCallback,
    RowScores,
    no_progress,
    score_frame,
    uncertainty_frame,
)
from compound.io.atomic import write_atomic
from compound.random import named_generator
from compound.tables.pages import evaluate_page, slice_columns
from compound.tables.reading import (
    asked_table,
    encode_target,
    labelled_table,
    load_estimator,
    required_columns,
)
from compound.tables.scores import LEVELS, NOMINAL, Number, Slice, curve, numbers, ood_metrics, slices
from compound.tables.tabular import listed

WORST = 10  # slices shown when none were asked for

Shown = tuple[str, Sequence[str], Sequence[Sequence[Any]]]


@dataclass(frozen=True)
class Evaluation:
    title: str
    targets: bool
    judged: RowScores
    numbers: list[Number]
    ood_metrics: list[Number]  # empty without another table
    slices: list[Slice]  # of all columns
    columns: tuple[str, ...]  # whose slices were asked for

    def tables(self) -> list[Shown]:
        """What is printed: a title, column heads, rows."""
        heads = ("", "value", "from", "to")
        shown: list[Shown] = [
            (f"{self.title}: {len(self.judged):,} rows, with 95% intervals", heads, self.numbers)
        ]
        if self.ood_metrics:
            shown.append(("Rows of the other table", heads, self.ood_metrics))
        shown.append(
            (
                "Calibration",
                ("coverage" if self.targets else "confidence", "seen", "rows"),
                curve(self.judged, self.targets),
            )
        )
        asked = [part for part in self.slices if part.column in self.columns]
        worst = sorted(self.slices, key=lambda part: part.coverage)[:WORST]
        title = f"Slices: {', '.join(self.columns)}" if self.columns else "Slices that are covered least"
        return [*shown, (title, slice_columns(self.targets), asked if self.columns else worst)]

    def write_page(self, out: Path) -> None:
        page = evaluate_page(
            self.title, self.judged, self.targets, self.numbers, self.ood_metrics, self.slices
        )
        write_atomic(out, page.html().encode())

    def write_json(self, out: Path) -> None:
        words = {
            "rows": len(self.judged),
            "numbers": {number.name: number._asdict() for number in self.numbers},
            "strangers": {number.name: number._asdict() for number in self.ood_metrics},
            "calibration": [point._asdict() for point in curve(self.judged, self.targets)],
            "slices": [part._asdict() for part in self.slices],
            "nominal": NOMINAL,
        }
        write_atomic(out, json.dumps(words, indent=2).encode() + b"\n")


def evaluate(
    model: Path,
    table: Path,
    ood: Path | None,
    target: str | None,
    columns: tuple[str, ...],
    seed: int,
    callback: RowCallback = no_progress,
) -> Evaluation:
    """Both tables are read and checked before any question is asked."""
    estimator = load_estimator(model)
    name = target or getattr(estimator, "target_name_", None)
    if name is None:
        raise ValueError(f"{model} does not know the name of its target: give --target")
    known = required_columns(table, estimator)
    for column in columns:
        if column not in known:
            raise ValueError(f"--slice is {column!r}: the model reads {listed(known)}")
    labelled = labelled_table(table, estimator, name)
    y, other = encode_target(labelled, estimator), None if ood is None else asked_table(ood, estimator)
    targets = estimator.model_.task.kind == "regression"
    judged = score_frame(estimator, labelled.x, y, LEVELS, callback)
    found = numbers(judged, targets, named_generator(seed, "bootstrap"))
    strangers = (
        []
        if other is None
        else ood_metrics(
            judged.predictions, uncertainty_frame(estimator, other), named_generator(seed, "strangers")
        )
    )
    parts = slices(judged, labelled.x, targets, known)
    return Evaluation(f"{name} in {table.name}", targets, judged, found, strangers, parts, columns)
