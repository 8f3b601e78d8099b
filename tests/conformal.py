"""Coverage of 90% intervals and sets over synthetic tables with rare classes and weights: `make coverage`.

Rows of the population have weight w(x) or w(class); the probability that a row is in the table falls with its
weight, as in a survey, and the weight is known. Test rows come from the population itself, with classes
missing from the table. The out-of-distribution detector is not fitted: it takes most of the time, and no part
in coverage.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from compound import CompoundClassifier, CompoundRegressor, Method
from compound.estimators import base
from compound.estimators.base import Estimator
from compound.ood import CombinedDetector, Distance

TEST = 500  # test rows per table
TABLES = 200
MAP = Method("map", widths=(20,))
CDN = Method("ml-cdn", widths=(20,), hyper=(10,), far=0.0)  # five members


class Measurement(NamedTuple):
    coverage: float  # fraction of test rows inside
    size: float  # mean width, or mean number of classes
    rows: float  # effective calibration rows


class Rows(NamedTuple):
    x: np.ndarray  # (rows, 4)
    y: np.ndarray  # (rows,)
    weight: np.ndarray  # (rows,) how many rows of the population a row of the table represents


@dataclass(frozen=True)
class Classes:
    """Three frequent classes, and rare ones of `each` rows on average, a fraction `rare` of all rows."""

    rows: int
    rare: float = 0.0
    each: float = 6.0
    skew: float = 1.0  # weights of frequent classes over those of rare ones (or of class 0 over the others)
    method: Method = MAP
    steps: int = 150
    early: bool = True

    def population(self, random: np.random.Generator) -> Callable[[int], Rows]:
        n_rare = round(self.rows * self.rare / self.each)
        proportions = np.r_[np.full(3, (1 - self.rare) / 3), np.full(n_rare, self.rare / max(n_rare, 1))]
        centres = 1.5 * random.normal(size=(3 + n_rare, 4))

        def draw(count: int) -> Rows:
            y = random.choice(len(proportions), count, p=proportions)
            weight = np.where(y < 3 if n_rare else y == 0, self.skew, 1.0)
            return Rows(centres[y] + random.normal(size=(count, 4)), y, weight)

        return draw

    def estimator(self, seed: int) -> CompoundClassifier:
        fast = {"max_epochs": self.steps, "batch_size": self.rows, "lr": 1e-2}
        return CompoundClassifier(self.method, **fast, random_state=seed, early_stopping=self.early)

    def evaluate(self, model: CompoundClassifier, test: Rows) -> tuple[float, float]:
        sets = model.predict_set(test.x)
        index = np.searchsorted(model.classes_, test.y).clip(max=len(model.classes_) - 1)
        is_known = model.classes_[index] == test.y  # a class missing from the table is in no set
        return float((is_known & sets[np.arange(len(index)), index]).mean()), float(sets.sum(1).mean())


@dataclass(frozen=True)
class Targets:
    """A curve with noise that grows with the weight."""

    rows: int
    skew: float = 0.0  # weights are exp(skew · x0)
    method: Method = MAP
    steps: int = 150
    early: bool = True

    def population(self, random: np.random.Generator) -> Callable[[int], Rows]:
        a, b = random.normal(size=2)

        def draw(count: int) -> Rows:
            x = random.normal(size=(count, 4))
            y = (
                np.sin(2 * x[:, 1])
                + a * x[:, 0]
                + b * x[:, 2] * x[:, 3]
                + np.exp(0.5 * x[:, 0]) * random.normal(size=count)
            )
            return Rows(x, y, np.exp(self.skew * x[:, 0]).clip(0.1, 10))

        return draw

    def estimator(self, seed: int) -> CompoundRegressor:
        fast = {"max_epochs": self.steps, "batch_size": self.rows, "lr": 1e-2}
        return CompoundRegressor(self.method, **fast, random_state=seed, early_stopping=self.early)

    def evaluate(self, model: CompoundRegressor, test: Rows) -> tuple[float, float]:
        low, high = model.predict_interval(test.x)
        return float(((low <= test.y) & (test.y <= high)).mean()), float((high - low).mean())


def survey(draw: Callable[[int], Rows], rows: int, random: np.random.Generator) -> Rows:
    """Rows of the population, each with a probability proportional to 1 / weight."""
    parts: list[Rows] = []
    while sum(len(part.y) for part in parts) < rows:
        candidates = draw(4 * rows)
        accepted = random.random(len(candidates.y)) < candidates.weight.min() / candidates.weight
        parts.append(Rows(*(column[accepted] for column in candidates)))
    return Rows(*(np.concatenate(columns)[:rows] for columns in zip(*parts, strict=True)))


def measure(kind: Classes | Targets, tables: int, weighted: bool = True, first: int = 0) -> list[Measurement]:
    """The coverage of a fit on each of `tables` tables; not `weighted`: the fit does not get the weights."""
    out = []
    for seed in range(first, first + tables):
        random = np.random.default_rng(seed)
        draw = kind.population(random)
        table, test = survey(draw, kind.rows, random), draw(TEST)
        model: Estimator = kind.estimator(seed).fit(
            table.x, table.y, sample_weight=table.weight if weighted else None
        )
        out.append(Measurement(*kind.evaluate(model, test), model.n_calibration_))  # type: ignore[arg-type]
    return out


def skip_detector(estimator: Estimator, x: torch.Tensor, trained_on: torch.Tensor) -> CombinedDetector:
    """Replaces `fit_detector`, which takes long."""
    return CombinedDetector(Distance(x.shape[1]))


CASES: dict[str, Classes | Targets] = {
    "sets": Classes(600),
    "sets, 40% rare": Classes(600, rare=0.4),
    "sets, 40% rare, 3 rows each": Classes(600, rare=0.4, each=3),
    "sets, 15% in classes of 1.5 rows": Classes(600, rare=0.15, each=1.5),
    "sets, 40% rare, weights": Classes(900, rare=0.4, skew=3.0),
    "sets, weights": Classes(800, skew=4.0),
    "sets, 40% rare, no early stopping": Classes(600, rare=0.4, early=False),
    "sets, 40% rare, ml-cdn": Classes(600, rare=0.4, method=CDN),
    "intervals": Targets(600),
    "intervals, weights": Targets(1000, skew=0.7),
    "intervals, no early stopping": Targets(600, early=False),
    "intervals, 5 members": Targets(150, method=CDN),
    "intervals, 5 members, weights": Targets(300, skew=0.7, method=CDN),
    "few rows: sets, 40% rare, 50 rows": Classes(50, rare=0.4),
    "few rows: sets, 40% rare, 200 rows": Classes(200, rare=0.4),
    "few rows: intervals, 20 rows": Targets(20),
    "few rows: intervals, 60 rows": Targets(60),
    "few rows: intervals, 60 rows, weights": Targets(60, skew=0.7),
    "few rows: intervals, 150 rows": Targets(150),
    "few rows: intervals, 5 members, 20 rows": Targets(20, method=CDN),
    "few rows: intervals, 5 rows": Targets(5),
    "few rows: intervals, 9 rows": Targets(9),
    "few rows: sets, 9 rows": Classes(9),
}


def main() -> None:
    base.fit_detector = skip_detector
    arguments = sys.argv[1:]
    tables = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else TABLES
    print(f"{'':40} coverage  (error)  rows  size  seconds")
    for name, kind in CASES.items():
        if not arguments or any(argument in name for argument in arguments):
            begin = time.process_time()
            measurements = np.array(measure(kind, tables))
            coverage, size, rows = measurements.mean(0)
            error, seconds = measurements[:, 0].std() / np.sqrt(tables), time.process_time() - begin
            print(
                f"{name:40} {coverage:.3f}     {error:.3f}  {rows:5.1f}  {size:5.2f}  {seconds:5.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
