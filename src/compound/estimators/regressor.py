"""The estimator for regression: predictive distributions of one target or several."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from compound.estimators.base import Estimator
from compound.estimators.calibration import ConformalIntervals
from compound.estimators.columns import Array
from compound.estimators.conformal_scores import z_quantiles
from compound.estimators.member_holdout import calibration_rows, calibration_scores, member_holdout_weights
from compound.predictive import GaussianPredictive, Predictive
from compound.random import derive_seed, named_generator
from compound.types import Task

MAX_RANGE = 1e140  # of y: variances are in squared units, and out of distribution many times those of y


class Interval(NamedTuple):
    """Lower and upper bounds of prediction intervals, of shape (rows,) or (rows, targets)."""

    lower: Array
    upper: Array


class CompoundRegressor(RegressorMixin, Estimator):
    """Regression with predictive distributions and calibrated prediction intervals.

    Inputs and targets are standardised inside; the defaults need no tuning from a hundred to a million rows.

    Parameters
    ----------
    method : str or Method, default="ml-cdn"
        The method: a name such as "ml-cdn", "vb-cdn" or "deep-ensemble", or `Method("ml-cdn", lam=1e-4)` with
        options.
    max_epochs : int, default=None
        Passes over the training rows, at most. None: 1,000 to 10,000 steps, depending on the number of rows.
    batch_size : int, default=None
        Rows per optimizer step. None: 100, or 200 from 20,000 rows on.
    lr : float, default=None
        Learning rate. None: 0.01.
    early_stopping : bool, default=True
        Whether held-out rows choose the stopping step.
    validation_fraction : float, default=0.1
        Fraction of the rows that each member holds out, for early stopping and calibration.
    false_positive_rate : float, default=0.01
        Fraction of ordinary rows that `is_ood` marks.
    warm_start : bool, default=False
        Whether `fit` continues with the weights of the last fit.
    random_state : int, RandomState or None, default=None
        Seed of weights, batches and noise. Equal seeds give equal bits.
    device : {"auto", "cpu"}, default="auto"
        Where to compute; tables are fitted on the CPU.
    verbose : bool, default=False
        Whether to show a progress bar.
    callbacks : sequence of callable, default=None
        Functions that are called with a `FitProgress` during `fit`.
    checkpoint : str or Path, default=None
        A file to which `fit` saves its progress, and from which an interrupted one is resumed to the same
        bits.
    distributed : bool, default=False
        Whether the processes of torch.distributed fit one model together (see docs/scale.md).

    Attributes
    ----------
    model_ : Model
        The fitted model, for standardised inputs and targets.
    encoder_ : Encoder
        The encoding of the columns.
    intervals_ : ConformalIntervals
        Calibration scores of held-out rows.
    ood_detector_ : CombinedDetector
        Evidence that rows are out of distribution, with its threshold.
    history_ : History
        The learning curve.
    shift_, scale_ : ndarray of shape (targets,)
        Mean and standard deviation of the targets.
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

    shift_: Array
    scale_: Array
    y_is_1d_: bool
    intervals_: ConformalIntervals

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

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

    def predict_dist(self, X: Any) -> GaussianPredictive:
        """Predict the distribution of each row, before the conformal calibration of intervals.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.

        Returns
        -------
        GaussianPredictive
            Mixtures of Gaussians in the units of y, as tensors of shape (draws, rows, targets).
        """
        return cast(GaussianPredictive, Predictive.concat(list(self._predictives(X))))

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Interval:
        """Predict central intervals, calibrated on held-out rows by conformal prediction.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.
        coverage : float, default=0.9
            Probability that y lies inside; of several targets, each separately. With `n_calibration_` below
            9, a coverage of 0.9 holds only where errors on the predictive's own scale are Gaussian.

        Returns
        -------
        Interval
            Arrays lower and upper of shape (rows,) or (rows, targets).
        """
        if not 0 < coverage < 1:
            raise ValueError(f"coverage is {coverage}: it must lie between 0 and 1, such as 0.9")
        bounds = self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2])
        return Interval(bounds[..., 0], bounds[..., 1])

    def predict_quantiles(self, X: Any, q: float | Sequence[float]) -> Array:
        """Predict quantiles; those at 0.05 and 0.95 are the bounds of the interval of coverage 0.9.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.
        q : float or sequence of float
            Levels between 0 and 1.

        Returns
        -------
        ndarray of shape (rows, levels) or (rows, targets, levels)
            Calibrated quantiles.
        """
        check_is_fitted(self)
        levels = np.atleast_1d(np.asarray(q, dtype=np.float64))
        if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"q is {q}: quantile levels must lie between 0 and 1")
        z = torch.stack([self._calibrated_z(float(level)) for level in levels])  # (levels, targets)
        values = self._map_rows(X, lambda predictive: z_quantiles(predictive, z).movedim(0, -1))
        return self._shape_like_y(values)

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
            for predictive in cast(Iterator[GaussianPredictive], self._predictives(X))
        ]
        return self._shape_like_y(torch.cat(samples))

    @property
    def n_calibration_(self) -> float:
        """Effective number of held-out rows that calibrate the intervals."""
        check_is_fitted(self)
        return self.intervals_.effective_rows

    def _calibrated_z(self, level: float) -> Tensor:  # (targets,)
        """The z for which the predictive's quantile of level Φ(z) is the calibrated quantile of `level`."""
        if abs(level - 0.5) < 1e-12:
            return torch.zeros(len(self.shift_), dtype=torch.float64)
        z = self.intervals_.conformal_quantile(abs(2 * level - 1))
        return z if level > 0.5 else -z

    def _check_y(self, y: Any) -> Array:
        target = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        if target.ndim > 2 or target.size == 0:
            raise ValueError(
                f"y has shape {target.shape}: give one number per row, or one row of numbers per row"
            )
        return cast(Array, target)

    def _fit_target(self, y: Array) -> tuple[Task, Tensor]:
        """Standardise the targets; ValueError where variances would over- or underflow."""
        columns = y.reshape(len(y), -1)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            shift = columns.mean(0)
            scale = columns.std(0)
            extent = columns.max(0) - columns.min(0)
        self._set_units(shift, scale, extent)
        self.y_is_1d_ = y.ndim == 1
        standardised = ((columns - shift) / self.scale_).astype(np.float32)
        return Task("regression", columns.shape[1]), torch.from_numpy(standardised)

    def _set_units(self, shift: Array, scale: Array, extent: Array) -> None:
        """Set the units of the targets from means, standard deviations and ranges, (targets,) each.

        Raises ValueError where variances would over- or underflow.
        """
        if not (np.isfinite(shift) & np.isfinite(scale) & (extent < MAX_RANGE)).all():
            raise ValueError("y holds numbers too large to square: divide it by a constant")
        if ((extent > 0) & (extent < 1 / MAX_RANGE)).any():
            raise ValueError(
                f"y varies by {extent[extent > 0].min():.2g} only, too little to square: "
                "multiply it by a constant"
            )
        is_constant = scale <= 1e-12 * np.abs(shift)
        self.shift_ = shift
        self.scale_ = np.where(is_constant, 1.0, scale)

    def _holdout_weights(self, y: Tensor, members: int) -> Tensor:
        seed = derive_seed(self.seed_, "hold out")
        return member_holdout_weights(len(y), members, self.validation_fraction, seed)

    def _calibrate(
        self, x: Tensor, y: Tensor, held_out: Tensor, weights: Tensor, drawn: Tensor | None = None
    ) -> None:
        _, rows = calibration_rows(held_out, self.seed_)
        scores = calibration_scores(self.model_, x, y, held_out, self.seed_)
        self.intervals_ = ConformalIntervals.fit(scores, len(self.shift_), weights[rows])

    def _shape_like_y(self, values: Tensor) -> Array:
        return (values[:, 0] if self.y_is_1d_ else values).numpy()
