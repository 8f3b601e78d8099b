"""What a fitted regressor says of new rows: means, intervals, quantiles, boxes, survival, samples."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from compound.estimators.calibration import JointScores
from compound.estimators.columns import Array
from compound.estimators.mixins import UncertaintyMixin
from compound.estimators.prediction import estimator_blocks
from compound.estimators.thresholds import ThresholdMixin, pad_labels
from compound.estimators.validation import encode_table
from compound.predictive import Predictive, TargetPredictive
from compound.predictive.sets import check_coverage
from compound.random import named_generator


class Interval(NamedTuple):
    """Lower and upper bounds of prediction intervals, of shape (rows,) or (rows, targets)."""

    lower: Array
    upper: Array


class TargetPredictions(UncertaintyMixin, ThresholdMixin):
    """Predictions of `CompoundRegressor`."""

    shift_: Array
    scale_: Array
    y_is_1d_: bool
    target_kind_: str = "gaussian"
    horizons_: Any = ()  # times of which the probability of no event is predicted
    intervals_: Any  # ConformalIntervals or AdaptiveConformal
    joint_: JointScores

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the mean of each row.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.
        return_std : bool, default=False
            Whether to return the standard deviation too.

        Returns
        -------
        mean : ndarray of shape (rows,) or (rows, targets)
            Means of the predictive distributions.
        std : ndarray of shape (rows,) or (rows, targets)
            Their standard deviations; only with `return_std`.
        """
        moments = self._map_rows(X, lambda predictive: torch.stack([predictive.mean, predictive.std], -1))
        mean, std = (self._shape_like_y(part) for part in moments.unbind(-1))
        return (mean, std) if return_std else mean

    def predict_dist(self, X: Any) -> TargetPredictive:
        """Predict the distribution of each row, before the conformal calibration of intervals.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.

        Returns
        -------
        GaussianPredictive or FamilyPredictive
            Mixtures of Gaussians, or of members of the family of the target's kind, in the units of y.
        """
        return cast(TargetPredictive, Predictive.concat(list(self._predictives(X))))

    def predict_interval(self, X: Any, coverage: float = 0.9, *, groups: Any = None) -> Interval:
        """Predict central intervals, calibrated on held-out rows by conformal prediction.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.
        coverage : float, default=0.9
            Probability that y lies inside; of several targets, each separately. With `n_calibration_` below
            9, a coverage of 0.9 holds only where errors on the predictive's own scale are Gaussian. Intervals
            of counts are whole numbers, ends included, and cover rather more.
        groups : array-like of shape (rows,) or str, default=None
            Groups of the rows, if the estimator was fitted with groups; by default the column given there.

        Returns
        -------
        Interval
            Arrays lower and upper of shape (rows,) or (rows, targets).
        """
        check_coverage(coverage)
        bounds = self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2], groups=groups)
        return Interval(bounds[..., 0], bounds[..., 1])

    def predict_region(self, X: Any, coverage: float = 0.9) -> Interval:
        """Predict a box that holds all targets of a row at once, calibrated on held-out rows.

        The score of a held-out row is its largest |z| over the targets, in units of each target's own root
        mean square. With one target it is `predict_interval`; groups have no boxes of their own.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.
        coverage : float, default=0.9
            Probability that all targets of a row lie inside.

        Returns
        -------
        Interval
            Arrays lower and upper of shape (rows,) or (rows, targets).
        """
        check_coverage(coverage)
        check_is_fitted(self)
        if not hasattr(self, "joint_"):
            raise ValueError("the model was saved without scores of boxes: fit it again to predict regions")
        z = self.joint_.conformal_quantile(coverage)
        bounds = self._map_rows(X, lambda p: p.z_quantiles(torch.stack([-z, z])).movedim(0, -1))
        shaped = self._shape_like_y(bounds)
        return Interval(shaped[..., 0], shaped[..., 1])

    def predict_quantiles(self, X: Any, q: float | Sequence[float], *, groups: Any = None) -> Array:
        """Predict quantiles; those at 0.05 and 0.95 are the bounds of the interval of coverage 0.9.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.
        q : float or sequence of float
            Levels between 0 and 1.
        groups : array-like of shape (rows,) or str, default=None
            Groups of the rows, if the estimator was fitted with groups; by default the column given there.

        Returns
        -------
        ndarray of shape (rows, levels) or (rows, targets, levels)
            Calibrated quantiles.
        """
        check_is_fitted(self)
        levels = np.atleast_1d(np.asarray(q, dtype=np.float64))
        if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"q is {q}: quantile levels must lie between 0 and 1")
        labels = self.row_groups(X, groups)
        parts, start = [], 0
        for predictive, rows in estimator_blocks(self, encode_table(self, X)):
            block = None if labels is None else pad_labels(labels[start : start + rows], len(predictive))
            quantiles = self.calibrated_quantiles(predictive, levels.tolist(), block)
            parts.append(quantiles.movedim(0, -1)[:rows])
            start += rows
        return self._shape_like_y(torch.cat(parts))

    def predict_survival(self, X: Any, times: float | Sequence[float]) -> Array:
        """Predict the probability that y is larger than each of some times.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.
        times : float or sequence of float
            Times, or any values of y.

        Returns
        -------
        ndarray of shape (rows, times)
            P(y > time), of the first target.
        """
        points = torch.from_numpy(np.atleast_1d(np.asarray(times, dtype=np.float64)))
        if not bool(torch.isfinite(points).all()):
            raise ValueError(f"times is {times}: give finite numbers")
        return self._map_rows(X, lambda p: survival(p, points)).numpy()

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int = 0) -> Array:
        """Draw samples of y from each row's predictive distribution.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.
        n_samples : int, default=1
            Samples per row.
        random_state : int, default=0
            Seed.

        Returns
        -------
        ndarray of shape (rows, n_samples) or (rows, targets, n_samples)
            The samples.
        """
        generator = named_generator(random_state, "sample")
        samples = [
            predictive.sample(n_samples, generator).permute(1, 2, 0)
            for predictive in cast(Iterator[TargetPredictive], self._predictives(X))
        ]
        return self._shape_like_y(torch.cat(samples))


def survival(predictive: TargetPredictive, times: Tensor) -> Tensor:  # (rows, times)
    """P(y > time) of the first target of every row, for times (times,)."""
    return torch.stack([1 - predictive.cdf(time)[:, 0] for time in times], -1)
