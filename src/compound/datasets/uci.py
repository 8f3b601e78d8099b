"""The nine UCI regression sets with the splits everybody uses (Hernández-Lobato and Adams, 2015)."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from compound.datasets.catalogue import find

SPLITS = {
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
    """Training and test rows, in standard units of the training rows."""

    x: Tensor  # (rows, features)
    y: Tensor  # (rows, 1)
    x_test: Tensor
    y_test: Tensor
    scale: float  # standard deviation of the target: NLL + log scale and scale * RMSE are in its own unit


def load(name: str, split: int, data_dir: Path | None = None) -> Split:
    """One split of one set."""
    if name not in SPLITS:
        raise ValueError(f"UCI set is {name!r}: choose one of {', '.join(SPLITS)}")
    if not 0 <= split < SPLITS[name]:
        raise ValueError(f"split is {split}: {name} has 0..{SPLITS[name] - 1}")
    with np.load(find(f"uci/{name}.npz", data_dir), allow_pickle=False) as file:
        rows = file["data"]
        x, y = rows[:, file["index_features"]], rows[:, file["index_target"]][:, :1]
        train, test = file[f"index_train_{split}"], file[f"index_test_{split}"]
    (x_train, x_test), _ = _standard(x, train, test)
    (y_train, y_test), scale = _standard(y, train, test)
    return Split(x_train, y_train, x_test, y_test, float(scale[0]))


def _standard(values: Any, train: Any, test: Any) -> tuple[tuple[Tensor, Tensor], Any]:
    mean, scale = values[train].mean(0), values[train].std(0)
    scale = np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)  # a constant column stays 0
    first, second = (torch.from_numpy((values[rows] - mean) / scale).float() for rows in (train, test))
    return (first, second), scale
