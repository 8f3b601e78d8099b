"""The estimator for regression: predictive distributions of one target or several."""

from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from compound.estimators.base import Estimator
from compound.estimators.calibration import ConformalIntervals, JointScores
from compound.estimators.columns import Array
from compound.estimators.conformal_scores import event_scores
from compound.estimators.member_holdout import calibration_rows, calibration_scores, member_holdout_weights
from compound.estimators.parameters import documented
from compound.estimators.target_kinds import (
    check_extent,
    check_values,
    choose_kind,
    horizons,
    positive_times,
    split_structured,
    units,
)
from compound.estimators.target_predictions import TargetPredictions
from compound.estimators.validation import TrainingTable
from compound.random import derive_seed, named_generator
from compound.types import TIMES, Task


@documented
@dataclass(eq=False, repr=False, kw_only=True)
class CompoundRegressor(RegressorMixin, TargetPredictions, Estimator):
    """Regression with predictive distributions and calibrated prediction intervals.

    Inputs and targets are standardised inside; the defaults need no tuning from a hundred to a million rows.

    Parameters
    ----------
    {the parameters of both estimators}
    target_kind : str, default="gaussian"
        The distribution of y given the parameters that the network predicts: "gaussian"; "student-t" for
        outliers; "log-normal" for positive numbers over orders of magnitude; "poisson" and
        "negative-binomial" for counts; "weibull" or "log-normal" for times until an event. "auto": proposed
        from y, see `target_kind_`.

    Attributes
    ----------
    model_ : Model
        The fitted model, for standardised inputs and targets.
    encoder_ : Encoder
        The encoding of the columns.
    intervals_ : ConformalIntervals or AdaptiveConformal
        Calibration scores of held-out rows; after `recalibrate` those of the newest rows.
    group_calibrations_ : dict
        The same for each group that has enough rows.
    ood_detector_ : CombinedDetector
        Evidence that rows are out of distribution, with its threshold.
    history_ : History
        The learning curve.
    target_kind_ : str
        The kind of the targets.
    shift_, scale_ : ndarray of shape (targets,)
        Units of the targets inside: mean and standard deviation, or for positive ones 0 and the geometric
        mean, for counts 0 and 1.
    y_is_1d_ : bool
        Whether y had one axis.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X had any.
    n_calibration_ : float
        Effective number of held-out rows behind the intervals.
    threshold_ : float
        Out-of-distribution score above which `is_ood` is true.

    See Also
    --------
    CompoundClassifier : The same for classes.

    Examples
    --------
    >>> import numpy as np
    >>> from compound import CompoundRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=200)
    >>> model = CompoundRegressor("map", max_epochs=20, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:5], return_std=True)
    >>> lower, upper = model.predict_interval(X[:5], coverage=0.9)
    >>> bool((lower < mean).all() and (mean < upper).all())
    True
    >>> model.is_ood([[0.0, 0.0, 0.0], [50.0, 0.0, 0.0]])
    array([False,  True])
    """

    target_kind: str = "gaussian"

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        event: Any = None,
        groups: Any = None,
        time: Any = None,
    ) -> Self:
        """Fit the model to a table; a part of the rows is held out for early stopping and calibration.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs. Missing values, and in data frames text and categorical columns, are encoded.
        y : array-like of shape (rows,) or (rows, targets)
            The numbers to predict; or a structured array of events and times, as scikit-survival has them.
        sample_weight : array-like of shape (rows,), default=None
            How much a row counts, in training and in calibration: coverage is then meant for the population
            that the weights describe. Rows of weight 0 are ignored.
        event : array-like of shape (rows,), default=None
            For times: 1 where y is the time of the event, 0 where the event had not happened by y (right
            censored). A time of 0 counts as half of the smallest other one.
        groups : array-like of shape (rows,) or str, default=None
            Groups, or the column of X that names them: intervals get the promised coverage in every group of
            at least 50 calibration rows (Mondrian conformal prediction). Smaller groups, and new ones, have
            the threshold of all rows.
        time : array-like of shape (rows,) or str, default=None
            Times or any numbers in order of time, or the column of X that has them: the newest rows are held
            out, not random ones, for early stopping and calibration.

        Returns
        -------
        Self
            The fitted estimator.
        """
        y, own = split_structured(y)
        event = own if event is None else event
        return self._fit(X, y, sample_weight, event=event, groups=groups, time=time)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @property
    def n_calibration_(self) -> float:
        """Effective number of held-out rows that calibrate the intervals."""
        check_is_fitted(self)
        return self.intervals_.effective_rows

    def _check_y(self, y: Any) -> Array:
        target = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        if target.ndim > 2 or target.size == 0:
            raise ValueError(
                f"y has shape {target.shape}: give one number per row, or one row of numbers per row"
            )
        return cast(Array, target)

    def _fit_target(self, table: TrainingTable) -> tuple[Task, Tensor]:
        """Standardise the targets; ValueError where variances would over- or underflow."""
        columns = table.y.reshape(len(table.y), -1)
        kind = choose_kind(self.target_kind, columns, table.event is not None)
        check_values(kind, columns, table.event)
        columns = columns if table.event is None else positive_times(columns)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            shift = columns.mean(0)
            scale = columns.std(0)
            extent = columns.max(0) - columns.min(0)
        self._set_units(shift, scale, extent)
        self.target_kind_ = kind
        self.y_is_1d_ = table.y.ndim == 1
        self.horizons_ = np.zeros(0) if table.event is None else horizons(columns[table.event > 0])
        if kind not in ("gaussian", "student-t"):
            self.shift_, self.scale_ = units(kind, columns)
        target = torch.from_numpy(((columns - shift) / self.scale_).astype(np.float32))
        if kind not in ("gaussian", "student-t"):
            target = torch.from_numpy((columns / self.scale_).astype(np.float32))
        if kind in TIMES:  # the smallest may round to 0
            target = target.clamp_min(torch.finfo(target.dtype).tiny)
        if table.event is not None:
            target = torch.cat([target, torch.from_numpy(table.event[:, None]).float()], 1)
        return Task("regression", columns.shape[1], None if kind == "gaussian" else kind), target

    def _set_units(self, shift: Array, scale: Array, extent: Array) -> None:
        """Set the units of the targets from means, standard deviations and ranges, (targets,) each.

        Raises ValueError where variances would over- or underflow.
        """
        check_extent(shift, scale, extent)
        is_constant = scale <= 1e-12 * np.abs(shift)
        self.shift_ = shift
        self.scale_ = np.where(is_constant, 1.0, scale)

    def _holdout_weights(self, y: Tensor, members: int, newest: Tensor | None = None) -> Tensor:
        if newest is not None:
            return 1.0 - newest.float()
        seed = derive_seed(self.seed_, "hold out")
        return member_holdout_weights(len(y), members, self.validation_fraction, seed)

    def _calibrate(
        self,
        x: Tensor,
        y: Tensor,
        held_out: Tensor,
        weights: Tensor,
        drawn: Tensor | None = None,
        table: TrainingTable | None = None,
    ) -> None:
        _, rows = calibration_rows(held_out, self.seed_)
        blocks = list(calibration_scores(self.model_, x, y, held_out, self.seed_))
        scores = torch.cat([torch.zeros(0, len(self.shift_), dtype=torch.float64), *blocks])
        weights = weights[rows]
        self.intervals_ = ConformalIntervals.fit([scores], len(self.shift_), weights)
        self.joint_ = JointScores.fit(scores, weights)
        groups = None if table is None or table.groups is None else table.groups[rows.numpy()]
        self._fit_groups(ConformalIntervals, scores, weights, groups)

    @property
    def pooled_(self) -> Any:
        """The calibration of all rows."""
        return self.intervals_

    def _set_pooled(self, calibration: Any) -> None:
        self.intervals_ = calibration

    def _block_scores(self, predictive: Any, y: Tensor) -> Tensor:
        return event_scores(predictive, y, named_generator(self.seed_, "censored"))

    def _truth(self, y: Any, event: Array | None) -> Tensor:
        y, own = split_structured(y)
        event = own if event is None else event
        columns = self._check_y(y).reshape(len(y), -1)
        if columns.shape[1] != len(self.shift_):
            raise ValueError(f"y has {columns.shape[1]} targets, the estimator {len(self.shift_)}")
        check_values(self.target_kind_, columns, event)
        truth = torch.tensor(  # y may be read-only
            columns if event is None else positive_times(columns), dtype=torch.float64
        )
        return truth if event is None else torch.cat([truth, torch.from_numpy(event[:, None] + 0.0)], 1)

    def _shape_like_y(self, values: Tensor) -> Array:
        return (values[:, 0] if self.y_is_1d_ else values).numpy()
