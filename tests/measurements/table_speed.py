"""Processor time of predictions for tables: this version beside another checkout and CatBoost, interleaved.

    python tests/measurements/table_speed.py --other ../compound-e2c5ea1 [--tables computers wachurn]

Each predicts in a process of its own, on one thread, with a model that it has fitted: all test rows,
repeated to `--rows`. The estimators give mean, std, 90% interval, shares of uncertainty and distance
together, or class probabilities and sets; CatBoost gives mean and variance (RMSEWithUncertainty) or
probabilities, stopped early. Ratios are medians over rounds. Models are kept in `--models`.
"""

import argparse
import os
import pickle
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parents[2]
EPOCHS = 15  # of the estimators: predictions take as long with other weights
SIDES = ("this", "other", "catboost")


def estimator(split: Any, regression: bool, rows: Any, model: Path) -> Callable[[], Any]:
    """The function that predicts `rows`, by the version of the package on the path."""
    from compound import CompoundClassifier, CompoundRegressor

    try:
        from compound.estimators.row_predictions import predict_frame
    except ImportError:  # before the room was renamed
        from compound.estimators.rows import ask as predict_frame
    kind = CompoundRegressor if regression else CompoundClassifier
    if not model.exists():
        kind(max_epochs=EPOCHS, random_state=0).fit(split.x, split.y).save(model)
    fitted = kind.load(model)
    return lambda: predict_frame(fitted, rows)


def catboost(split: Any, regression: bool, rows: Any, model: Path) -> Callable[[], Any]:
    """The function that predicts `rows` by CatBoost, as in the tables experiment."""
    from sklearn.model_selection import train_test_split

    from compound.experiments.tables.baselines import Rows, catboost_classifier, catboost_regressor

    x, held_x, y, held_y = train_test_split(split.x, split.y, test_size=0.1, random_state=0)
    fit = catboost_regressor if regression else catboost_classifier
    predict = fit(Rows(x, y), Rows(held_x, held_y), 0)
    return lambda: predict(rows)


def work(side: str, folder: Path, name: str, count: int) -> None:
    """Fit, or load, and print the processor time of one prediction for every line of the standard input."""
    import pandas as pd
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parts, regression = pickle.loads((folder / f"{name}.pickle").read_bytes())
    split = SimpleNamespace(**parts)
    repeats = -(-count // len(split.x_test))
    rows = pd.concat([split.x_test] * repeats, ignore_index=True)[:count]
    predict = (catboost if side == "catboost" else estimator)(split, regression, rows, folder / side / name)
    predict()
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.process_time()
        predict()
        print(time.process_time() - start, flush=True)


def measure(name: str, folder: Path, other: Path, count: int, rounds: int) -> None:
    """Print the ratios of one table."""
    from compound.datasets import tables

    regression = tables.TABLES[name].kind == "regression"
    pickled = pickle.dumps((tables.load(name, 0)._asdict(), regression))
    (folder / f"{name}.pickle").write_bytes(pickled)
    workers = {}
    for side in SIDES:
        (folder / side).mkdir(exist_ok=True)
        source = (other if side == "other" else HERE) / "src"
        command = [sys.executable, "-P", __file__, "--worker", side, name, str(count), "--models", folder]
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        workers[side] = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert workers[side].stdout.readline() == "ready\n"
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side, worker in workers.items():
            worker.stdin.write("\n")
            worker.stdin.flush()
            seconds[side].append(float(worker.stdout.readline()))
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    faster, dearer = (
        statistics.median(a / b for a, b in zip(*pair, strict=True))
        for pair in ((seconds["other"], seconds["this"]), (seconds["this"], seconds["catboost"]))
    )
    micro = [f"{side} {1e6 * statistics.median(values) / count:.1f}" for side, values in seconds.items()]
    print(
        f"{name}: {faster:.1f} times faster than other, {dearer:.1f} times CatBoost"
        f" ({', '.join(micro)} µs/row)",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", nargs=3)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--tables", nargs="*", default=["computers", "wachurn"])
    parser.add_argument("--models", type=Path, default=Path("table-speed-models"))
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    options.models.mkdir(exist_ok=True, parents=True)
    if options.worker:
        work(options.worker[0], options.models, options.worker[1], int(options.worker[2]))
    else:
        for name in options.tables:
            measure(name, options.models, options.other, options.rows, options.rounds)
