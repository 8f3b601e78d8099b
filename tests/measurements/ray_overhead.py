"""What Ray costs, on the same two cores: 20 short runs against --jobs 2, predictions against one process.

    python tests/measurements/ray_overhead.py [ROUNDS [grid|predictions]]

Rounds are interleaved. Start-up is left out: a grid of two runs before each grid, and predictions for a tenth
of the rows before those for all, are subtracted. Two numbers
each: the wall time, and the processor time of this process and all its descendants.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import grids
import ray_tables

from compound.estimators.base import Estimator
from compound.ray.cluster import connected
from compound.ray.grid import RayExecutor
from compound.ray.predict import plan_files, predict_files
from compound.tables.streaming import predict_file

RUNS, STEPS = 20, 300
FILES, ROWS = 4, 30_000


def tree_seconds() -> float:
    """Processor seconds of this process and its descendants, of those that ended as far as waited for."""
    parents, used = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            used[int(path.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return sum(seconds for pid, seconds in used.items() if is_ours(pid, parents))


def is_ours(pid: int, parents: dict[int, int]) -> bool:
    while pid not in (0, os.getpid()):
        pid = parents.get(pid, 0)
    return pid != 0


def timed(work: Callable[[], None]) -> tuple[float, float]:
    wall, cpu = time.monotonic(), tree_seconds()
    work()
    return time.monotonic() - wall, tree_seconds() - cpu


def grid(folder: Path, count: int, executor: RayExecutor | None = None) -> None:
    done = grids.run_grid(grids.grid(count, STEPS), grids.work_of, folder, None, 2, executor)
    assert len(done.results) == count


def net_time(folder: Path, executor: RayExecutor | None = None) -> list[float]:
    """Wall and processor time of RUNS runs, without that of two."""
    few = timed(partial(grid, folder / "few", 2, executor))
    many = timed(partial(grid, folder / "many", RUNS, executor))
    return [b - a for a, b in zip(few, many, strict=True)]


def predict_here(estimator: Estimator, sources: list[Path], out: Path) -> None:
    out.mkdir()
    for source in sources:
        predict_file(estimator, source, out / source.name, 0.9, False, lambda rows: None)


def predict_there(ray: Any, estimator: Estimator, source: Path, out: Path) -> None:
    predict_files(ray, estimator, plan_files(estimator, str(source), str(out), 0.9, False), lambda rows: None)


def show(name: str, one: list[float], other: list[float], ratios: list[list[float]]) -> None:
    ratios.append([b / a for a, b in zip(one, other, strict=True)])
    texts = [", ".join(f"{value:.2f}" for value in values) for values in (one, other, ratios[-1])]
    medians = ", ".join(f"{statistics.median(column):.2f}" for column in zip(*ratios, strict=True))
    print(f"{name}: local {texts[0]}; ray {texts[1]} s; ray / local {texts[2]}; median {medians}", flush=True)


def main() -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # of Ray's workers
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    parts = sys.argv[2:] or ["grid", "predictions"]
    with tempfile.TemporaryDirectory() as name, connected(cores=2) as ray:
        folder = Path(name)
        if "grid" in parts:
            compare_grids(ray, folder, rounds)
        if "predictions" in parts:
            compare_predictions(ray, folder, rounds)


def compare_grids(ray: Any, folder: Path, rounds: int) -> None:
    executor = RayExecutor(ray, grids.memory_of)
    grid(folder / "warm", 2, executor)
    ratios: list[list[float]] = []
    for i in range(rounds):
        show("grid", net_time(folder / f"local {i}"), net_time(folder / f"ray {i}", executor), ratios)


def compare_predictions(ray: Any, folder: Path, rounds: int) -> None:
    estimator = ray_tables.fitted()
    tables = [folder / "few", folder / "all"]
    for table, rows in zip(tables, (ROWS // 10, ROWS), strict=True):
        ray_tables.write(table, FILES, rows)
    predict_here(estimator, sorted(tables[0].iterdir()), folder / "warm")  # compiles
    ratios: list[list[float]] = []
    for i in range(rounds):
        here, there = [], []
        for table in tables:
            sources = sorted(table.iterdir())
            here.append(timed(partial(predict_here, estimator, sources, folder / f"here {table.name} {i}")))
            there.append(
                timed(partial(predict_there, ray, estimator, table, folder / f"there {table.name} {i}"))
            )
        net = [[b - a for a, b in zip(*times, strict=True)] for times in (here, there)]
        show(f"{FILES * (ROWS - ROWS // 10):,} predictions", *net, ratios)


if __name__ == "__main__":
    main()
