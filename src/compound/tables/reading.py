"""Table files as a model needs them: the right columns, the right kinds, and a place in the file for whatever is wrong."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray
from pandas.api import types as kinds

from compound.data.encoder import Category, is_words
from compound.data.tabular import TYPES, column_names, place, read_chunks, read_table
from compound.estimators.base import Estimator
from compound.estimators.files import load

Kind = Literal["auto", "targets", "classes"]
TIMES = ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period")
FEW = 10  # whole numbers with no more distinct values than this are taken for classes


class Labelled(NamedTuple):
    """A table and what is to be predicted of it."""

    path: Path
    x: pd.DataFrame
    y: "pd.Series[Any]"


def opened(path: Path) -> Estimator:
    """A saved estimator that answers with one number or class per row."""
    estimator: Estimator = load(path)
    size = estimator.model_.task.size
    if estimator.model_.task.kind == "targets" and size > 1:
        raise ValueError(f"{path} predicts {size} targets at once: the command works with one, use compound.load in Python")
    return estimator


def training_table(path: Path, target: str, drop: Sequence[str] = ()) -> Labelled:
    """A table to learn from, every problem told before any work."""
    names = column_names(path)
    for name in (target, *drop):
        if name not in names:
            raise ValueError(f"{path} has no column {name!r}: it has {', '.join(names)}")
    if target in drop:
        raise ValueError(f"column {target!r} is both target and dropped: drop another one")
    if not set(names) - {target, *drop}:
        raise ValueError(f"{path} has no column besides {target!r} to learn from: give at least one")
    table = _readable(path, read_table(path))
    y = table[target]
    refuse_gaps(path, y, target)
    for name in table:
        refuse_endless(path, table[name])
    return Labelled(path, table.drop(columns=[target, *drop]), y)


def task_of(path: Path, y: "pd.Series[Any]", wish: Kind) -> Literal["targets", "classes"]:
    """Words, truth values and whole numbers with few values are classes, other numbers are targets."""
    words = is_words(y) or kinds.is_bool_dtype(y)
    if wish == "targets":
        if words:
            raise ValueError(f"{path}, {place(path, 0)}, column {y.name!r} holds {y.iloc[0]!r}: targets are numbers, use --task classes")
        return "targets"
    if wish == "classes":
        return "classes"
    whole = words or (kinds.is_numeric_dtype(y) and bool((y == y.round()).all()))
    return "classes" if words or (whole and y.nunique() <= FEW) else "targets"


def truth(labelled: Labelled, estimator: Estimator) -> NDArray[Any]:  # (rows,)
    """y as numbers, or as places in the model's classes."""
    path, y = labelled.path, labelled.y
    if estimator.model_.task.kind == "targets":
        return _numbers(path, y)
    known = {label: i for i, label in enumerate(estimator.classes_.tolist())}  # type: ignore[attr-defined]
    values = y.tolist()
    for row, value in enumerate(values):
        if value not in known:
            listed = ", ".join(str(label) for label in known)
            raise ValueError(f"{path}, {place(path, row)}, column {y.name!r} holds {value!r}: the model knows {listed}")
    return np.array([known[value] for value in values], dtype=np.int64)


def asked_table(path: Path, estimator: Estimator) -> pd.DataFrame:
    """The columns that a model reads, in its order."""
    return model_columns(path, read_table(path, _types(path, estimator)), estimator)


def labelled_table(path: Path, estimator: Estimator, target: str) -> Labelled:
    """The columns that a model reads, and the truth beside them."""
    needed(path, estimator)
    if target not in column_names(path):
        raise ValueError(f"{path} has no column {target!r}, the truth to compare with: it has {', '.join(column_names(path))}")
    table = read_table(path, {**_types(path, estimator), target: _target_type(estimator)})
    refuse_gaps(path, table[target], target)
    return Labelled(path, model_columns(path, table, estimator), table[target])


