"""Kinds of numeric targets: which family suits a column, what it requires of y, and the model's units."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from compound.estimators.columns import Array
from compound.types import COUNTS, FAMILIES, TIMES

KINDS = ("gaussian", *FAMILIES["regression"])
MAX_MEDIAN_COUNT = 50.0  # of a column proposed as counts: larger ones are as good as continuous
MIN_SKEWNESS = 0.3  # of a column proposed as counts: that of a Poisson distribution with mean 11
MIN_RATIO = 100.0  # of the 99% and 1% quantiles of a column proposed as log-normal
NEEDS = dict.fromkeys(TIMES, "numbers above 0") | dict.fromkeys(
    COUNTS, f"whole numbers from 0 to {2**24:,}"
)  # of y, by kind
MAX_RANGE = 1e140  # of y: variances are in squared units, and out of distribution many times those of y


class Proposal(NamedTuple):
    """The kind that suits a target, with the reason in words."""

    kind: str
    reason: str


def propose_kind(y: Array, has_event: bool = False) -> Proposal:
    """The kind that suits a target y (rows,): Gaussian, unless another one is clearly better.

    Counts: whole numbers from 0 or 1 on, with repetitions, a median of at most MAX_MEDIAN_COUNT, and more
    small values than large ones. Log-normal: positive, the 1% and 99% quantiles a factor of MIN_RATIO apart,
    and closer to symmetric on a log scale.
    """
    if has_event:
        return Proposal("weibull", "times with a column that tells which events were observed")
    y = y.astype(np.float64)
    low, high, median = float(y.min()), float(y.max()), float(np.median(y))
    is_skewed = _skewness(y) > MIN_SKEWNESS
    is_whole = bool((y == np.round(y)).all()) and low in (0.0, 1.0) and len(np.unique(y)) < 0.5 * len(y)
    if is_whole and is_skewed and median <= MAX_MEDIAN_COUNT:
        reason = f"whole numbers from {low:g} to {high:g}, half of them at most {median:g}"
        return Proposal("negative-binomial", reason)
    if low > 0:
        few, many = np.quantile(y, [0.01, 0.99])
        if many >= MIN_RATIO * few and abs(_skewness(np.log(y))) < 0.5 * _skewness(y):
            return Proposal("log-normal", f"positive, from {few:.3g} to {many:.3g} over orders of magnitude")
    return Proposal("gaussian", "numbers")


def _skewness(y: Array) -> float:
    centred = y - y.mean()
    return float((centred**3).mean() / max((centred**2).mean(), 1e-300) ** 1.5)


def choose_kind(kind: str, y: Array, has_event: bool) -> str:
    """The kind itself, or for "auto" the one that suits all columns of y (rows, targets)."""
    if kind == "auto":
        proposed = {propose_kind(column, has_event).kind for column in y.T}
        return proposed.pop() if len(proposed) == 1 else "gaussian"
    return kind


def check_kind(kind: Any) -> None:
    """Raise ValueError for an unknown kind."""
    if kind not in ("auto", *KINDS):
        raise ValueError(f"target_kind is {kind!r}: use one of auto, {', '.join(KINDS)}")


def check_values(kind: str, y: Array, event: Array | None) -> None:
    """Raise ValueError if y (rows, targets) or events (rows,) do not suit the kind."""
    if event is not None:
        if kind not in TIMES:
            raise ValueError(f"event needs times: target_kind is {kind!r}, use one of {', '.join(TIMES)}")
        if y.shape[1] != 1:
            raise ValueError(f"event needs one target, y has {y.shape[1]}")
        if not (event > 0).any():
            raise ValueError("event is 0 for every row: no time until an event was observed")
        if (y < 0).any():
            raise ValueError(f"y holds {y.min():g}: times are not negative")
        if not (y > 0).any():
            raise ValueError("y is 0 for every row: times vary")
        return
    wrong = unsuitable(kind, y)
    if wrong.any():
        value, row = y[wrong][0], int(wrong.any(1).argmax())
        raise ValueError(f"y holds {value:g} at row {row}: target_kind {kind!r} needs {NEEDS[kind]}")


def unsuitable(kind: str, y: Array) -> Array:  # (rows, targets) bool
    """The values of y (rows, targets) that a kind of target cannot have."""
    if kind in TIMES:
        return ~(y > 0)
    if kind in COUNTS:
        return ~((y >= 0) & (y == np.round(y)) & (y < 2**24))
    return np.zeros(y.shape, dtype=bool)


def units(kind: str, y: Array) -> tuple[Array, Array]:  # (targets,) each
    """Shift and scale of a family's targets: the geometric mean of positive ones, none of counts."""
    targets = y.shape[1]
    if kind in COUNTS:
        return np.zeros(targets), np.ones(targets)
    return np.zeros(targets), np.exp(np.log(y).mean(0))


def positive_times(y: Array) -> Array:
    """Times (rows, targets) with half of the smallest positive time in place of 0."""
    return np.where(y > 0, y, 0.5 * y[y > 0].min())


def split_structured(y: Any) -> tuple[Any, Any]:
    """y and events: those of a structured array with a boolean and a numeric field, as of scikit-survival."""
    names: Sequence[str] | None = getattr(getattr(y, "dtype", None), "names", None)
    if not names:
        return y, None
    flags = [name for name in names if y.dtype[name].kind == "b"]
    times = [name for name in names if name not in flags]
    if len(flags) != 1 or len(times) != 1:
        raise ValueError(f"y has the fields {', '.join(names)}: give one boolean event and one time")
    return y[times[0]], y[flags[0]]


def check_extent(shift: Array, scale: Array, extent: Array) -> None:
    """Raise ValueError where variances would over- or underflow; arguments are (targets,) each."""
    if not (np.isfinite(shift) & np.isfinite(scale) & (extent < MAX_RANGE)).all():
        raise ValueError("y holds numbers too large to square: divide it by a constant")
    if ((extent > 0) & (extent < 1 / MAX_RANGE)).any():
        raise ValueError(
            f"y varies by {extent[extent > 0].min():.2g} only, too little to square: "
            "multiply it by a constant"
        )


def horizons(times: Array) -> Array:  # (times,)
    """The quartiles of the times (rows, 1) of observed events, to three digits."""
    quartiles = np.quantile(times, [0.25, 0.5, 0.75])
    return np.unique([float(f"{time:.3g}") for time in quartiles])
