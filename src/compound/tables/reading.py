"""Table files as a model needs them: the right columns, the right kinds, and a place in the file for whatever is wrong."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types as kinds

from compound.estimators import memory
from compound.estimators.base import Estimator
from compound.estimators.columns import is_categorical
from compound.estimators.files import load
from compound.tables.tabular import (
    Piece,
    column_names,
    file_location,
    listed,
    no_column,
    read_chunks,
    read_table,
)

Kind = Literal["auto", "regression", "classification"]
WIDEST = 10_000  # columns: whitening as many takes 4 GB and ten minutes
FEW = 10  # whole numbers with no more distinct values than this are taken for classes


class Labelled(NamedTuple):
    """A table and what is to be predicted of it."""

    path: Path
    x: pd.DataFrame
    y: "pd.Series[Any]"


def load_estimator(path: Path) -> Estimator:
    """A saved estimator that answers with one number or class per row."""
    estimator: Estimator = load(path)
    size = estimator.model_.task.size
    if estimator.model_.task.kind == "regression" and size > 1:
        raise ValueError(
            f"{path} predicts {size} targets at once: the command works with one, use compound.load in Python"
        )
    return estimator


def training_table(path: Path, target: str, drop: Sequence[str] = ()) -> Labelled:
    """A table to learn from, every problem told before any work. What is dropped is not looked at."""
    names = column_names(path)
    for name in (target, *drop):
        if name not in names:
            raise no_column(path, name, names)
    if target in drop:
        raise ValueError(f"column {target!r} is both target and dropped: drop another one")
    dropped = set(drop)
    kept = [name for name in names if name not in dropped]
    if len(kept) < 2:
        raise ValueError(f"{path} has no column besides {target!r} to learn from: give at least one")
    if len(kept) - 1 > WIDEST:
        raise ValueError(
            f"{path} has {len(kept) - 1:,} columns to learn from, at most {WIDEST:,} can be: leave some out with --drop"
        )
    room, needed = memory.available(), memory.whitening(len(kept) - 1)
    if room is not None and needed > room:
        raise ValueError(
            f"{path} has {len(kept) - 1:,} columns to learn from, which need at least {needed / 1e9:.1f} GB, "
            f"{room / 1e9:.1f} GB are free: leave some out with --drop"
        )
    table = read_table(path, columns=kept, room=room)
    y = table[target]
    check_not_missing(path, y, target)
    return Labelled(path, finite(path, table).drop(columns=target), y)


def task_of(path: Path, y: "pd.Series[Any]", wish: Kind) -> Literal["regression", "classification"]:
    """Words, truth values and whole numbers with few values, some of them alike, are classes; other numbers are targets."""
    words = is_categorical(y) or kinds.is_bool_dtype(y)
    if wish == "regression":
        if words:
            raise ValueError(
                f"{path}, {file_location(path, 0)}, column {y.name!r} holds {y.iloc[0]!r}: targets are numbers, use --task classification"
            )
        return "regression"
    whole = words or bool((y == y.round()).all())
    distinct = y.nunique()
    if wish == "auto" and not (words or (whole and distinct <= FEW and distinct < len(y))):
        return "regression"
    if not whole:
        odd = int(np.flatnonzero(y != y.round())[0])
        where = f"{path}, {file_location(path, odd)}, column {y.name!r}"
        raise ValueError(
            f"{where} holds {y.iloc[odd]}: classes are words or whole numbers, use --task regression"
        )
    if distinct == 1:
        raise ValueError(
            f"{path}, column {y.name!r} holds one class only, {y.iloc[0]}: there is nothing to tell apart, choose another --target"
        )
    if distinct == len(y):
        raise ValueError(
            f"{path}, column {y.name!r} holds {distinct:,} classes in {len(y):,} rows, no two alike: choose another --target"
        )
    return "classification"


def encode_target(labelled: Labelled, estimator: Estimator) -> NDArray[Any]:  # (rows,)
    """y as numbers, or as places in the model's classes."""
    path, y = labelled.path, labelled.y
    if estimator.model_.task.kind == "regression":
        return y.to_numpy(np.float64)
    known = {label: i for i, label in enumerate(estimator.classes_.tolist())}  # type: ignore[attr-defined]
    values = y.tolist()
    for row, value in enumerate(values):
        if value not in known:
            raise ValueError(
                f"{path}, {file_location(path, row)}, column {y.name!r} holds {value!r}: the model knows {listed(list(known))}"
            )
    return np.array([known[value] for value in values], dtype=np.int64)


def asked_table(path: Path, estimator: Estimator) -> pd.DataFrame:
    """The columns that a model reads, in its order."""
    required_columns(path, estimator)
    return finite(path, read_table(path, estimator.encoder_.types(), room=memory.available()))


def labelled_table(path: Path, estimator: Estimator, target: str) -> Labelled:
    """The columns that a model reads, and the truth beside them."""
    required_columns(path, estimator)
    names = column_names(path)
    if target not in names:
        raise no_column(path, target, names, ", the truth to compare with")
    table = read_table(
        path, {**estimator.encoder_.types(), target: _target_type(estimator)}, room=memory.available()
    )
    check_not_missing(path, table[target], target)
    return Labelled(
        path, finite(path, table[[column.name for column in estimator.encoder_.columns]]), table[target]
    )


def chunks(path: Path, estimator: Estimator, rows: int) -> Iterator[Piece]:
    """The whole table piece by piece: all of its columns as they stand, and those that the model reads."""
    required_columns(path, estimator)
    done = 0
    for piece in read_chunks(path, estimator.encoder_.types(), rows):
        finite(path, piece.frame, done)
        yield piece
        done += len(piece.frame)


def required_columns(path: Path, estimator: Estimator) -> list[str]:
    """The names of the columns that a model reads; a table without one of them is refused."""
    names, wanted = column_names(path), [column.name for column in estimator.encoder_.columns]
    for name in sorted(set(wanted) - set(names), key=wanted.index):
        raise no_column(path, name, names, f" (the model reads {listed(wanted)})")
    return wanted


def finite(path: Path, table: pd.DataFrame, before: int = 0) -> pd.DataFrame:
    """The table, if no number in it is infinite; `before` rows of the file come before its first."""
    for name in table:
        check_finite(path, table[name], before)
    return table


def check_finite(path: Path, column: "pd.Series[Any]", before: int = 0) -> None:
    """Infinity is no number to learn from; `before` rows of the file come before this column's first."""
    if kinds.is_float_dtype(column):
        endless = np.flatnonzero(np.isinf(column.to_numpy(np.float64, na_value=np.nan)))
        if len(endless):
            where = file_location(path, before + int(endless[0]))
            raise ValueError(
                f"{path}, {where}, column {column.name!r} is infinite: give a finite number or leave it empty"
            )


def check_not_missing(path: Path, y: "pd.Series[Any]", target: str) -> None:
    missing = np.flatnonzero(y.isna())
    if len(missing):
        more = f", {len(missing):,} rows in all" if len(missing) > 1 else ""
        raise ValueError(
            f"{path}, {file_location(path, int(missing[0]))}, column {target!r} is empty{more}: fill it or drop such rows"
        )


def _target_type(estimator: Estimator) -> str:
    if estimator.model_.task.kind == "regression":
        return "number"
    kind = estimator.classes_.dtype.kind  # type: ignore[attr-defined]
    return {"b": "boolean", "i": "number", "u": "number", "f": "number"}.get(kind, "text")
