"""Validation of an estimator's parameters and tables, before anything is computed."""

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, validate_data
from torch import Tensor

from compound.estimators.columns import Array, as_frame, is_numeric_frame
from compound.estimators.encoder import Encoder
from compound.estimators.target_kinds import check_kind
from compound.models import Method

if TYPE_CHECKING:
    from compound.estimators.base import Estimator


class HasEncoder(Protocol):
    """The attributes of an estimator that encoding uses."""

    encoder_: Encoder


class TrainingTable(NamedTuple):
    """Validated training data; rows of weight 0 are removed."""

    x: Any  # array or data frame, (rows, columns)
    y: Array  # (rows,) or (rows, targets)
    weights: Array  # (rows,) float64, above 0
    event: Array | None = None  # (rows,) 1.0 where the event was observed, else 0.0
    groups: Array | None = None  # (rows,) labels
    time: Array | None = None  # (rows,) anything that can be sorted

    def take(self, mask: Array) -> "TrainingTable":
        """The rows that the mask (rows,) marks."""
        return TrainingTable(*(None if part is None else part[mask] for part in self))  # type: ignore[arg-type]


def check_parameters(estimator: "Estimator") -> Method:
    """Raise ValueError for an invalid parameter of the estimator; return its method as a `Method`."""
    method = estimator.method if isinstance(estimator.method, Method) else Method(estimator.method)
    if estimator.device not in ("auto", "cpu"):
        raise ValueError(f"device is {estimator.device!r}: tables are fitted on the CPU, use 'auto' or 'cpu'")
    for name in ("max_epochs", "batch_size"):
        value = getattr(estimator, name)
        if value is not None and (not isinstance(value, (int, np.integer)) or value < 1):
            raise ValueError(f"{name} is {value!r}: give a whole number of at least 1, or None")
    if estimator.lr is not None and not 0 < estimator.lr < np.inf:
        raise ValueError(f"lr is {estimator.lr!r}: give a number above 0, or None")
    if not 0 <= estimator.validation_fraction < 1:
        raise ValueError(
            f"validation_fraction is {estimator.validation_fraction!r}: "
            "give a fraction of the rows, at least 0 and below 1"
        )
    if hasattr(estimator, "target_kind"):
        check_kind(estimator.target_kind)
    rate = estimator.false_positive_rate
    if not 0 < rate < 1:
        raise ValueError(f"false_positive_rate is {rate!r}: give a rate between 0 and 1, such as 0.01")
    return method


def apply_sample_weight(table: Any, target: Array, sample_weight: Any, **columns: Any) -> TrainingTable:
    """Validate `sample_weight`, (rows,) or None for 1, and remove rows of weight 0 from all parts.

    `columns` are event, groups and time, (rows,) each or None.
    """
    check_consistent_length(table, target)
    weights = _check_sample_weight(sample_weight, target, dtype=np.float64, ensure_non_negative=True)
    positive = weights > 0
    if not positive.any():
        raise ValueError("sample_weight is 0 for every row: give at least one row a weight")
    whole = TrainingTable(table, target, weights, **columns)
    return whole if positive.all() else whole.take(positive)


def check_column(values: Any, name: str, X: Any, rows: int) -> Array | None:
    """An argument of `fit` or `predict` with one value per row: an array, or the name of a column of X."""
    if values is None:
        return None
    if isinstance(values, str):
        if not hasattr(X, "columns") or values not in list(X.columns):
            raise ValueError(f"{name} is {values!r}: X has no such column, give its name or an array")
        values = X[values]
    column = np.asarray(values)
    if column.shape != (rows,):
        raise ValueError(f"{name} has shape {column.shape}: give one value for each of the {rows} rows")
    missing = pd.isna(column)
    if missing.any():
        raise ValueError(f"{name} is missing at row {int(missing.argmax())}: fill it or remove such rows")
    return column


def check_event(event: Any, rows: int) -> Array | None:
    """Events (rows,) as 1.0 where they were observed and 0.0 elsewhere; ValueError for other values."""
    column = check_column(event, "event", None, rows)
    if column is None:
        return None
    numbers = column.astype(np.float64)
    if not np.isin(numbers, (0.0, 1.0)).all():
        wrong = numbers[~np.isin(numbers, (0.0, 1.0))][0]
        raise ValueError(f"event holds {wrong:g}: give 1 where the event was observed, else 0")
    return numbers


def validate_table(estimator: HasEncoder, X: Any, reset: bool) -> Any:
    """X as an array of numbers, or as a data frame where columns hold anything else.

    With `reset`, names and number of columns are stored in the estimator; without, they must equal those of
    training.
    """
    frame = as_frame(X)
    if frame is None and not reset and not estimator.encoder_.is_numeric:
        raise ValueError(
            "X is an array, but training had categories or times: give a data frame with the same columns"
        )
    min_rows = 2 if reset else 1
    if frame is not None and not (is_numeric_frame(frame) and (reset or estimator.encoder_.is_numeric)):
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        if len(frame) < min_rows:
            raise ValueError(f"X has {len(frame)} sample(s): at least {min_rows} are needed")
        return frame.reset_index(drop=True)
    return validate_data(
        estimator,
        X,
        reset=reset,
        dtype=np.float64,
        ensure_all_finite="allow-nan",
        ensure_min_samples=min_rows,
    )


def encode_table(estimator: HasEncoder, X: Any) -> Tensor:  # (rows, width) float32
    """Validate, encode and standardise a table: its rows as the model takes them."""
    return torch.from_numpy(estimator.encoder_.transform(validate_table(estimator, X, reset=False)))
