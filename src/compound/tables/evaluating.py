"""`compound evaluate`: a model's predictions for a table against the targets in it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

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
from compound.tables.evaluate_page import evaluate_page
from compound.tables.file_errors import missing_column
from compound.tables.model_inputs import (
    encode_target,
    load_estimator,
    read_features,
    read_labelled,
    required_columns,
)
from compound.tables.pages import METRIC_COLUMNS
from compound.tables.prediction_metrics import (
    LEVELS,
    NOMINAL,
    calibration_curve,
    ood_metrics,
    prediction_metrics,
)
from compound.tables.row_measures import (
    pit_histogram,
    quantile_reliability,
    risk_coverage,
    row_measures,
)
from compound.tables.slice_tables import short_slice_columns, short_slice_rows
from compound.tables.slices import RANKED, Slice, lowest_coverage, slices
from compound.tables.table_files import column_names, infer_table

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
            parts = [part for part in self.slices if part.column in self.slice_names]
        else:
            title = f"Slices of lowest coverage, of those with {RANKED} rows or more"
            parts = lowest_coverage(self.slices, WORST_SLICES)
        return [*tables, (title, short_slice_columns(self.is_regression), short_slice_rows(parts))]

    def write_page(self, out: Path) -> None:
        """Write the HTML report."""
        parts = self.metrics, self.ood_metrics, self.slices, self.slice_names
        page = evaluate_page(self.title, self.scores, self.is_regression, *parts)
        write_atomic(out, page.html().encode())

    def write_json(self, out: Path) -> None:
        """Write all results as JSON."""
        results = {
            "rows": len(self.scores),
            "metrics": {metric.name: metric._asdict() for metric in self.metrics},
            "ood": {metric.name: metric._asdict() for metric in self.ood_metrics},
            "calibration": [point._asdict() for point in calibration_curve(self.scores, self.is_regression)],
            "risk_coverage": [point._asdict() for point in risk_coverage(self.scores, self.is_regression)],
            **self._target_results(),
            "slices": [slice_results(part) for part in self.slices],
            "nominal_coverage": NOMINAL,
        }
        write_atomic(out, json.dumps(results, indent=2).encode() + b"\n")

    def _target_results(self) -> dict[str, Any]:
        """PIT histogram and reliability of quantiles; nothing for classes."""
        if not self.is_regression:
            return {}
        quantiles = [point._asdict() for point in quantile_reliability(self.scores)]
        return {"pit": pit_histogram(self.scores).tolist(), "quantiles": quantiles}


def slice_results(part: Slice) -> dict[str, Any]:
    """A slice as JSON; without an interval, as of a single row, its ends are null."""
    estimates = {
        name: {key: None if value != value else value for key, value in estimate._asdict().items()}
        for name, estimate in (("coverage", part.coverage), ("nll", part.nll), ("error", part.error))
    }
    size = None if part.size != part.size else part.size
    return {**part._asdict(), **estimates, "size": size, "verdict": part.verdict}


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

    `target` is by default that of the fit. `slice_names` are the columns whose slices are printed; the model
    need not read them. Both tables are read and checked before any prediction. `callback` receives the
    number of rows done.
    """
    estimator = load_estimator(model)
    target = target or getattr(estimator, "target_name_", None)
    if target is None:
        raise ValueError(f"{model} does not store the name of its target: give --target")
    features = required_columns(table, estimator)
    names = column_names(table)
    for name in slice_names:
        if name not in names:
            raise missing_column(table, name, names)
    labelled = read_labelled(table, estimator, target)
    others = [name for name in dict.fromkeys(slice_names) if name not in features]
    sliced = labelled.x
    if others:
        sliced = pd.concat([sliced, infer_table(table, others, None).frame], axis=1)
    y = encode_target(labelled, estimator)
    ood_features = None if ood is None else read_features(ood, estimator)
    is_regression = estimator.model_.task.kind == "regression"
    names = getattr(estimator, "target_names_", [])
    index = names.index(target) if target in names else 0
    measure = partial(row_measures, target=index)
    scores = score_frame(estimator, labelled.x, y, LEVELS, callback, index, measure)
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
        slices(scores, sliced, is_regression, [*features, *others]),
        slice_names,
    )
