"""False positive rate of `is_ood` on new in-distribution rows, with few training rows per column.

    python tests/measurements/false_alarms.py [--columns 5 20 60 200] [--ratios 1.5 3 8 20] [--tables 8]

For every distribution, number of columns and rows per column: the mean rate on 2,000 new rows at nominal 1%
and 5%, with its standard error, and whether the detector guarantees the nominal rate.
"""

import argparse
import itertools
import math

import numpy as np
import torch

from compound.ood.detector import OODDetector
from compound.random import named_generator

RATES = (0.01, 0.05)


def gaussian(rows: int, columns: int, law: np.random.Generator, draw: np.random.Generator) -> np.ndarray:
    return draw.standard_normal((rows, columns))


def heavy_columns(rows: int, columns: int, law: np.random.Generator, draw: np.random.Generator) -> np.ndarray:
    return draw.standard_t(3, (rows, columns))


def heavy_rows(rows: int, columns: int, law: np.random.Generator, draw: np.random.Generator) -> np.ndarray:
    return draw.standard_normal((rows, columns)) / np.sqrt(draw.chisquare(3, (rows, 1)) / 3)


def correlated(rows: int, columns: int, law: np.random.Generator, draw: np.random.Generator) -> np.ndarray:
    factors = max(1, columns // 5)
    loadings = law.standard_normal((factors, columns))
    return draw.standard_normal((rows, factors)) @ loadings + 0.3 * draw.standard_normal((rows, columns))


DISTRIBUTIONS = (gaussian, heavy_columns, heavy_rows, correlated)


def rates(distribution, columns: int, rows: int, seed: int) -> list[tuple[float, bool]]:
    """The false positive rate at each of RATES, and whether it is guaranteed."""
    draw = np.random.default_rng([seed, 2])
    x, new = (distribution(count, columns, np.random.default_rng([seed, 1]), draw) for count in (rows, 2000))
    train, test = (torch.from_numpy((table - x.mean(0)) / x.std(0)).float() for table in (x, new))
    detectors = [OODDetector.fit(train, rate, named_generator(seed, "alarms")) for rate in RATES]
    return [
        (float((detector.scores(test) > detector.threshold).float().mean()), detector.promised)
        for detector in detectors
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--columns", type=int, nargs="*", default=[5, 20, 60, 200])
    parser.add_argument("--ratios", type=float, nargs="*", default=[1.5, 3, 8, 20])
    parser.add_argument("--tables", type=int, default=8)
    options = parser.parse_args()
    for distribution, columns, ratio in itertools.product(DISTRIBUTIONS, options.columns, options.ratios):
        rows = math.ceil(ratio * columns)
        results = [rates(distribution, columns, rows, seed) for seed in range(options.tables)]
        texts = []
        for level, rate in enumerate(RATES):
            values = np.array([table[level][0] for table in results])
            guarantee = "guaranteed" if results[0][level][1] else "not guaranteed"
            error = values.std() / math.sqrt(len(values))
            texts.append(f"{rate:.0%}: {values.mean():.2%} ± {error:.2%}, {guarantee}")
        print(f"{distribution.__name__:14s} {rows:5d} x {columns:3d}  {'; '.join(texts)}", flush=True)
