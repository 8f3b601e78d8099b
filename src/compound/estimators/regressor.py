"""Numbers to predict: one target or several at once."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from compound.estimators.base import Array, Estimator
from compound.estimators.calibration import ROWS, ConformalIntervals, quantile, score
from compound.estimators.prediction import answers, to_float64
from compound.models import Model
from compound.predictive import GaussianPredictive, Predictive
from compound.random import derive_seed, named_generator
from compound.train.loop import holdout_weights
from compound.types import Task

MANY = 5000  # rows from which on members hold out some rows together
LARGEST = 1e140  # extent of y: variances are in squared units, and a doubtful row's are many times those of y
COMMON = 500  # how many at least: they settle a 90% interval to within 1.3%


class Interval(NamedTuple):
    """Lower and upper ends, as many as rows (rows x targets where there are several)."""

    lower: Array
    upper: Array


class CompoundRegressor(RegressorMixin, Estimator):
    """Predictive distributions for numbers, with calibrated intervals.

    `method` is a name ("ml-cdn", "vb-cdn", "deep-ensemble", ...) or `Method("ml-cdn", lam=1e-4)`. Inputs and targets are
    standardised inside; the defaults need no tuning from a hundred to a million rows.

    >>> model = CompoundRegressor(random_state=0).fit(X, y)
    >>> mean, std = model.predict(X_new, return_std=True)
    >>> low, high = model.predict_interval(X_new, coverage=0.9)
    """

    shift_: Array  # (targets,)
    scale_: Array  # (targets,)
    y_is_1d_: bool  # y was a plain list of numbers
    intervals_: ConformalIntervals

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of each row's predictive, and with `return_std` its standard deviation too."""
        both = self._each(X, lambda answer: torch.stack([answer.mean, answer.std], -1))
        mean, std = (self._shaped(part) for part in both.unbind(-1))
        return (mean, std) if return_std else mean

    def predict_dist(self, X: Any) -> GaussianPredictive:
        """The whole predictive: a mixture of Gaussians in the units of y, as tensors (draws, rows, targets)."""
        return cast(GaussianPredictive, Predictive.concat(list(self._gaussians(X))))

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Interval:
        """Central intervals that hold the truth with probability `coverage`, calibrated on held-out rows (see calibration.py).

        Several targets are covered one by one. `n_calibration_` says how many rows vouch for it; fewer than 9 only where errors, on
        the predictive's own scale, are Gaussian.
        """
        lower, upper = (1 - coverage) / 2, (1 + coverage) / 2
        if not 0 < coverage < 1:
            raise ValueError(f"coverage is {coverage}: it must lie between 0 and 1, such as 0.9")
        ends = self.predict_quantiles(X, [lower, upper])
        return Interval(ends[..., 0], ends[..., 1])

    @property
    def n_calibration_(self) -> float:
        check_is_fitted(self)
        return self.intervals_.rows

    def predict_quantiles(
        self, X: Any, q: float | Sequence[float]
    ) -> Array:  # (rows, levels) or (rows, targets, levels)
        """Quantiles of the calibrated predictive; levels 0.05 and 0.95 are the ends of the interval of coverage 0.9."""
        check_is_fitted(self)
        levels = np.atleast_1d(np.asarray(q, dtype=np.float64))
        if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"q is {q}: quantile levels must lie between 0 and 1")
        at = [self._z(float(level)) for level in levels]
        values = self._each(X, lambda answer: torch.stack([quantile(answer, z) for z in at], -1)).numpy()
        return values[:, 0] if self.y_is_1d_ else values

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: int = 0
    ) -> Array:  # (rows, samples) or (rows, targets, samples)
        """Draws from each row's predictive."""
        generator = named_generator(random_state, "sample")
        parts = [answer.sample(n_samples, generator).permute(1, 2, 0) for answer in self._gaussians(X)]
        values = torch.cat(parts).numpy()
        return values[:, 0] if self.y_is_1d_ else values

    def _z(self, level: float) -> Tensor:  # (targets,)
        if abs(level - 0.5) < 1e-12:
            return torch.zeros(len(self.shift_), dtype=torch.float64)
        reach = self.intervals_.conformal_quantile(abs(2 * level - 1))
        return reach if level > 0.5 else -reach

    def _gaussians(self, X: Any) -> Iterator[GaussianPredictive]:
        """One block at a time: what is kept of it is small, so memory does not grow with draws times rows."""
        return cast(Iterator[GaussianPredictive], self._answers(X))

    def _check_y(self, y: Any) -> Array:
        target = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        if target.ndim > 2 or target.size == 0:
            raise ValueError(
                f"y has shape {target.shape}: give one number per row, or one row of numbers per row"
            )
        return cast(Array, target)

    def _learn_y(self, y: Array) -> tuple[Task, Tensor]:
        columns = y.reshape(len(y), -1)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            shift, scale, extent = columns.mean(0), columns.std(0), columns.max(0) - columns.min(0)
        if not (np.isfinite(shift) & np.isfinite(scale) & (extent < LARGEST)).all():
            raise ValueError("y holds numbers too large to square: divide it by a constant")
        if ((extent > 0) & (extent < 1 / LARGEST)).any():
            raise ValueError(
                f"y varies by {extent[extent > 0].min():.2g} only, too little to square: multiply it by a constant"
            )
        constant = scale <= 1e-12 * np.abs(shift)
        self.shift_, self.scale_, self.y_is_1d_ = shift, np.where(constant, 1.0, scale), y.ndim == 1
        return Task("regression", columns.shape[1]), torch.from_numpy(
            ((columns - shift) / self.scale_).astype(np.float32)
        )

    def _hold_out(self, y: Tensor, members: int) -> Tensor:
        return held_out(len(y), members, self.validation_fraction, derive_seed(self.seed_, "hold out"))

    def _calibrate(self, x: Tensor, y: Tensor, held: Tensor, weights: Tensor) -> None:
        _, rows = held_rows(held, self.seed_)
        self.intervals_ = ConformalIntervals.fit(
            held_scores(self.model_, x, y, held, self.seed_), len(self.shift_), weights[rows]
        )

    def _postprocess(self, answer: Predictive) -> Predictive:
        exact = to_float64(cast(GaussianPredictive, answer))
        return exact.rescale(torch.from_numpy(self.shift_), torch.from_numpy(self.scale_))

    def _shaped(self, values: Tensor) -> Array:
        return (values[:, 0] if self.y_is_1d_ else values).numpy()


