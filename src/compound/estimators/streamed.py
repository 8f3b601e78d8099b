"""Fitting an estimator to a table larger than memory, from what its columns add up and a sample of its rows.

The sample is in memory, all rows pass by as mini-batches. It stands for the table where a method needs rows
before or after training: constants, far noise, calibration, distances. Its weights add up to those of the
table, so that what is divided by N, or summed over rows, has the right scale.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from compound.estimators import memory
from compound.estimators.base import Estimator
from compound.estimators.columns import Array
from compound.estimators.encoder import Encoder
from compound.estimators.regressor import CompoundRegressor
from compound.estimators.streamed_columns import ColumnStatistics, Moments, encoded_counts, fit_columns
from compound.estimators.training import train, train_config
from compound.estimators.validation import check_parameters
from compound.models.base import train_mask
from compound.nn import PiecewiseLinearEncoding
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.processes import Processes
from compound.types import Batch, Task

MAX_NUMBERS = 8_000_000  # of the encoded sample
MIN_SAMPLE = 20_000  # rows of it, however wide
MakeBatches = Callable[[Estimator, TrainConfig], Callable[[int], Batch]]


class TargetStatistics:
    """What the target adds up: moments of numbers, or rows of each class."""

    def __init__(self, is_regression: bool):
        self.moments = Moments()
        self.classes: Counter[Any] = Counter()
        self.is_regression = is_regression

    def update(self, y: Array) -> None:
        """Add the targets of a chunk (rows,)."""
        if self.is_regression:
            self.moments.update(y.astype(np.float64))
        else:
            self.classes.update(y.tolist())

    @property
    def task(self) -> Task:
        return Task("regression", 1) if self.is_regression else Task("classification", len(self.classes))


@dataclass(frozen=True)
class StreamedTable:
    """What a table larger than memory is fitted from."""

    statistics: Sequence[ColumnStatistics]  # of all rows but test rows
    target: TargetStatistics  # of the same rows
    x: Any  # data frame, (sampled, columns)
    y: Array  # (sampled,)
    weight: Tensor  # (members, sampled) or (sampled,): 0 for rows that a member holds out, else 1
    size: Tensor  # (members,) or (): training rows of the table
    batches: MakeBatches  # once encoder and units of the target are known

    @property
    def rows(self) -> int:
        """Rows that the columns have added up."""
        return self.statistics[0].rows


def encode_y(estimator: Any, y: Array) -> Tensor:  # (rows, 1) or (rows,)
    """Targets as the model takes them: standardised, or indices of classes."""
    if isinstance(estimator, CompoundRegressor):
        return torch.from_numpy(((y.reshape(-1, 1) - estimator.shift_) / estimator.scale_).astype(np.float32))
    index = {label: i for i, label in enumerate(estimator.classes_.tolist())}
    return torch.tensor([index[label] for label in y.tolist()], dtype=torch.int64)


def check_streamable(estimator: Estimator, task: Task) -> int:
    """Raise ValueError for a method that needs all rows in memory; returns the number of members."""
    kind = getattr(estimator, "target_kind", "gaussian")
    if kind != "gaussian" or getattr(estimator, "ordinal", False) or getattr(estimator, "class_weight", None):
        raise ValueError(
            "a table larger than memory is fitted with Gaussian targets, or classes without order and "
            "weights: give a sample of the rows"
        )
    skeleton = memory.skeleton(check_parameters(estimator), 1, 0, task)
    if skeleton.rows_in_memory:
        raise ValueError(
            f"{skeleton.method} cannot be fitted to a table larger than memory: {skeleton.rows_in_memory}; "
            "give a sample of the rows, or another method"
        )
    config = train_config(estimator, task, memory.LARGE)
    Processes.of(estimator.distributed).check(skeleton, config.batch_size)
    return skeleton.members


def fit_streamed(estimator: Any, table: StreamedTable) -> None:
    """Fit an estimator, as `fit` does to a table in memory."""
    method = check_parameters(estimator)
    task = table.target.task
    _set_target(estimator, table)
    method = method.with_limits() if task.kind == "regression" else method
    config = train_config(estimator, task, table.rows)
    encoder: Encoder = fit_columns(table.statistics)
    estimator.encoder_ = encoder
    estimator.n_features_in_ = len(encoder.columns)
    estimator.feature_names_in_ = np.array([column.name for column in encoder.columns], dtype=object)
    estimator.seed_ = fit_seed(estimator)
    counts = encoded_counts(table.statistics, encoder)
    encoding = PiecewiseLinearEncoding.from_counts(counts, table.rows, task.kind, encoder.sources)
    members = memory.skeleton(method, 1, 0, task).members
    rows = min(len(table.y), max(MIN_SAMPLE, MAX_NUMBERS // encoder.width))
    memory.check(method, rows, encoder.width, encoding.bins, task, config.batch_size, members)
    estimator.model_ = method.build(encoder.width, task, estimator.seed_, encoding)
    chosen = _part_of_sample(len(table.y), encoder.width, estimator.seed_)
    x = torch.from_numpy(encoder.transform(table.x.iloc[chosen].reset_index(drop=True)))
    y = encode_y(estimator, table.y[chosen])
    weight = table.weight[..., torch.from_numpy(chosen)]
    held_out = weight == 0
    sampled = weight.sum(-1, keepdim=True).clamp_min(1)
    weight = weight * (table.size.unsqueeze(-1) / sampled).float()
    batches = table.batches(estimator, config)
    data = train(estimator, x, y, weight, config, batches)
    estimator._finish(x, y, held_out, torch.ones(len(x), dtype=torch.float64), train_mask(data), held_out)


def _part_of_sample(rows: int, width: int, seed: int) -> Array:
    """Numbers of the rows of a sample that are used: all, or fewer of very wide ones."""
    limit = max(MIN_SAMPLE, MAX_NUMBERS // width)
    order = torch.randperm(rows, generator=named_generator(seed, "sample of rows"))[:limit]
    return order.sort().values.numpy()


def fit_seed(estimator: Any) -> int:
    """The seed of a fit, which `random_state` determines."""
    return int(check_random_state(estimator.random_state).randint(2**31 - 1))


def _set_target(estimator: Any, table: StreamedTable) -> None:
    """Set units of the target, or the classes; ValueError for targets that cannot be fitted."""
    if isinstance(estimator, CompoundRegressor):
        m = table.target.moments
        estimator._set_units(
            np.array([m.mean]), np.array([np.sqrt(m.squares / m.count)]), np.array([m.high - m.low])
        )
        estimator.y_is_1d_ = True
        estimator.horizons_ = np.zeros(0)
        return
    classes = np.unique(np.array(list(table.target.classes), dtype=table.y.dtype))
    if len(classes) < 2:
        raise ValueError(f"the target holds one class only, {classes.tolist()[0]!r}: choose another")
    estimator.classes_ = classes
