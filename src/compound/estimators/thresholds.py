"""Conformal thresholds of rows: those of all rows, of a row's group, or of the time since the last truth."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from compound.estimators.adaptive import GAMMA, WINDOW, AdaptiveConformal, AdaptiveSets
from compound.estimators.calibration import ConformalSets, effective_size
from compound.estimators.columns import Array
from compound.estimators.prediction import estimator_blocks
from compound.estimators.validation import check_column, check_event, encode_table
from compound.random import named_generator

MIN_GROUP_ROWS = 50  # effective calibration rows of a group; with fewer, it has the threshold of all rows


class ThresholdMixin(ABC):
    """Thresholds by group, and their adaptation over time; both estimators have it."""

    group_column_: str | None = None
    group_calibrations_: dict[str, Any]  # ConformalIntervals or ConformalSets of each group, by its label

    @property
    @abstractmethod
    def pooled_(self) -> Any:
        """The calibration of all rows: `intervals_` or `sets_`."""

    def recalibrate(
        self, X: Any, y: Any, *, event: Any = None, gamma: float = GAMMA, window: int = WINDOW
    ) -> Self:
        """Adapt intervals or sets to rows whose truth has arrived, by adaptive conformal inference.

        The model stays as it is. Predict new rows, and recalibrate when their truth is known: over T rows the
        coverage of what was predicted differs from the nominal one by no more than about 1 / (gamma T),
        however the data drift. `save` keeps the adapted state.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs, in order of time.
        y : array-like of shape (rows,) or (rows, targets)
            The truth.
        event : array-like of shape (rows,), default=None
            For times: 1 where the event was observed.
        gamma : float, default=0.02
            Step of the adaptation: larger ones follow faster and vary more.
        window : int, default=500
            The newest truths, which thresholds are quantiles of.

        Returns
        -------
        Self
            The estimator itself.
        """
        check_is_fitted(self)
        if not 0 < gamma < 1 or window < 10:
            raise ValueError(f"gamma is {gamma}, window {window}: give a step in (0, 1) and at least 10 rows")
        if self.group_calibrations_:
            raise ValueError("recalibrate adapts one threshold for all rows: fit without groups to use it")
        scores = self._scores(X, y, event)
        fitted: Any = self
        pooled = self.pooled_
        is_sets = isinstance(pooled, ConformalSets | AdaptiveSets)
        if not isinstance(pooled, AdaptiveConformal):
            generator = named_generator(fitted.seed_, "recalibrate")
            first = pooled.scores[torch.randperm(len(pooled.scores), generator=generator)]
            first = first.unsqueeze(-1) if is_sets else first
            start = first if len(first) else scores[:1]
            pooled = (AdaptiveSets if is_sets else AdaptiveConformal).start(start)
        self._set_pooled(pooled.update(scores, gamma, window))
        return self

    @abstractmethod
    def _set_pooled(self, calibration: Any) -> None:
        """Replace the calibration of all rows."""

    @abstractmethod
    def _block_scores(self, predictive: Any, y: Tensor) -> Tensor:  # (rows, targets or 1)
        """Nonconformity scores of the rows of a block; y as `_truth` gives it."""

    @abstractmethod
    def _truth(self, y: Any, event: Array | None) -> Tensor:
        """Validated y in the units of y, or class indices, as `_block_scores` takes them."""

    def _scores(self, X: Any, y: Any, event: Any) -> Tensor:  # (rows, targets or 1)
        fitted: Any = self
        x = encode_table(fitted, X)
        truth = self._truth(y, check_event(event, len(x)))
        if len(truth) != len(x):
            raise ValueError(f"X has {len(x)} rows and y {len(truth)}: give as many")
        start, parts = 0, []
        for predictive, rows in estimator_blocks(fitted, x):
            parts.append(self._block_scores(predictive[:rows], truth[start : start + rows]))
            start += rows
        return torch.cat(parts).double()

    def _fit_groups(self, kind: Any, scores: Tensor, weights: Tensor, groups: Array | None) -> None:
        """Calibrate each group of at least MIN_GROUP_ROWS effective rows, from scores (rows, ...)."""
        self.group_calibrations_ = {}
        if groups is None:
            return
        labels = group_labels(groups)
        for label in sorted(set(labels)):
            mask = torch.from_numpy(labels == label)
            if effective_size(weights[mask]) < MIN_GROUP_ROWS:
                continue
            own: Any = scores[mask]
            arguments = (own,) if kind is ConformalSets else ([own], scores.shape[1])
            self.group_calibrations_[label] = kind.fit(*arguments, weights=weights[mask])

    def row_groups(self, X: Any, groups: Any = None) -> Array | None:  # (rows,)
        """Labels of the groups of the rows of X as text; None for an estimator without groups.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.
        groups : str or array-like of shape (rows,), default=None
            A column of X, or labels; None: the column that `fit` was given the name of.

        Returns
        -------
        ndarray of shape (rows,) or None
            Labels as text.
        """
        if not self.group_calibrations_ and groups is None:
            return None
        name = self.group_column_ if groups is None else groups
        if name is None:
            raise ValueError("the estimator was fitted with groups: give those of the rows of X")
        column = check_column(name, "groups", X, len(X))
        return None if column is None else group_labels(column)

    def calibrations(self, groups: Array | None) -> list[tuple[Any, Any]]:
        """Calibrations, each with the indices of the rows that it is for: those of group labels (rows,).

        Parameters
        ----------
        groups : ndarray of shape (rows,) or None
            Labels of `row_groups`; without them the indices are a slice of all rows.

        Returns
        -------
        list of tuple
            Indices of rows, and the calibration of these rows.
        """
        if groups is None:
            return [(slice(None), self.pooled_)]
        parts = []
        known = np.array([label in self.group_calibrations_ for label in groups], dtype=bool)
        for label in np.unique(groups[known]):
            rows = torch.from_numpy(np.flatnonzero(groups == label))
            parts.append((rows, self.group_calibrations_[label]))
        if not known.all():
            parts.append((torch.from_numpy(np.flatnonzero(~known)), self.pooled_))
        return parts

    def thresholds(self, coverage: float, rows: int, groups: Array | None) -> Tensor:  # (rows, targets or 1)
        """The largest score inside the interval or set of a coverage, for each row.

        Parameters
        ----------
        coverage : float
            Between 0 and 1.
        rows : int
            Number of rows.
        groups : ndarray of shape (rows,) or None
            Labels of `row_groups`.

        Returns
        -------
        Tensor of shape (rows, targets or 1)
            Scores.
        """
        out: Tensor | None = None
        for index, calibration in self.calibrations(groups):
            value = torch.as_tensor(calibration.conformal_quantile(coverage), dtype=torch.float64).reshape(-1)
            out = value.new_empty(rows, len(value)) if out is None else out
            out[index] = value
        assert out is not None
        return out

    def calibrated_quantiles(
        self, predictive: Any, levels: Sequence[float], groups: Array | None
    ) -> Tensor:  # (levels, rows, targets)
        """Calibrated quantiles of a predictive of targets.

        Parameters
        ----------
        predictive : Predictive
            Of the rows.
        levels : sequence of float
            Probabilities.
        groups : ndarray of shape (rows,) or None
            Labels of `row_groups`.

        Returns
        -------
        Tensor of shape (levels, rows, targets)
            Quantiles.
        """
        out: Tensor | None = None
        for index, calibration in self.calibrations(groups):
            targets = predictive.component.shape[1]
            z = torch.stack([calibrated_z(calibration, level, targets) for level in levels])
            part = predictive if isinstance(index, slice) else predictive[index]
            values = part.z_quantiles(z)
            if isinstance(index, slice):
                return values  # type: ignore[no-any-return]
            out = values.new_empty(len(z), len(predictive), z.shape[1]) if out is None else out
            out[:, index] = values
        assert out is not None
        return out


def calibrated_z(calibration: Any, level: float, targets: int) -> Tensor:  # (targets,)
    """The z for which the predictive's quantile of level Φ(z) is the calibrated quantile of `level`."""
    if abs(level - 0.5) < 1e-12:
        return torch.zeros(targets, dtype=torch.float64)
    z: Tensor = calibration.conformal_quantile(abs(2 * level - 1))
    return z if level > 0.5 else -z


def group_labels(groups: Array) -> Array:  # (rows,) of text
    """Groups as text: whole numbers without a point, so that 3 and 3.0 are one group."""
    if groups.dtype.kind == "f" and (groups == np.round(groups)).all():
        groups = groups.astype(np.int64)
    return np.array([str(label) for label in groups.tolist()], dtype=object)


def pad_labels(labels: Array, rows: int) -> Array:  # (rows,)
    """Group labels of the rows of a block; padding repeats the last one."""
    return np.concatenate([labels, np.repeat(labels[-1:], rows - len(labels))])
