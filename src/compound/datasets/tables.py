"""Fourteen real tables of mixed columns, eight with a number to predict and six with a class."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from compound.datasets.catalogue import require_file

Array = np.ndarray[Any, Any]
TEST_FRACTION = 0.2
FIRST_SEED = 1000  # split 0 has this seed: another stream of random numbers than the models'
ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
    "income",
)


class Table(NamedTuple):
    """What is known of a table without its file."""

    kind: Literal["regression", "classification"]
    rows: int
    classes: int = 1  # 1 for regression


TABLES = {  # by task, small ones first
    "computers": Table("regression", 6259),
    "txhousing": Table("regression", 7986),
    "loans": Table("regression", 10_000),
    "deliveries": Table("regression", 10_012),
    "hotel": Table("regression", 15_402),
    "storms": Table("regression", 19_537),
    "flights": Table("regression", 30_000),
    "diamonds": Table("regression", 53_940),
    "hpc": Table("classification", 4331, 4),
    "credit": Table("classification", 4454, 2),
    "stackoverflow": Table("classification", 5594, 2),
    "wachurn": Table("classification", 7043, 2),
    "lending": Table("classification", 9857, 2),
    "adult": Table("classification", 48_842, 2),
}
TARGETS = {"diamonds": "price"}  # the others have theirs in the last column


class Split(NamedTuple):
    """Training and test rows: columns as they are in the file, numbers or text, with missing values."""

    x: pd.DataFrame
    y: Array  # (rows,) of numbers; or labels 0, 1, ..., in the order of the sorted class names
    x_test: pd.DataFrame
    y_test: Array


def load(name: str, split: int, data_dir: Path | None = None, max_rows: int | None = None) -> Split:
    """Load split number `split` (from 0) of the table `name`, or of a random sample of `max_rows` rows."""
    if name not in TABLES:
        raise ValueError(f"table is {name!r}: choose one of {', '.join(TABLES)}")
    if split < 0:
        raise ValueError(f"split is {split}: give 0, 1, 2, ...")
    table = _read_adult(data_dir) if name == "adult" else _read_csv(name, data_dir)
    y = table.pop(TARGETS.get(name, table.columns[-1])).to_numpy()
    seed = FIRST_SEED + split
    if max_rows is not None and len(table) > max_rows:
        rows = np.sort(np.random.default_rng(seed).permutation(len(table))[:max_rows])
        table, y = table.iloc[rows].reset_index(drop=True), y[rows]
    return split_rows(table, y, TABLES[name].kind == "classification", seed)


def split_rows(x: pd.DataFrame, y: Array, classes: bool, seed: int) -> Split:
    """Split off a random fifth of the rows for testing, stratified if y (rows,) holds classes."""
    y = np.unique(y, return_inverse=True)[1] if classes else y.astype(np.float64)
    x_train, x_test, y_train, y_test = train_test_split(
        x, y, test_size=TEST_FRACTION, random_state=seed, stratify=y if classes else None
    )
    return Split(x_train.reset_index(drop=True), y_train, x_test.reset_index(drop=True), y_test)


def _read_csv(name: str, data_dir: Path | None) -> pd.DataFrame:
    """A table that is one file, its target included."""
    folder = "tables" if name == "diamonds" else "tables2"
    return pd.read_csv(require_file(f"{folder}/{name}.csv.gz", data_dir))


def _read_adult(data_dir: Path | None) -> pd.DataFrame:
    """Both files of Adult, one after the other; the labels of the second end with a dot, removed here."""
    parts = [
        pd.read_csv(
            require_file(f"tables/adult.{part}.gz", data_dir),
            names=list(ADULT_COLUMNS),
            skiprows=1 if part == "test" else 0,  # a comment
            skipinitialspace=True,
            na_values="?",
        )
        for part in ("data", "test")
    ]
    table = pd.concat(parts, ignore_index=True)
    table["income"] = table["income"].str.rstrip(".")
    return table
