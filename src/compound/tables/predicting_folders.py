"""`compound predict` for a folder of parquet files: a file of predictions beside each, in another folder.

Every file is written atomically, and what is done is listed with the model and the source's size and time. So
an interrupted prediction goes on with the files that are missing, and no row is written twice.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compound.estimators.base import Estimator
from compound.io.atomic import write_atomic
from compound.io.bundle import digest
from compound.io.paths import check_writable
from compound.tables.model_inputs import required_columns
from compound.tables.parquet_rows import ParquetRows
from compound.tables.streaming import PredictSummary, predict_file

LIST = "_predicted.json"  # parquet readers pass over names that begin with _


@dataclass(frozen=True)
class Part:
    """A file that is done."""

    size: int  # of the source, in bytes
    changed: int  # when the source was, in nanoseconds
    rows: int
    n_ood: int


def predict_folder(
    estimator: Estimator,
    source: Path,
    out: Path,
    coverage: float,
    predictions_only: bool,
    callback: Callable[..., None],
) -> PredictSummary:
    """Write predictions for every parquet file in `source` to a file of the same name in `out`.

    `callback` receives the number of rows done, and that of all rows.
    """
    table = ParquetRows.open(source)
    for file in table.files:
        required_columns(file, estimator)
    if out.exists() and not out.is_dir():
        raise ValueError(
            f"{out} is a file: predictions for a folder are written to a folder, choose another --out"
        )
    if out.absolute() == source.absolute() or source.absolute() in out.absolute().parents:
        raise ValueError(f"{out} lies in the folder that is read: choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    check_writable(out / LIST)
    identity = _identity(estimator, coverage, predictions_only)
    done = _done(out, identity)
    start, rows, n_ood = time.monotonic(), 0, 0
    for file in table.files:
        name, state = file.relative_to(source).as_posix(), file.stat()
        part = done.get(name)
        target = out / name
        if (
            part is None
            or (part.size, part.changed) != (state.st_size, state.st_mtime_ns)
            or not target.exists()
        ):
            target.parent.mkdir(parents=True, exist_ok=True)
            summary = predict_file(
                estimator, file, target, coverage, predictions_only, _after(rows, table.count, callback)
            )
            part = Part(state.st_size, state.st_mtime_ns, summary.rows, summary.n_ood)
            done[name] = part
            content = {"identity": identity, "parts": {key: asdict(value) for key, value in done.items()}}
            write_atomic(out / LIST, json.dumps(content, indent=1).encode())
        rows, n_ood = rows + part.rows, n_ood + part.n_ood
        callback(rows, table.count)
    return PredictSummary(rows, n_ood, time.monotonic() - start)


def _after(before: int, total: int, callback: Callable[..., None]) -> Callable[[int], None]:
    """A callback for one file, after `before` rows."""
    return lambda rows: callback(before + rows, total)


def _identity(estimator: Any, coverage: float, predictions_only: bool) -> str:
    """A digest of the model and of what is asked of it."""
    options = [coverage, predictions_only, estimator.seed_, estimator.encoder_.to_config()]
    return digest(json.dumps(options), estimator.model_.state_dict())


def _done(out: Path, identity: str) -> dict[str, Part]:
    """The files that are done; ValueError where `out` holds predictions of another model."""
    path = out / LIST
    if not path.exists():
        if other := next((entry.name for entry in out.iterdir()), None):
            raise ValueError(f"{out} holds {other!r}: choose another --out or empty the folder")
        return {}
    try:
        content = json.loads(path.read_text())
        parts = {str(name): Part(**entry) for name, entry in content["parts"].items()}
        same = content["identity"] == identity
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: empty the folder, or choose another --out") from error
    if not same:
        raise ValueError(f"{out} holds predictions of another model or coverage: choose another --out")
    return parts
