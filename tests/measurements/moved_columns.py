"""Nothing explodes: test rows of real tables with one column at a time moved by 0.1 to 1,000 training ranges.

    python tests/measurements/moved_columns.py DATA [--rows 2000] [--method ml-cdn]

For every table: the largest standard deviation over the target's, the farthest mean beyond the training range in widths of it, and the
mean epistemic share at every distance. Classes: the epistemic share of the entropy alone.
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
    classes = name in CLASSES or y.dtype == object
    model = (CompoundClassifier if classes else CompoundRegressor)(method, random_state=0).fit(
        x.iloc[train], y[train]
    )
    numeric = [
        column
        for column in x.columns
        if pd.api.types.is_numeric_dtype(x[column]) and x[column].iloc[train].nunique() > 1
    ]
    shares, widest, farthest = [], 0.0, 0.0
    for distance in DISTANCES:
        share = []
        for column in numeric:
            for sign in (-1, 1):
                moved, known = x.iloc[test].copy(), x[column].iloc[train]
                moved[column] = moved[column].astype(float) + sign * distance * (known.max() - known.min())
                parts = model.decompose(moved)
                share.append(np.mean(parts.epistemic / parts.total))
                if not classes:
                    low, high = y[train].min(), y[train].max()
                    mean, std = model.predict(moved, return_std=True)
                    widest = max(widest, float(std.max() / y[train].std()))
                    farthest = max(farthest, float(np.maximum(mean - high, low - mean).max() / (high - low)))
        shares.append(float(np.mean(share)))
    falls = [round(b - a, 5) for a, b in zip(shares[1:], shares[2:], strict=False) if b < a]
    print(
        f"{name:28s} std {widest:7.3f} beyond {farthest:6.3f} share {' '.join(f'{s:.4f}' for s in shares)} falls {falls}",
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