def chunks(path: Path, estimator: Estimator) -> Iterator[pd.DataFrame]:
    """The whole table piece by piece, with columns that the model does not read as they stand."""
    yield from read_chunks(path, _types(path, estimator))


def arrow_types(path: Path, estimator: Estimator) -> dict[str, pa.DataType]:
    """What each column of a table is, the same for every piece of it."""
    needed(path, estimator)
    if path.suffix == ".parquet":
        return {field.name: field.type for field in pyarrow.parquet.read_schema(path)}
    return {name: TYPES[kind] for name, kind in _types(path, estimator).items()}


def needed(path: Path, estimator: Estimator) -> list[str]:
    """The names of the columns that a model reads; a table without one of them is refused."""
    names, wanted = column_names(path), [column.name for column in estimator.encoder_.columns]
    for name in wanted:
        if name not in names:
            raise ValueError(f"{path} has no column {name!r}: the model reads {', '.join(wanted)}")
    return wanted


def model_columns(path: Path, table: pd.DataFrame, estimator: Estimator, before: int = 0) -> pd.DataFrame:
    """The columns a model reads; numbers must be numbers (files that say what their columns are may say otherwise)."""
    chosen = table[[column.name for column in estimator.encoder_.columns]]
    for column in estimator.encoder_.columns:
        if not isinstance(column, Category) and is_words(chosen[column.name]):
            _numbers(path, chosen[column.name], before)
        refuse_endless(path, chosen[column.name], before)
    return chosen


def refuse_endless(path: Path, column: "pd.Series[Any]", before: int = 0) -> None:
    """Infinity is no number to learn from; `before` rows of the file come before this column's first."""
    if kinds.is_float_dtype(column):
        endless = np.flatnonzero(np.isinf(column.to_numpy(np.float64, na_value=np.nan)))
        if len(endless):
            where = place(path, before + int(endless[0]))
            raise ValueError(f"{path}, {where}, column {column.name!r} is infinite: give a finite number or leave it empty")


def refuse_gaps(path: Path, y: "pd.Series[Any]", target: str) -> None:
    missing = np.flatnonzero(y.isna())
    if len(missing):
        more = f", {len(missing):,} rows in all" if len(missing) > 1 else ""
        raise ValueError(f"{path}, {place(path, int(missing[0]))}, column {target!r} is empty{more}: fill it or drop such rows")


def _numbers(path: Path, y: "pd.Series[Any]", before: int = 0) -> NDArray[Any]:
    values = pd.to_numeric(y, errors="coerce")
    bad = np.flatnonzero(values.isna() & y.notna())
    if len(bad):
        where = place(path, before + int(bad[0]))
        raise ValueError(f"{path}, {where}, column {y.name!r} holds {y.iloc[int(bad[0])]!r}: it must be a number")
    return values.to_numpy(np.float64)


def _readable(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """The table with columns that every later file can be read to match: numbers, truth values without gaps, words."""
    found = {str(name): kinds.infer_dtype(table[name], skipna=True) for name in table}
    for name, kind in found.items():
        if kind in TIMES:
            raise ValueError(f"{path}, column {name!r} holds times: write them as numbers, such as days, or leave it out with --drop")
    wavering = [name for name, kind in found.items() if kind == "boolean" and table[name].isna().any()]
    return read_table(path, dict.fromkeys(wavering, "text")) if wavering and path.suffix != ".parquet" else table


def _target_type(estimator: Estimator) -> str:
    if estimator.model_.task.kind == "targets":
        return "number"
    kind = estimator.classes_.dtype.kind  # type: ignore[attr-defined]
    return {"b": "boolean", "i": "number", "u": "number", "f": "number"}.get(kind, "text")


def _types(path: Path, estimator: Estimator) -> dict[str, str]:
    """How to read each column: those the model does not read stay as they are written."""
    needed(path, estimator)
    return dict.fromkeys(column_names(path), "text") | estimator.encoder_.types()
