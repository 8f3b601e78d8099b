"""The base class of both estimators: fitting a model to a table, step by step."""

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from compound.estimators import memory
from compound.estimators.columns import Array as Array
from compound.estimators.encoder import Encoder
from compound.estimators.mixins import Decomposition as Decomposition
from compound.estimators.mixins import FileMixin, UncertaintyMixin
from compound.estimators.parameters import Parameters
from compound.estimators.thresholds import ThresholdMixin
from compound.estimators.training import fit_detector, train, train_config
from compound.estimators.validation import (
    TrainingTable,
    apply_sample_weight,
    check_column,
    check_event,
    check_parameters,
    validate_table,
)
from compound.models.base import train_mask
from compound.nn import PiecewiseLinearEncoding
from compound.train.history import History
from compound.train.holdout import held_out_count
from compound.train.processes import Processes
from compound.types import Task


class Estimator(UncertaintyMixin, ThresholdMixin, FileMixin, Parameters, ABC):
    """Base class of the estimators; `CompoundRegressor` and `CompoundClassifier` document the parameters."""

    history_: History
    n_features_in_: int

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = False
        return tags

    @abstractmethod
    def _check_y(self, y: Any) -> Array:
        """Validate y: an array (rows,) or (rows, targets); ValueError for missing or invalid values."""

    @abstractmethod
    def _fit_target(self, table: TrainingTable) -> tuple[Task, Tensor]:
        """The task, and y as the model takes it: standardised (rows, targets), or class indices (rows,).

        Sets the attributes that invert this: `shift_` and `scale_`, or `classes_`.
        """

    @abstractmethod
    def _holdout_weights(self, y: Tensor, members: int, newest: Tensor | None) -> Tensor:
        """Training weights, 1 or 0 for held-out rows: (rows,), or (members, rows) if members differ.

        y is that of `_fit_target`. `newest` (rows,) marks the rows to hold out, where they are not drawn.
        """

    @abstractmethod
    def _calibrate(
        self,
        x: Tensor,
        y: Tensor,
        held_out: Tensor,
        weights: Tensor,
        drawn: Tensor | None = None,
        table: TrainingTable | None = None,
    ) -> None:
        """Fit intervals, or temperature and sets, to the rows that the mask `held_out` marks.

        x (rows, width) is encoded, y is that of `_fit_target`, held_out is (rows,) or (members, rows) and
        weights, the sample weights, (rows,); drawn (rows,) marks the rows drawn to be held out, of which one
        may be trained on nevertheless: those of `_holdout_weights` by default. `table` has groups and times.
        """

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None, time: Any = None) -> Self:
        """Fit the model to a table; a part of the rows is held out for early stopping and calibration.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs. Missing values, and in data frames text and categorical columns, are encoded.
        y : array-like of shape (rows,) or (rows, targets)
            What to predict: numbers, or labels of classes.
        sample_weight : array-like of shape (rows,), default=None
            How much a row counts, in training and in calibration: coverage is then meant for the population
            that the weights describe. Rows of weight 0 are ignored.
        groups : array-like of shape (rows,) or str, default=None
            Groups, or the column of X that names them: intervals or sets get the promised coverage in every
            group of at least 50 calibration rows (Mondrian conformal prediction). Smaller groups, and new
            ones, have the threshold of all rows.
        time : array-like of shape (rows,) or str, default=None
            Times or any numbers in order of time, or the column of X that has them: the newest rows are held
            out, not random ones, for early stopping and calibration.

        Returns
        -------
        Self
            The fitted estimator.
        """
        return self._fit(X, y, sample_weight, groups=groups, time=time)

    def _fit(self, X: Any, y: Any, sample_weight: Any, **columns: Any) -> Self:
        """`fit`; `columns` are event, groups and time."""
        method = check_parameters(self)
        warm = self.warm_start and hasattr(self, "model_")
        table = self._validate(X, y, sample_weight, not warm, columns)
        task, target = self._fit_target(table)
        method.check_family(task.family)
        method = method.with_limits() if task.kind == "regression" else method
        config = train_config(self, task, len(target))
        skeleton = memory.skeleton(method, 1, 0, task)
        members = skeleton.members
        Processes.of(self.distributed).check(skeleton, min(config.batch_size, len(target)))
        limits = (task, config.batch_size, members)
        # a lower bound: encoding adds columns
        memory.check(method, len(target), table.x.shape[1], 0, *limits)
        names = [str(name) for name in getattr(self, "feature_names_in_", [])]
        encoder = self.encoder_ if warm else Encoder.fit(table.x, names)
        memory.check(method, len(target), encoder.width, 0, *limits)
        self.encoder_ = encoder
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        x = torch.from_numpy(encoder.transform(table.x))
        if not warm or self.model_.task != task:
            encoding = PiecewiseLinearEncoding.fit(x, task.kind, encoder.sources)
            memory.check(method, len(target), encoder.width, encoding.bins, *limits)
            self.model_ = method.build(encoder.width, task, self.seed_, encoding)
        weight = self._holdout_weights(target, members, self._newest(table.time))
        counts = _mean_one(self._training_weights(table))
        importance = None if bool((counts == 1).all()) else counts
        data = train(self, x, target, weight * counts, config, importance=importance)
        weights = torch.from_numpy(table.weights)
        self._finish(x, target, weight == 0, weights, train_mask(data), self._newest(table.time), table)
        return self

    def _finish(
        self,
        x: Tensor,
        y: Tensor,
        held_out: Tensor,
        weights: Tensor,
        trained_on: Tensor,
        drawn: Tensor | None = None,
        table: TrainingTable | None = None,
    ) -> None:
        """What follows training: calibration, and the detector of unusual rows.

        Arguments are as in `_calibrate`; trained_on (rows,) is True for rows that some member trained on.
        """
        for tensor in (*self.model_.parameters(), *self.model_.buffers()):
            tensor.data = tensor.data.contiguous()  # as after loading: another layout rounds differently
        self._calibrate(x, y, held_out, weights, drawn, table)
        self.ood_detector_ = fit_detector(self, x, trained_on)

    @property
    @abstractmethod
    def n_calibration_(self) -> float:
        """Effective number of held-out rows that calibrate intervals or sets (see `effective_size`)."""

    def _validate(
        self, X: Any, y: Any, sample_weight: Any, reset: bool, columns: dict[str, Any]
    ) -> TrainingTable:
        """Validate the arguments of `fit`.

        With `reset`, names and number of columns are stored; without, they must equal those of the last fit.
        """
        table = validate_table(self, X, reset)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        target = self._check_y(y)
        rows = len(target)
        event = check_event(columns.get("event"), rows)
        groups = check_column(columns.get("groups"), "groups", X, rows)
        time = check_column(columns.get("time"), "time", X, rows)
        name = columns.get("groups")
        self.group_column_ = name if isinstance(name, str) else None
        return apply_sample_weight(table, target, sample_weight, event=event, groups=groups, time=time)

    def _training_weights(self, table: TrainingTable) -> Array:  # (rows,)
        """Weights of the rows in training."""
        return table.weights

    def _newest(self, time: Array | None) -> Tensor | None:  # (rows,) bool
        """The newest rows, as many as are to be held out; None where rows have no times."""
        if time is None:
            return None
        count = held_out_count(len(time), self.validation_fraction)
        newest = torch.zeros(len(time), dtype=torch.bool)
        newest[torch.from_numpy(np.argsort(time, kind="stable")[len(time) - count :].copy())] = True
        return newest


def _mean_one(weights: Array) -> Tensor:  # (rows,) float32
    """Weights divided by their mean."""
    return torch.from_numpy(weights / weights.mean()).float()
