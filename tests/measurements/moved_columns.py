"""Predictions far from the data: real tables with one column shifted by 0.1 to 1,000 training ranges.

    python tests/measurements/moved_columns.py DATA [--rows 2000] [--method ml-cdn]

For every table: the largest predictive standard deviation relative to that of the target, the largest
distance of a mean beyond the training range in units of it, and the mean epistemic fraction of the
uncertainty at every distance. Classification: the epistemic fraction of the entropy only.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from compound import CompoundClassifier, CompoundRegressor

DISTANCES = (0.0, 0.1, 1.0, 10.0, 100.0, 1000.0)
CLASSES = {"wachurn", "hpc", "stackoverflow", "lending", "credit", "titanic", "penguins"}


def tables(folder: Path):
    for path in sorted(folder.glob("uci/*.npz")):
        with np.load(path) as file:
            x, y = file["data"][:, file["index_features"]], file["data"][:, file["index_target"]][:, 0]
        yield path.stem, pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])]), y
    for path in [*sorted(folder.glob("tables2/*.csv.gz")), folder / "tables/diamonds.csv.gz"]:
        table = pd.read_csv(path, low_memory=False)
        target = "price" if path.stem.startswith("diamonds") else table.columns[-1]
        yield path.name.split(".")[0], table.drop(columns=target), table[target].to_numpy()


def measure(name: str, x: pd.DataFrame, y: np.ndarray, rows: int, method: str) -> None:
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:rows], order[rows : rows + 100] if len(y) > rows + 100 else order[-60:]
    train = np.setdiff1d(train, test)
    is_classification = name in CLASSES or y.dtype == object
    estimator = CompoundClassifier if is_classification else CompoundRegressor
    model = estimator(method, random_state=0).fit(x.iloc[train], y[train])
    numeric = [
        column
        for column in x.columns
        if pd.api.types.is_numeric_dtype(x[column]) and x[column].iloc[train].nunique() > 1
    ]
    fractions: list[float] = []
    max_std = 0.0
    max_beyond = 0.0
    for distance in DISTANCES:
        epistemic = []
        for column in numeric:
            for sign in (-1, 1):
                shifted = x.iloc[test].copy()
                train_range = np.ptp(x[column].iloc[train].dropna())
                shifted[column] = shifted[column].astype(float) + sign * distance * train_range
                parts = model.decompose(shifted)
                epistemic.append(np.mean(parts.epistemic / parts.total))
                if not is_classification:
                    low, high = y[train].min(), y[train].max()
                    mean, std = model.predict(shifted, return_std=True)
                    max_std = max(max_std, float(std.max() / y[train].std()))
                    beyond = np.maximum(mean - high, low - mean).max() / (high - low)
                    max_beyond = max(max_beyond, float(beyond))
        fractions.append(float(np.mean(epistemic)))
    decreases = [round(b - a, 5) for a, b in zip(fractions[1:], fractions[2:], strict=False) if b < a]
    values = " ".join(f"{fraction:.4f}" for fraction in fractions)
    print(
        f"{name:28s} std {max_std:7.3f} beyond {max_beyond:6.3f} epistemic {values} decreases {decreases}",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--method", default="ml-cdn")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for name, x, y in tables(options.data):
        if options.only in name:
            measure(name, x, y, options.rows, options.method)
