"""Columns of a training table with a role of their own: further targets, events, weights, groups, times."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from compound.estimators.columns import is_categorical
from compound.tables.file_errors import file_location, missing_column

Array = NDArray[Any]


@dataclass(frozen=True)
class Roles:
    """Names of the columns with a role; None for those that a table has not."""

    more_targets: tuple[str, ...] = ()
    event: str | None = None  # 1 where the event was observed, 0 where a time is censored
    weight: str | None = None
    group: str | None = None  # a feature too
    time: str | None = None  # a feature too, unless it names the rows

    @property
    def named(self) -> dict[str, str]:
        """Columns by the option that names them."""
        options = {"event": self.event, "weight": self.weight, "group": self.group, "time": self.time}
        return {option: name for option, name in options.items() if name is not None}

    @property
    def columns(self) -> list[str]:
        """All of them."""
        return [*self.more_targets, *self.named.values()]

    @property
    def no_features(self) -> list[str]:
        """Those that are not among the inputs."""
        return [*self.more_targets, *(name for name in (self.event, self.weight) if name is not None)]

    def check(self, path: Path, names: Sequence[str], target: str, drop: Sequence[str]) -> None:
        """Raise ValueError for a column that is missing, dropped, or has two roles."""
        for name in self.columns:
            if name not in names:
                raise missing_column(path, name, names)
            if name in drop:
                raise ValueError(f"column {name!r} has a role and is dropped: leave out --drop {name}")
        single = [target, *self.no_features]
        for name in single:
            if single.count(name) > 1 or (name == target and name in self.named.values()):
                raise ValueError(f"column {name!r} has two roles: give every role another column")
        if self.event and self.more_targets:
            raise ValueError("--event needs one --target: the time until the event")

    def check_values(self, path: Path, table: pd.DataFrame, rows: Array) -> None:
        """Raise ValueError at a row without a value, and for values that do not suit a role.

        rows (rows,) are the indices in the file of the table's rows.
        """
        for option, name in self.named.items():
            column = table[name]
            missing = np.flatnonzero(column.isna())
            if len(missing):
                where = file_location(path, int(rows[missing[0]]))
                raise ValueError(f"{path}, {where}, column {name!r} of --{option} is empty: fill it")
            is_text = is_categorical(column)
            if option in ("weight", "time") and (is_text or types.is_bool_dtype(column)):
                raise ValueError(
                    f"{path}, column {name!r} of --{option} holds {column.iloc[0]!r}: it must hold numbers"
                    + (" or times" if option == "time" else "")
                )
            if option == "weight" and not (column >= 0).all():
                raise ValueError(
                    f"{path}, column {name!r} of --weight holds {column.min():g}: weights are >= 0"
                )
            if option == "weight" and not (column > 0).any():
                raise ValueError(f"{path}, column {name!r} of --weight is 0 in every row: choose another")
            if option == "event" and not (types.is_bool_dtype(column) or set(column.unique()) <= {0, 1}):
                raise ValueError(
                    f"{path}, column {name!r} of --event holds {column.iloc[0]!r}: "
                    "give 1 or true where the event was observed, else 0 or false"
                )
        for name in self.more_targets:
            if is_categorical(table[name]) or not types.is_numeric_dtype(table[name]):
                raise ValueError(
                    f"{path}, column {name!r} holds {table[name].iloc[0]!r}: several targets are numbers"
                )

    def fit_arguments(self, table: pd.DataFrame) -> dict[str, Any]:
        """Arguments of an estimator's `fit` for the rows of a table."""
        arguments: dict[str, Any] = {}
        if self.weight:
            arguments["sample_weight"] = table[self.weight].to_numpy(np.float64)
        if self.event:
            arguments["event"] = table[self.event].to_numpy(np.float64)
        if self.group:
            arguments["groups"] = self.group
        if self.time:
            arguments["time"] = table[self.time].to_numpy()
        return arguments
