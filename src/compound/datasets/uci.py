"""The nine UCI regression tables with the standard splits (Hernández-Lobato and Adams, 2015)."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from compound.datasets.catalogue import require_file

SPLITS = {  # number of splits of each table
    "bostonHousing": 20,
    "concrete": 20,
    "energy": 20,
    "kin8nm": 20,
    "naval-propulsion-plant": 20,
    "power-plant": 20,
    "protein-tertiary-structure": 5,
    "wine-quality-red": 20,
    "yacht": 20,
}


class Split(NamedTuple):
    """Training and test rows, standardised by mean and standard deviation of the training rows."""

    x: Tensor  # (rows, features)
    y: Tensor  # (rows, 1)
    x_test: Tensor
    y_test: Tensor
    scale: float  # standard deviation of the target: NLL + log(scale) and scale * RMSE are in its unit


def load(name: str, split: int, data_dir: Path | None = None) -> Split:
    """Load split number `split` (from 0) of the table `name`."""
    if name not in SPLITS:
        raise ValueError(f"UCI table is {name!r}: choose one of {', '.join(SPLITS)}")
    if not 0 <= split < SPLITS[name]:
        raise ValueError(f"split is {split}: {name} has 0..{SPLITS[name] - 1}")
    with np.load(require_file(f"uci/{name}.npz", data_dir), allow_pickle=False) as file:
        rows = file["data"]
        x, y = rows[:, file["index_features"]], rows[:, file["index_target"]][:, :1]
        train, test = file[f"index_train_{split}"], file[f"index_test_{split}"]
    (x_train, x_test), _ = _standardise(x, train, test)
    (y_train, y_test), scale = _standardise(y, train, test)
    return Split(x_train, y_train, x_test, y_test, float(scale[0]))


def _standardise(values: Any, train: Any, test: Any) -> tuple[tuple[Tensor, Tensor], Any]:
    """Training and test rows of `values` (rows, columns), standardised, and the scales (columns,).

    `train` and `test` are row indices.
    """
    mean, scale = values[train].mean(0), values[train].std(0)
    scale = np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)  # a constant column becomes 0
    train_rows, test_rows = (torch.from_numpy((values[i] - mean) / scale).float() for i in (train, test))
    return (train_rows, test_rows), scale
