"""`compound evaluate`: a model's predictions for a table against the targets in it."""

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
from compound.tables.confidence_intervals import Metric
from compound.tables.file_errors import join_names
from compound.tables.model_inputs import (
    encode_target,
    load_estimator,
    read_features,
    read_labelled,
    required_columns,
)
from compound.tables.pages import METRIC_COLUMNS, evaluate_page, slice_columns
from compound.tables.prediction_metrics import (
    LEVELS,
    NOMINAL,
    Slice,
    calibration_curve,
    ood_metrics,
    prediction_metrics,
    slices,
)

WORST_SLICES = 10  # shown by default

TitledTable = tuple[str, Sequence[str], Sequence[Sequence[Any]]]  # title, column names, rows


@dataclass(frozen=True)
class Evaluation:
    """Everything that `compound evaluate` reports."""

    title: str
    is_regression: bool
    scores: RowScores
    metrics: list[Metric]
    ood_metrics: list[Metric]  # empty without an OOD table
    slices: list[Slice]  # of all columns
    slice_names: tuple[str, ...]  # columns whose slices are printed; if empty, the slices of lowest coverage

    def tables(self) -> list[TitledTable]:
        """The tables printed on the terminal."""
        title = f"{self.title}: {len(self.scores):,} rows, with 95% confidence intervals"
        tables: list[TitledTable] = [(title, METRIC_COLUMNS, self.metrics)]
        if self.ood_metrics:
            tables.append(("Out-of-distribution detection", METRIC_COLUMNS, self.ood_metrics))
        columns = ("nominal coverage" if self.is_regression else "confidence", "observed", "rows")
        tables.append(("Calibration", columns, calibration_curve(self.scores, self.is_regression)))
        if self.slice_names:
            title = f"Slices: {', '.join(self.slice_names)}"
            rows = [part for part in self.slices if part.column in self.slice_names]
        else:
            title = "Slices of lowest coverage"
            rows = sorted(self.slices, key=lambda part: part.coverage)[:WORST_SLICES]
        return [*tables, (title, slice_columns(self.is_regression), rows)]

    def write_page(self, out: Path) -> None:
        """Write the HTML report."""
        parts = self.metrics, self.ood_metrics, self.slices
        page = evaluate_page(self.title, self.scores, self.is_regression, *parts)
        write_atomic(out, page.html().encode())

    def write_json(self, out: Path) -> None:
        """Write all results as JSON."""
        results = {
            "rows": len(self.scores),
            "metrics": {metric.name: metric._asdict() for metric in self.metrics},
            "ood": {metric.name: metric._asdict() for metric in self.ood_metrics},
            "calibration": [point._asdict() for point in calibration_curve(self.scores, self.is_regression)],
            "slices": [part._asdict() for part in self.slices],
            "nominal_coverage": NOMINAL,
        }
        write_atomic(out, json.dumps(results, indent=2).encode() + b"\n")


def evaluate(
    model: Path,
    table: Path,
    ood: Path | None,
    target: str | None,
    slice_names: tuple[str, ...],
    seed: int,
    callback: RowCallback = no_progress,
) -> Evaluation:
    """Evaluate a saved model on `table`; if `ood` is given, also how well OOD scores detect its rows.

    `target` is by default that of the fit. `slice_names` are the columns whose slices are printed. Both
    tables are read and checked before any prediction. `callback` receives the number of rows done.
    """
    estimator = load_estimator(model)
    target = target or getattr(estimator, "target_name_", None)
    if target is None:
        raise ValueError(f"{model} does not store the name of its target: give --target")
    features = required_columns(table, estimator)
    for name in slice_names:
        if name not in features:
            raise ValueError(f"--slice is {name!r}: the model reads {join_names(features)}")
    labelled = read_labelled(table, estimator, target)
    y = encode_target(labelled, estimator)
    ood_features = None if ood is None else read_features(ood, estimator)
    is_regression = estimator.model_.task.kind == "regression"
    names = getattr(estimator, "target_names_", [])
    index = names.index(target) if target in names else 0
    scores = score_frame(estimator, labelled.x, y, LEVELS, callback, index)
    detection: list[Metric] = []
    if ood_features is not None:
        ood_frame = uncertainty_frame(estimator, ood_features)
        detection = ood_metrics(scores.predictions, ood_frame, named_generator(seed, "strangers"))
    return Evaluation(
        f"{target} in {table.name}",
        is_regression,
        scores,
        prediction_metrics(scores, is_regression, named_generator(seed, "bootstrap")),
        detection,
        slices(scores, labelled.x, is_regression, features),
        slice_names,
    )
