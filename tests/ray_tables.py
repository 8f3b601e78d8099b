"""A small model and a folder of Parquet files for it: python tests/ray_tables.py FOLDER FILES ROWS"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from compound import CompoundRegressor
from compound.estimators.base import Estimator


def rows(count: int, seed: int) -> pd.DataFrame:
    """Rows with two numbers, a category and a column that no model reads."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "size": rng.normal(size=count),
            "age": rng.integers(0, 50, count),
            "kind": rng.choice(["flat", "house"], count),
            "id": [f"{seed}-{i}" for i in range(count)],
        }
    )


def fitted() -> Estimator:
    table = rows(300, 0)
    y = table["size"] + 0.1 * table["age"] + (table["kind"] == "house")
    estimator = CompoundRegressor(max_epochs=2, random_state=0).fit(table.drop(columns="id"), y)
    estimator.target_name_ = "price"  # type: ignore[attr-defined]
    return estimator


def write(folder: Path, files: int, count: int, group: int = 100_000) -> list[Path]:
    folder.mkdir(parents=True)
    paths = [folder / f"part-{i}.parquet" for i in range(files)]
    for i, path in enumerate(paths):
        rows(count, i + 1).to_parquet(path, row_group_size=group)
    return paths


if __name__ == "__main__":
    home, files, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    fitted().save(home / "model")
    write(home / "data", files, count)
