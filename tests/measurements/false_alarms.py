"""How often ordinary new rows are flagged as out-of-distribution, where rows are few per column.

    python tests/measurements/false_alarms.py [--columns 5 20 60 200] [--ratios 1.5 3 8 20] [--tables 8]

For every kind of table, number of columns and rows per column: the mean rate on 2,000 new rows at 1% and 5% with its standard error,
and whether the threshold promises it.
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


KINDS = (gaussian, heavy_columns, heavy_rows, correlated)


def rates(kind, columns: int, rows: int, seed: int) -> list[tuple[float, bool]]:
    draw = np.random.default_rng([seed, 2])
    x, new = (kind(count, columns, np.random.default_rng([seed, 1]), draw) for count in (rows, 2000))
    known, fresh = (torch.from_numpy((table - x.mean(0)) / x.std(0)).float() for table in (x, new))
    found = [OODDetector.fit(known, rate, named_generator(seed, "alarms")) for rate in RATES]
    return [(float((one.scores(fresh) > one.threshold).float().mean()), one.promised) for one in found]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--columns", type=int, nargs="*", default=[5, 20, 60, 200])
    parser.add_argument("--ratios", type=float, nargs="*", default=[1.5, 3, 8, 20])
    parser.add_argument("--tables", type=int, default=8)
    options = parser.parse_args()
    for kind, columns, ratio in itertools.product(KINDS, options.columns, options.ratios):
        rows = math.ceil(ratio * columns)
        found = [rates(kind, columns, rows, seed) for seed in range(options.tables)]
        words = []
        for level, rate in enumerate(RATES):
            values = np.array([table[level][0] for table in found])
            promise = "promised" if found[0][level][1] else "not promised"
            words.append(
                f"{rate:.0%}: {values.mean():.2%} ± {values.std() / math.sqrt(len(values)):.2%}, {promise}"
            )
        print(f"{kind.__name__:14s} {rows:5d} x {columns:3d}  {'; '.join(words)}", flush=True)
