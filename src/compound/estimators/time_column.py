"""Encoding of dates and times: elapsed time, and those parts of the calendar that varied in training.

    elapsed days,   year,   month and the position in the year,   weekday,   hour

Positions in year, week and day are also encoded as a point on a circle, (sin, cos) of the angle, so that
December is next to January. Whatever did not vary in training is left out: the hour where no value has a
time of day, the year where all are of one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from compound.estimators.columns import Array
from compound.estimators.encoder_columns import NumericColumn
from compound.estimators.times import DAYS

PARTS = {  # of the calendar; each is left out, with its circle, where it did not vary
    "year": (),
    "month": ("year sin", "year cos"),
    "weekday": ("week sin", "week cos"),
    "hour": ("day sin", "day cos"),
}
KINDS = tuple(kind for part, circle in PARTS.items() for kind in (part, *circle))
MIN_MARGIN = 1.0  # days by which the range of elapsed time is widened: the next day is no surprise
MIN_RANGE = 1e-9  # of a sine or cosine that varies by more than rounding: on 1 January and 1 July sines are 0


@dataclass(frozen=True)
class CalendarPart:
    """One number of the calendar and its standardisation."""

    kind: str  # one of KINDS
    mean: float
    scale: float


@dataclass(frozen=True)
class TimeColumn:
    """The fitted encoding of a column of dates or times, as days since 1970."""

    name: str
    elapsed: NumericColumn  # in days
    parts: tuple[CalendarPart, ...]

    @property
    def width(self) -> int:
        """How many numbers it is encoded as."""
        return self.elapsed.width + len(self.parts)

    @property
    def has_clock(self) -> bool:
        """Whether the time of day counts."""
        return any(part.kind == "hour" for part in self.parts)

    @property
    def labels(self) -> list[str]:  # (width,)
        """A name for each of these numbers."""
        return [*self.elapsed.labels, *(f"{self.name} {part.kind}" for part in self.parts)]

    @property
    def shift(self) -> list[float]:  # (width,)
        """What standardisation subtracts."""
        return [*self.elapsed.shift, *(part.mean for part in self.parts)]

    @property
    def divisor(self) -> list[float]:  # (width,)
        """What standardisation divides by."""
        return [*self.elapsed.divisor, *(part.scale for part in self.parts)]

    def encode(self, out: Array, values: Array) -> None:
        """Write days (rows,), NaN where missing, into out (rows, width), before standardisation."""
        self.elapsed.encode(out[:, : self.elapsed.width], values)
        numbers = calendar(out[:, 0]) if self.parts else {}
        for k, part in enumerate(self.parts, self.elapsed.width):
            out[:, k] = numbers[part.kind]

    def surprise(self, values: Array) -> Array:  # (rows,)
        """That of elapsed time: a missing value where training had none, a time beyond the range."""
        return self.elapsed.surprise(values)


def fit_time(elapsed: NumericColumn, values: Array) -> TimeColumn:
    """The encoding of days (rows,), NaN where missing; `elapsed` is that of the days as numbers."""
    filled = np.where(np.isnan(values), elapsed.fill, values)
    moments = {
        kind: (float(numbers.mean()), float(numbers.std()), float(np.ptp(numbers)))
        for kind, numbers in calendar(filled).items()
    }
    return choose_parts(elapsed, moments, float(filled.min()), float(filled.max()))


def choose_parts(
    elapsed: NumericColumn, moments: Mapping[str, tuple[float, float, float]], first: float, last: float
) -> TimeColumn:
    """The encoding with those parts of the calendar that varied.

    `moments` holds mean, standard deviation and range of each kind of number, `first` and `last` the range of
    the days.
    """
    parts = tuple(
        CalendarPart(kind, *moments[kind][:2])
        for part, circle in PARTS.items()
        if moments[part][2] > 0
        for kind in (part, *circle)
        if moments[kind][2] > MIN_RANGE
    )
    low = min(elapsed.low, first - MIN_MARGIN)
    high = max(elapsed.high, last + MIN_MARGIN)
    return TimeColumn(elapsed.name, replace(elapsed, low=low, high=high), parts)


def calendar(days: Array) -> dict[str, Array]:
    """Numbers (rows,) by kind of days (rows,) since 1970, a Thursday; Monday is weekday 0."""
    days = np.clip(days, *DAYS)
    whole = np.floor(days)
    dates = whole.astype(np.int64).astype("datetime64[D]")
    years = dates.astype("datetime64[Y]")
    start = years.astype("datetime64[D]")
    length = ((years + 1).astype("datetime64[D]") - start).astype(np.float64)
    hour = np.round(24 * (days - whole), 6)  # 10:20 is one number, whatever the day
    weekday = (whole + 3) % 7
    turns = {
        "year": ((dates - start).astype(np.float64) + hour / 24) / length,  # 0 on 1 January, 1 a year later
        "week": weekday / 7,
        "day": hour / 24,
    }
    numbers = {
        "year": 1970.0 + years.astype(np.int64),
        "month": 1.0 + dates.astype("datetime64[M]").astype(np.int64) % 12,
        "weekday": weekday,
        "hour": hour,
    }
    for name, turn in turns.items():
        numbers |= {f"{name} sin": np.sin(2 * np.pi * turn), f"{name} cos": np.cos(2 * np.pi * turn)}
    return numbers
