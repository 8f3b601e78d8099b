"""Fitted columns of an encoder: how numbers, booleans and categories are encoded, and what surprises."""

from dataclasses import dataclass

import numpy as np

from compound.estimators.columns import Array, canonical_label

SURE = 100.0  # surprise in standard deviations: beyond any threshold


@dataclass(frozen=True)
class NumericColumn:
    """The fitted encoding of a column of numbers or booleans (0, 1)."""

    name: str
    mean: float
    scale: float  # standard deviation; 1 where the column was constant
    fill: float  # the median, which replaces missing values
    has_missing: bool  # training had missing values: an indicator column follows
    low: float = -np.inf  # range of the training values, with a margin
    high: float = np.inf
    boolean: bool = False  # the column held booleans in training

    @property
    def width(self) -> int:
        """How many numbers it is encoded as."""
        return 1 + self.has_missing

    @property
    def labels(self) -> list[str]:  # (width,)
        """A name for each of these numbers."""
        return [self.name, f"{self.name} missing"][: self.width]

    @property
    def shift(self) -> list[float]:  # (width,)
        """What standardisation subtracts."""
        return [self.mean, 0.0][: self.width]

    @property
    def divisor(self) -> list[float]:  # (width,)
        """What standardisation divides by."""
        return [self.scale, 1.0][: self.width]

    def encode(self, out: Array, values: Array) -> None:
        """Write values (rows,), NaN where missing, into out (rows, width), before standardisation."""
        missing = np.isnan(values)
        out[:, 0] = np.where(missing, self.fill, values)
        if self.has_missing:
            out[:, 1] = missing

    def surprise(self, values: Array) -> Array:  # (rows,)
        """SURE for a missing value where training had none, less for a number beyond the range."""
        missing = np.isnan(values)
        excess = np.fmax(np.fmax(self.low - values, values - self.high), 0.0)  # 0 for NaN
        half_width = max(0.5 * (self.high - self.low), np.finfo(np.float64).tiny)
        with np.errstate(over="ignore"):
            beyond = SURE * np.minimum(excess / half_width, 1.0) ** 3
        return np.where(missing, 0.0 if self.has_missing else SURE, beyond)


@dataclass(frozen=True)
class CategoricalColumn:
    """The fitted one-hot encoding of a column of labels; None is a missing value, which is a category too."""

    name: str
    values: tuple[str | None, ...]  # those with an indicator column of their own
    has_other: bool  # a last indicator column for all other values
    rare: tuple[str | None, ...] | None = None  # other values that training had; None: new ones are ordinary
    has_missing: bool = True  # training had missing values

    @property
    def width(self) -> int:
        """How many numbers it is encoded as."""
        return len(self.values) + self.has_other

    @property
    def labels(self) -> list[str]:  # (width,)
        """A name for each of these numbers."""
        values = ["missing" if value is None else value for value in self.values]
        return [f"{self.name} = {value}" for value in [*values, "other"][: self.width]]

    @property
    def shift(self) -> list[float]:  # (width,)
        """What standardisation subtracts: nothing."""
        return [0.0] * self.width

    @property
    def divisor(self) -> list[float]:  # (width,)
        """What standardisation divides by: one."""
        return [1.0] * self.width

    def encode(self, out: Array, values: Array) -> None:
        """Write labels (rows,) as indicators into out (rows, width), which holds zeros."""
        index = {canonical_label(value): i for i, value in reversed(list(enumerate(self.values)))}
        index |= {value: i for i, value in enumerate(self.values)}  # exact labels have priority
        other = len(self.values) if self.has_other else -1
        positions = np.fromiter(
            (index[v] if v in index else index.get(canonical_label(v), other) for v in values),
            dtype=np.int64,
            count=len(values),
        )
        rows = np.flatnonzero(positions >= 0)
        out[rows, positions[rows]] = 1.0

    def surprise(self, values: Array) -> Array:  # (rows,)
        """SURE for a value that training did not have, where new values are not ordinary.

        Where they are, it is SURE for a missing value alone, in a column that had none.
        """
        if self.rare is None:
            return SURE * np.array([v is None and not self.has_missing for v in values], dtype=np.float64)
        known = {*self.values, *self.rare}
        known |= {canonical_label(value) for value in known}
        new = (v not in known and canonical_label(v) not in known for v in values)
        return SURE * np.fromiter(new, dtype=np.float64, count=len(values))