def held_out(rows: int, members: int, fraction: float, seed: int) -> Tensor:  # (members, rows)
    """Weights 1 and 0. Each member holds out rows of its own, so that together they see all; of many rows some are held out by all.

    A member alone errs more than the mixture of all, so its scores make intervals somewhat too wide. Where there are rows enough, a
    few hundred that no member has seen let the mixture itself be scored.
    """
    weight = holdout_weights(rows, members, fraction, seed)
    if rows < MANY or members == 1:
        return weight
    each = int((weight[0] == 0).sum())
    common = min(each, max(COMMON, rows // 100))
    order = torch.randperm(rows, generator=named_generator(seed, "hold out in common"))
    weight = torch.ones(members, rows, dtype=torch.float32)
    weight[:, order[:common]] = 0
    weight[:, order[common:]] = holdout_weights(
        rows - common, members, (each - common) / (rows - common), seed
    )
    return weight


def held_rows(held: Tensor, seed: int) -> tuple[Tensor | None, Tensor]:  # (some rows,) each
    """Members and the rows they answer for, of those marked True in held (rows,) or (members, rows).

    All members together (None) answer for rows that all held out; where there are none, each for its own alone, and for a row that
    several held out the first of them: one row vouches once.
    """
    held = held.reshape(-1, held.shape[-1])  # (1 or members, rows)
    common = held.all(0)
    who, rows = (
        (held & (held.cumsum(0) == 1)).nonzero().T
        if not common.any()
        else (None, common.nonzero().squeeze(1))
    )
    some = torch.randperm(len(rows), generator=named_generator(seed, "calibrate"))[:ROWS]
    return None if who is None else who[some], rows[some]


def held_scores(
    model: Model, x: Tensor, y: Tensor, held: Tensor, seed: int
) -> Iterator[Tensor]:  # (some rows, targets)
    """Scores of the rows of `held_rows`, in their order."""
    who, rows = held_rows(held, seed)
    start = 0
    for answer in answers(model, x[rows], seed):
        part = slice(start, start + len(answer.component))
        own = to_float64(cast(GaussianPredictive, answer))
        if who is not None:
            own = member(own, who[part], len(held))
        yield score(own, y[rows[part]].double())
        start = part.stop


def member(answer: GaussianPredictive, who: Tensor, members: int) -> GaussianPredictive:
    """The part of a mixture that comes from one member, who (rows,) says which; draws are ordered by member."""
    if members == 1:
        return answer

    def pick(values: Tensor) -> Tensor:  # (draws / members, rows, targets)
        each = values.unflatten(0, (members, -1))
        return each[who, :, torch.arange(len(who))].transpose(0, 1)

    weights = None if answer.log_weights is None else torch.log_softmax(pick(answer.log_weights), 0)
    return replace(answer, means=pick(answer.means), variances=pick(answer.variances), log_weights=weights)
