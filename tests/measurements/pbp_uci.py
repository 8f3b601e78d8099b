"""Probabilistic backpropagation on UCI tables as published: 50 hidden units, 40 passes over all rows.

    python tests/measurements/pbp_uci.py bostonHousing concrete

Prints a table: mean and standard error of NLL and RMSE over the standard splits, in units of the target,
beside the published numbers (Hernández-Lobato and Adams 2015) and the difference in standard errors of both.
"""

import math
import statistics
import sys
from dataclasses import replace

import torch

from compound import Method, build, fit, make_dataset, metrics
from compound.datasets import uci
from compound.experiments.published import uci_results
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.types import Task

PASSES = 40
TASK = Task("regression", 1)
NAMES = {"bostonHousing": "boston", "wine-quality-red": "wine", "power-plant": "power"}


def mean_error(values: list[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def run(table: str, split: int) -> tuple[float, float]:
    """NLL and RMSE of one split."""
    data = uci.load(table, split)
    rows = len(data.x)
    batch = 10  # rows are visited one by one: batches only set how often Python is asked
    settings = TrainConfig(steps=PASSES * rows // batch, batch_size=batch, n_evals=0, ema_decay=0.0)
    model = build(Method("pbp", widths=(50,)), data.x.shape[1], TASK, split)
    fit(model, make_dataset(data.x, data.y, TASK), replace(settings, patience=0), split)
    p = model.predict(data.x_test, named_generator(split))
    return metrics.nll(p, data.y_test) + math.log(data.scale), data.scale * metrics.rmse(p, data.y_test)


def main() -> None:
    torch.set_num_threads(1)
    published = uci_results()["PBP"]
    print("| table | NLL | published | difference | RMSE | published | difference |\n|" + " --- |" * 7)
    for table in sys.argv[1:] or ("yacht", "bostonHousing", "energy", "concrete", "wine-quality-red"):
        nll, rmse = zip(*(run(table, split) for split in range(uci.SPLITS[table])), strict=True)
        cells = [table]
        for name, values in (("nll", list(nll)), ("rmse", list(rmse))):
            ours, error = mean_error(values)
            theirs, their_error = published[name]["values"][NAMES.get(table, table)]
            distance = (ours - theirs) / math.hypot(error, their_error)
            cells += [f"{ours:.3f} ± {error:.3f}", f"{theirs:.2f} ± {their_error:.2f}", f"{distance:+.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
