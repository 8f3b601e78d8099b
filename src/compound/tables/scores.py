"""How good a model's answers are: numbers with 95% intervals, a calibration curve, coverage slice by slice.

Every number here is a function of sums over rows. A bootstrap sample is a count for each row, so it is one weighted sum.
Shares of rows have Wilson's intervals instead: no bootstrap of ten right answers holds a wrong one.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pandas.api import types as kinds
from torch import Generator

from compound.estimators.row_predictions import RowScores

Array = NDArray[Any]
LEVELS = np.round(np.arange(0.05, 1.0, 0.05), 2)
NOMINAL = 0.9
BINS = 15  # of confidence
REPEATS = 500
MANY = 50_000  # rows beyond which a fifth of the repeats will do
PARTS = 5  # quantile bins of a column of numbers
LEAST = 10  # rows of a slice


class Number(NamedTuple):
    """A measured number with its 95% interval."""

    name: str
    value: float
    low: float
    high: float


class Point(NamedTuple):
    """Of the calibration curve. Numbers: share of truths inside the interval of coverage `said`. Classes: accuracy where `said`."""

    said: float
    seen: float
    rows: int


class Slice(NamedTuple):
    """Rows alike in one column."""

    column: str
    value: str
    rows: int
    coverage: float  # of the 90% interval or set
    nll: float
    error: float  # RMSE, or share of wrong classes
    epistemic: float  # mean


class Bootstrap:
    """Samples of rows, as a count for each row: the first is the data themselves."""

    def __init__(self, rows: int, generator: Generator):
        self.rows = rows
        self.repeats = REPEATS if rows <= MANY else REPEATS // 5
        self.seed = int(torch.randint(2**62, (), generator=generator))

    def counts(self) -> Iterator[Array]:  # each (rows,)
        """The same samples at every call, one at a time: a table of a million rows has no room for all."""
        yield np.ones(self.rows)
        generator = Generator().manual_seed(self.seed)
        for _ in range(self.repeats):
            picks = torch.randint(self.rows, (self.rows,), generator=generator)
            yield torch.bincount(picks, minlength=self.rows).double().numpy()

    def means(self, values: Array) -> Array:  # (1 + repeats, columns)
        return np.stack([counts @ values for counts in self.counts()]) / self.rows


def numbers(judged: RowScores, targets: bool, generator: Generator) -> list[Number]:
    """NLL, RMSE or accuracy, coverage of the 90% interval or set, calibration error and their like."""
    bootstrap = Bootstrap(len(judged), generator)
    if targets:
        std = judged.predictions["std"].to_numpy()
        sums = bootstrap.means(
            np.column_stack([judged.nll, judged.error**2, np.abs(judged.error), std, judged.inside])
        )
        nll, square, size, width, inside = sums[:, 0], sums[:, 1], sums[:, 2], sums[:, 3], sums[:, 4:]
        rest = {"RMSE": np.sqrt(square), "MAE": size}
        gaps, last = np.abs(inside - judged.levels).mean(1), {"mean std": width}
    else:
        confidence = judged.predictions["probability"].to_numpy()
        bins = _binned(confidence, confidence - (1 - judged.error))
        sums = bootstrap.means(
            np.column_stack([judged.nll, judged.error, judged.brier, confidence, bins, judged.inside])
        )
        nll, wrong, brier, sure = sums[:, 0], sums[:, 1], sums[:, 2], sums[:, 3]
        inside = sums[:, 4 + BINS :]
        rest = {"accuracy": 1 - wrong, "Brier score": brier}
        gaps, last = np.abs(sums[:, 4 : 4 + BINS]).sum(1), {"mean confidence": sure}
    found = {
        "NLL": nll,
        **rest,
        "coverage of 90%": inside[:, _at(NOMINAL, judged.levels)],
        "ECE": gaps,
        **last,
    }
    shares = ("accuracy", "coverage of 90%")
    return [
        _share(name, samples[0], len(judged)) if name in shares else _number(name, samples)
        for name, samples in found.items()
    ]


def ood_metrics(in_dist: pd.DataFrame, ood: pd.DataFrame, generator: Generator) -> list[Number]:
    """How well each score tells the rows of another table from those of this one: AUROC, and the shares that are flagged."""
    here, there = Bootstrap(len(in_dist), generator), Bootstrap(len(ood), generator)
    found = []
    for name in ("ood_score", "epistemic", "total"):
        low, high = _score(in_dist, name), _score(ood, name)
        found.append(_number(f"AUROC of {name}", _aurocs(low, high, here, there)))
    for name, frame in (("flagged in this table", in_dist), ("flagged in the other", ood)):
        found.append(_share(name, frame["is_ood"].mean(), len(frame)))
    return found


def curve(judged: RowScores, targets: bool) -> list[Point]:
    """What was said against what was seen."""
    if targets:
        return [
            Point(float(a), float(b), len(judged))
            for a, b in zip(judged.levels, judged.inside.mean(0), strict=True)
        ]
    confidence, right = judged.predictions["probability"].to_numpy(), 1 - judged.error
    place = _places(confidence)
    return [
        Point(
            float(confidence[place == bin].mean()),
            float(right[place == bin].mean()),
            int((place == bin).sum()),
        )
        for bin in range(BINS)
        if (place == bin).any()
    ]


def slices(judged: RowScores, table: pd.DataFrame, targets: bool, columns: Sequence[str]) -> list[Slice]:
    """Rows by the values of a column, or by its quantile bins; those with few rows are left out."""
    covered = judged.inside[:, _at(NOMINAL, judged.levels)]
    error: Callable[[Array], float] = (
        (lambda rows: float(np.sqrt((rows**2).mean()))) if targets else (lambda rows: float(rows.mean()))
    )
    found = []
    for name in columns:
        for value, mine in groups(table[name]):
            if mine.sum() >= LEAST:
                coverage, nll = float(covered[mine].mean()), float(judged.nll[mine].mean())
                doubt = float(judged.predictions["epistemic"].to_numpy()[mine].mean())
                found.append(
                    Slice(name, value, int(mine.sum()), coverage, nll, error(judged.error[mine]), doubt)
                )
    return found


def groups(column: "pd.Series[Any]") -> list[tuple[str, Array]]:
    """A name and the rows (as True) of each group of a column's values."""
    missing = column.isna().to_numpy()
    if kinds.is_numeric_dtype(column) and not kinds.is_bool_dtype(column) and column.nunique() > PARTS:
        values = column.to_numpy(np.float64, na_value=np.nan)
        edges = np.unique(np.quantile(values[~missing], np.linspace(0, 1, PARTS + 1)))
        place = np.searchsorted(edges[1:-1], values, side="left")
        found = [
            (f"{edges[i]:.4g} to {edges[i + 1]:.4g}", (place == i) & ~missing) for i in range(len(edges) - 1)
        ]
    else:
        words = column.astype(str).to_numpy()
        found = [(str(value), (words == value) & ~missing) for value in sorted(set(words[~missing]))]
    return found + ([("missing", missing)] if missing.any() else [])


