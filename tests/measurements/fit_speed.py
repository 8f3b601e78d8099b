"""Processor time of fits of tables: this version beside another checkout and CatBoost, interleaved.

    python tests/measurements/fit_speed.py --other ../compound-e2c5ea1 [--tables computers] [--out FILE]

Every fit is a process of its own, on one thread, with the defaults; imports that the fit itself makes count.
CatBoost has 1,000 trees at most (RMSEWithUncertainty or its default classifier) and stops early by a tenth of
the rows. Prints a line of JSON per round and table, and appends it to `--out`.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parents[2]
SIDES = ("other", "this", "catboost")
SMALL = (
    "computers",
    "txhousing",
    "loans",
    "deliveries",
    "hpc",
    "credit",
    "stackoverflow",
    "wachurn",
    "lending",
)


def work(side: str, path: Path) -> None:
    """Fit once and print the processor time in seconds."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    x, y, regression = pickle.loads(path.read_bytes())
    if side == "catboost":
        from sklearn.model_selection import train_test_split

        from compound.experiments.tables.baselines import Rows, catboost_classifier, catboost_regressor

        start = time.process_time()
        x, held_x, y, held_y = train_test_split(x, y, test_size=0.1, random_state=0)
        fit = catboost_regressor if regression else catboost_classifier
        fit(Rows(x, y), Rows(held_x, held_y), 0)
    else:
        from compound import CompoundClassifier, CompoundRegressor

        start = time.process_time()
        (CompoundRegressor if regression else CompoundClassifier)(random_state=0).fit(x, y)
    print(time.process_time() - start)


def seconds(side: str, path: Path, other: Path) -> float:
    """Processor time of a fit in a new process."""
    source = (other if side == "other" else HERE) / "src"
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    command = [sys.executable, "-P", __file__, "--worker", side, str(path)]
    environment = {**os.environ, **threads, "PYTHONPATH": str(source)}
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main(options: argparse.Namespace) -> None:
    from compound.datasets import tables

    with TemporaryDirectory() as folder:
        for round_number in range(options.rounds):
            for name in options.tables:
                split = tables.load(name, round_number)
                path = Path(folder) / f"{name}.pickle"
                path.write_bytes(pickle.dumps((split.x, split.y, tables.TABLES[name].kind == "regression")))
                spent = {side: round(seconds(side, path, options.other), 2) for side in SIDES}
                line = json.dumps({"table": name, "round": round_number, "rows": len(split.y), **spent})
                print(line, flush=True)
                if options.out:
                    with options.out.open("a") as file:
                        file.write(line + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", nargs=2)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--tables", nargs="*", default=list(SMALL))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker[0], Path(arguments.worker[1]))
    else:
        main(arguments)
