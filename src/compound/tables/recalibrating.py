"""`compound recalibrate`: adapt the intervals or sets of a saved model to rows whose truth has arrived."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from compound.estimators import files
from compound.io.model_directory import REPORT
from compound.tables.model_inputs import LabelledTable, load_estimator, read_labelled


class Recalibration(NamedTuple):
    """What `recalibrate_model` did."""

    rows: int
    left_out: int  # rows without a target
    covered: float  # fraction of the rows inside the 90% intervals or sets before


def recalibrate_model(model: Path, table: Path, out: Path | None = None) -> Recalibration:
    """Adapt a saved model to the rows of a table, in their order; save it at `out`, by default in place."""
    estimator: Any = load_estimator(model)
    target = getattr(estimator, "target_name_", None)
    if target is None:
        raise ValueError(f"{model} does not store the name of its target: recalibrate it in Python")
    labelled = read_labelled(table, estimator, target)
    names = getattr(estimator, "target_names_", [])
    if len(names) > 1:
        others = [read_labelled(table, estimator, name) for name in names[1:]]
        if any(other.left_out or labelled.left_out for other in others):
            raise ValueError(f"{table} has rows without one of the targets: remove them")
        y = np.column_stack([labelled.y, *(other.y for other in others)]).astype(np.float64)
    else:
        y = labelled.y.to_numpy()
    event = _event(estimator, labelled)
    covered = float(
        (estimator._scores(labelled.x, y, event).numpy() <= _thresholds(estimator, labelled)).mean()
    )
    estimator.recalibrate(labelled.x, y, event=event)
    report = model / REPORT
    files.save(estimator, out or model, report.read_bytes() if report.is_file() else None)
    return Recalibration(len(y), labelled.left_out, covered)


def _event(estimator: Any, labelled: LabelledTable) -> Any:
    name = getattr(estimator, "roles_", {}).get("event")
    return None if name is None else labelled.columns[name].to_numpy(np.float64)


def _thresholds(estimator: Any, labelled: LabelledTable) -> Any:
    return estimator.thresholds(0.9, len(labelled.y), estimator.row_groups(labelled.x)).numpy()
