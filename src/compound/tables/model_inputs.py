"""Table files as inputs of a model: features, target and task, checked before any work."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from compound.estimators import memory
from compound.estimators.base import Estimator
from compound.estimators.columns import is_categorical
from compound.estimators.files import load
from compound.estimators.number_forms import NumberForm
from compound.estimators.target_kinds import positive_times
from compound.tables.file_errors import file_location, join_names, missing_column
from compound.tables.frames import ColumnType
from compound.tables.id_columns import id_columns
from compound.tables.roles import Roles
from compound.tables.table_files import Chunk, column_names, infer_table, read_chunks, read_table

TaskOption = Literal["auto", "regression", "classification"]
MAX_FEATURES = 10_000  # columns: whitening this many takes 4 GB and ten minutes
NO_ROLES = Roles()
MAX_INTEGER_CLASSES = 10  # integer targets with at most this many distinct values are classes


class LabelledTable(NamedTuple):
    """Features and target of a table file."""

    path: Path
    x: pd.DataFrame
    y: "pd.Series[Any]"
    forms: Mapping[str, NumberForm] = MappingProxyType({})  # of columns whose numbers are not plain ones
    ids: tuple[str, ...] = ()  # columns left out, because they seem to name the rows
    columns: pd.DataFrame = pd.DataFrame()  # those with a role, and further targets
    rows: "NDArray[Any] | None" = None  # indices in the file of the rows, where some have no target
    left_out: int = 0  # rows without a target

    def take(self, mask: "NDArray[Any]") -> "LabelledTable":
        """The rows that the mask (rows,) marks."""
        parts = (part[mask].reset_index(drop=True) for part in (self.x, self.y))
        columns = self.columns[mask].reset_index(drop=True) if len(self.columns.columns) else self.columns
        x, y = parts
        return self._replace(x=x, y=y, columns=columns, rows=self.file_rows[mask])

    @property
    def file_rows(self) -> "NDArray[Any]":  # (rows,)
        """Indices in the file of the rows, from 0."""
        return np.arange(len(self.y)) if self.rows is None else self.rows


def load_estimator(path: Path) -> Estimator:
    """Load a saved estimator."""
    estimator: Estimator = load(path)
    return estimator


def read_training_table(
    path: Path, target: str, drop: Sequence[str] = (), keep: Sequence[str] = (), roles: Roles = NO_ROLES
) -> LabelledTable:
    """Read and check a training table: all columns but those in `drop`, which are not parsed.

    Columns that seem to name the rows are left out, unless they are in `keep`, and so are rows without a
    target.
    """
    roles.check(path, column_names(path), target, drop)
    columns = check_columns(path, column_names(path), target, drop, keep, roles.no_features)
    max_bytes = memory.available()
    table, forms = infer_table(path, columns, max_bytes)
    if types.is_datetime64_any_dtype(table[target]):
        raise ValueError(
            f"{path}, column {target!r} holds times, which cannot be predicted: choose another --target"
        )
    has_target = table[[target, *roles.more_targets]].notna().all(axis=1).to_numpy()
    if not has_target.any():
        raise ValueError(f"{path}, column {target!r} is empty in every row: choose another --target")
    check_finite(path, table)
    rows = np.flatnonzero(has_target)
    if not has_target.all():
        table = exact_targets(table[has_target].reset_index(drop=True), [target, *roles.more_targets])
    roles.check_values(path, table, rows)
    x = table.drop(columns=[target, *roles.no_features])
    ids = tuple(name for name in id_columns(x) if name not in (*keep, roles.group))
    if len(ids) == x.shape[1]:
        raise ValueError(
            f"{path}, column {ids[0]!r} seems to name the rows, and no other feature is left: "
            f"give --keep {ids[0]} to use it"
        )
    left_out = int((~has_target).sum())
    x = x.drop(columns=list(ids))
    return LabelledTable(path, x, table[target], forms, ids, table[roles.columns], rows, left_out)


def exact_targets(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Targets that were read as floats because some were missing, as integers again if they are whole."""
    for name in names:
        column = table[name]
        if types.is_bool_dtype(column.dtype):
            table = table.assign(**{name: column.astype(bool)})
        elif types.is_numeric_dtype(column.dtype) and bool((column == column.round()).all()):
            table = table.assign(**{name: column.astype(np.int64)})
    return table