def _at(level: float, levels: Array) -> int:
    return int(np.abs(levels - level).argmin())


def _places(confidence: Array) -> Array:
    return np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)


def _binned(confidence: Array, values: Array) -> Array:  # (rows, bins)
    out = np.zeros((len(values), BINS))
    out[np.arange(len(values)), _places(confidence)] = values
    return out


def _score(frame: pd.DataFrame, name: str) -> Array:
    return (frame["aleatoric"] + frame["epistemic"] if name == "total" else frame[name]).to_numpy(np.float64)


def _number(name: str, samples: Array) -> Number:
    low, high = np.quantile(samples[1:], [0.025, 0.975])
    return Number(name, float(samples[0]), float(low), float(high))


def _share(name: str, value: float, rows: int) -> Number:
    low, high = wilson(np.array(value), np.array(rows))
    return Number(name, float(value), float(low), float(high))


def wilson(share: Array, rows: Array) -> tuple[Array, Array]:
    """The shares p for which the one that was seen is within 1.96 standard errors sqrt(p (1 - p) / rows) (Wilson 1927)."""
    z = 1.959963984540054
    half = z * np.sqrt(share * (1 - share) / rows + (z / (2 * rows)) ** 2)
    centre = share + z**2 / (2 * rows)
    low, high = ((centre + side * half) / (1 + z**2 / rows) for side in (-1, 1))
    return np.maximum(low, 0), np.minimum(high, 1)  # rounding


def _aurocs(low: Array, high: Array, here: Bootstrap, there: Bootstrap) -> Array:  # (samples,)
    """For every sample the probability that one of `high` exceeds one of `low`; ties count half."""
    order = np.argsort(low, kind="stable")
    below, upto = np.searchsorted(low[order], high, "left"), np.searchsorted(low[order], high, "right")
    out = []
    for mine, theirs in zip(here.counts(), there.counts(), strict=False):
        sums = np.concatenate([[0.0], np.cumsum(mine[order])])
        out.append((theirs * (sums[below] + sums[upto])).sum() / (2 * here.rows * there.rows))
    return np.array(out)