def check_columns(
    path: Path,
    names: Sequence[str],
    target: str,
    drop: Sequence[str],
    keep: Sequence[str],
    no_features: Sequence[str] = (),
) -> list[str]:
    """The columns to read of those in `names`; ValueError if one is missing, or for too few or too many."""
    for name in (target, *drop, *keep):
        if name not in names:
            raise missing_column(path, name, names)
    if target in drop:
        raise ValueError(f"column {target!r} is both target and dropped: drop another one")
    if both := [name for name in keep if name in drop]:
        raise ValueError(f"column {both[0]!r} is both kept and dropped: give --keep or --drop")
    dropped = set(drop)
    columns = [name for name in names if name not in dropped]
    _check_n_features(path, target, len(columns) - 1 - len(no_features))
    return columns


def _check_n_features(path: Path, target: str, n_features: int) -> None:
    """Raise ValueError for too few or too many features."""
    if n_features < 1:
        raise ValueError(f"{path} has no feature column besides the target {target!r}: give at least one")
    if n_features > MAX_FEATURES:
        raise ValueError(
            f"{path} has {n_features:,} feature columns, at most {MAX_FEATURES:,} are supported: "
            "leave some out with --drop"
        )
    free = memory.available()
    needed = memory.whitening_bytes(n_features)
    if free is not None and needed > free:
        raise ValueError(
            f"{path} has {n_features:,} feature columns, which need at least {needed / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} GB are free: leave some out with --drop"
        )


def infer_task(path: Path, y: "pd.Series[Any]", task: TaskOption) -> Literal["regression", "classification"]:
    """The task for target `y`; ValueError if `y` does not suit the task asked for.

    With "auto", text, booleans and integers with at most MAX_INTEGER_CLASSES distinct values, some of them
    repeated, are classes; other numbers are regression targets.
    """
    is_label = is_categorical(y) or types.is_bool_dtype(y)
    if task == "regression":
        if is_label:
            raise ValueError(
                f"{path}, {file_location(path, 0)}, column {y.name!r} holds {y.iloc[0]!r}: "
                "regression needs numbers, use --task classification"
            )
        return "regression"
    is_discrete = is_label or bool((y == y.round()).all())
    n_distinct = y.nunique()
    few_values = n_distinct <= MAX_INTEGER_CLASSES and n_distinct < len(y)
    if task == "auto" and not (is_label or (is_discrete and few_values)):
        return "regression"
    _check_classes(path, y, is_discrete, n_distinct)
    return "classification"


def _check_classes(path: Path, y: "pd.Series[Any]", is_discrete: bool, n_distinct: int) -> None:
    """Raise ValueError if `y` is not discrete, has a single class, or a different class in each row."""
    if not is_discrete:
        row = int(np.flatnonzero(y != y.round())[0])
        raise ValueError(
            f"{path}, {file_location(path, row)}, column {y.name!r} holds {y.iloc[row]}: "
            "classes are text or integers, use --task regression"
        )
    if n_distinct == 1:
        raise ValueError(
            f"{path}, column {y.name!r} holds one class only, {y.iloc[0]}: choose another --target"
        )
    if n_distinct == len(y):
        raise ValueError(
            f"{path}, column {y.name!r} holds {n_distinct:,} classes in {len(y):,} rows, no two alike: "
            "choose another --target"
        )


def encode_target(table: LabelledTable, estimator: Estimator) -> NDArray[Any]:  # (rows,)
    """The target as floats, or as indices into the estimator's `classes_`; times and events as (rows, 2)."""
    path, y = table.path, table.y
    if estimator.model_.task.kind == "regression":
        event = getattr(estimator, "roles_", {}).get("event")
        times = y.to_numpy(np.float64)
        if event is None:
            return times
        events = table.columns[event].to_numpy(np.float64)
        return np.column_stack([positive_times(times[:, None]), events])
    classes = estimator.classes_.tolist()  # type: ignore[attr-defined]
    index = {label: i for i, label in enumerate(classes)}
    labels = y.tolist()
    for row, label in enumerate(labels):
        if label not in index:
            raise ValueError(
                f"{path}, {file_location(path, row)}, column {y.name!r} holds {label!r}: "
                f"the model knows {join_names(classes)}"
            )
    return np.array([index[label] for label in labels], dtype=np.int64)


def read_features(path: Path, estimator: Estimator) -> pd.DataFrame:
    """Read the feature columns of a model from a table, in the model's order."""
    required_columns(path, estimator)
    table = read_table(path, column_types(estimator), memory.available())
    check_finite(path, table)
    return table


def read_labelled(path: Path, estimator: Estimator, target: str) -> LabelledTable:
    """Read the feature columns of a model and the target from a table."""
    features = required_columns(path, estimator)
    names = column_names(path)
    if target not in names:
        raise missing_column(path, target, names, ", the target to compare with")
    form = number_forms(estimator).get(target)
    event = getattr(estimator, "roles_", {}).get("event")
    if event is not None and event not in names:
        raise missing_column(path, event, names, ", which tells the events observed")
    dtypes = {**column_types(estimator), target: form or _target_type(estimator)}
    roles = [] if event is None else [event]
    table = read_table(path, {**dtypes, **dict.fromkeys(roles, "number")}, memory.available())
    has_target = table[target].notna().to_numpy()
    if not has_target.any():
        raise ValueError(f"{path}, column {target!r} is empty in every row: nothing to compare with")
    check_finite(path, table[features])
    if not has_target.all():
        table = exact_targets(table[has_target].reset_index(drop=True), [target])
    rows, left_out = np.flatnonzero(has_target), int((~has_target).sum())
    x, y = table[features], table[target]
    return LabelledTable(path, x, y, columns=table[roles], rows=rows, left_out=left_out)


def column_types(estimator: Estimator) -> dict[str, ColumnType]:
    """The type as which each of a model's columns must be read, or the form of its numbers."""
    forms = number_forms(estimator)
    kinds = estimator.encoder_.types()
    return {name: forms[name] if kind == "number" and name in forms else kind for name, kind in kinds.items()}


def number_forms(estimator: Estimator) -> dict[str, NumberForm]:
    """How numbers are written in the columns, and the target, where they are not plain ones."""
    return getattr(estimator, "number_forms_", {})


def read_feature_chunks(
    path: Path, estimator: Estimator, rows: int, all_columns: bool = True
) -> Iterator[Chunk]:
    """Read a table in chunks of at most `rows` rows: all columns unchanged, the feature columns parsed.

    Without `all_columns`, others are not read.
    """
    required_columns(path, estimator)
    offset = 0
    for chunk in read_chunks(path, column_types(estimator), rows, all_columns):
        check_finite(path, chunk.frame, offset)
        yield chunk
        offset += len(chunk.frame)


def required_columns(path: Path, estimator: Estimator) -> list[str]:
    """The names of a model's feature columns; ValueError if the table lacks one."""
    names = set(column_names(path))
    required = [column.name for column in estimator.encoder_.columns]
    for name in required:
        if name not in names:
            raise missing_column(path, name, column_names(path), f" (the model reads {join_names(required)})")
    return required


def check_finite(path: Path, table: pd.DataFrame, offset: int = 0) -> None:
    """Raise ValueError at an infinite number; `offset` rows of the file precede the first row of `table`."""
    for name in table:
        column = table[name]
        if not types.is_float_dtype(column):
            continue
        infinite = np.flatnonzero(np.isinf(column.to_numpy(np.float64, na_value=np.nan)))
        if len(infinite):
            where = file_location(path, offset + int(infinite[0]))
            raise ValueError(
                f"{path}, {where}, column {name!r} is infinite: give a finite number or leave it empty"
            )


def check_not_missing(path: Path, y: "pd.Series[Any]", target: str, offset: int = 0) -> None:
    """Raise ValueError at a row without target; `offset` rows of the file precede the first row of `y`."""
    missing = np.flatnonzero(y.isna())
    if len(missing):
        total = f", {len(missing):,} rows in all" if len(missing) > 1 else ""
        where = file_location(path, offset + int(missing[0]))
        raise ValueError(f"{path}, {where}, column {target!r} is empty{total}: fill it or remove such rows")


def _target_type(estimator: Estimator) -> str:
    """How to parse the target column: "number", "boolean" or "text"."""
    if estimator.model_.task.kind == "regression":
        return "number"
    kind = estimator.classes_.dtype.kind  # type: ignore[attr-defined]
    return {"b": "boolean", "i": "number", "u": "number", "f": "number"}.get(kind, "text")
