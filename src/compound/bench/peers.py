"""Cost beside other libraries: fit, predict, memory at growing sizes, each a process of its own, one thread.

compound bench --peers --json peers.json

Every point is a method at a size. The methods of a size follow each other, so that drifts of the machine
strike all alike. A point that is in the file is not measured again: an interrupted run is resumed by the same
command. Times are processor times, memory is the largest resident size of the process less that before the
fit.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from compound.bench.against import ENVIRONMENT
from compound.io.atomic import write_atomic

COLUMNS = 20
ROWS = (1_000, 10_000, 100_000, 1_000_000)
QUICK_ROWS = (1_000,)
PREDICTED = 4096  # rows of one prediction
HELD_OUT = 0.1
MODULES = {  # what a method needs
    "ml-cdn": "torch",
    "catboost": "catboost",
    "lightgbm": "lightgbm",
    "ngboost": "ngboost",
    "bayesian-torch": "bayesian_torch",
}
LARGEST = {"ngboost": 10_000}  # rows; beyond, a fit takes more than an hour
TIMEOUT = 7200  # seconds of a point


class Point(NamedTuple):
    """A method at a size."""

    curve: str  # what grows: rows, columns, draws or members
    method: str
    size: int

    @property
    def name(self) -> str:
        return f"{self.curve} {self.size} {self.method}"


def points(quick: bool) -> list[Point]:
    """All points in the order in which they are measured: small ones first, methods side by side."""
    rows = QUICK_ROWS if quick else ROWS
    out = [Point("rows", name, n) for n in rows for name in MODULES if n <= LARGEST.get(name, n)]
    if quick:
        return out
    peers = ("ml-cdn", "catboost", "lightgbm")
    out += [Point("columns", name, n) for n in (5, 20, 80) for name in peers]
    out += [Point("draws", "ml-cdn", n) for n in (20, 80, 320)]
    out += [Point("members", "ml-cdn", n) for n in (1, 2, 5, 10)]
    return sorted(out, key=lambda point: point.curve == "rows" and point.size > 10_000)


def main(json_path: Path | None, quick: bool) -> list[dict[str, Any]]:
    """Measure what is missing in `json_path` and write it, with a page of curves beside it."""
    from compound.bench.peers_page import write_page
    from compound.experiments.provenance import provenance

    path = json_path or Path("peers.json")
    results = read_results(path)
    console = Console()
    for point in points(quick):
        if point.name in {result["name"] for result in results}:
            continue
        if find_spec(MODULES[point.method]) is None:
            outcome: dict[str, Any] = {"reason": f"{MODULES[point.method]} is not installed"}
        else:
            outcome = measure(point)
        results.append({"name": point.name, **point._asdict(), **outcome, **provenance()})
        write_atomic(path, (json.dumps(results, indent=1) + "\n").encode())
        console.print(f"{point.name}: {outcome}")
    write_page(results, path.with_suffix(".html"))
    console.print(f"page: {path.with_suffix('.html')}")
    return results


def read_results(path: Path) -> list[dict[str, Any]]:
    """The results of an earlier run; none without the file, ValueError if it is of another kind."""
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text())
        results = [dict(entry) for entry in content]
        assert all({"name", "curve", "method", "size"} <= entry.keys() for entry in results)
    except (ValueError, TypeError, AssertionError) as error:
        raise ValueError(f"{path} holds no results of --peers: choose another --json") from error
    return results


def measure(point: Point) -> dict[str, Any]:
    """Seconds and memory of a point, measured in a new process; a reason instead where it fails."""
    source = str(Path(__file__).parents[2])
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": source}
    command = [sys.executable, "-P", "-m", "compound.bench.peers", *map(str, point)]
    try:
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=True
        )
    except subprocess.TimeoutExpired:
        return {"reason": f"took longer than {TIMEOUT} s"}
    except subprocess.CalledProcessError as error:
        return {"reason": (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]}
    outcome: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return outcome


def work(point: Point) -> dict[str, float]:
    """Fit and predict in this process: processor seconds, and MiB of memory."""
    import resource

    import torch

    from compound.bench import peer_methods
    from compound.bench.synthetic import mixed_table

    torch.set_num_threads(1)
    rows, columns = 10_000, COLUMNS
    if point.curve == "rows":
        rows = point.size
    elif point.curve == "columns":
        columns = point.size
    x, y = mixed_table(rows, columns)
    x_new = mixed_table(PREDICTED, columns, seed=1)[0]
    options = {point.curve: point.size} if point.curve in ("draws", "members") else {}
    fit: Callable[..., Callable[[Any], object]] = peer_methods.METHODS[point.method]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    predict = fit(x, y, **options)
    fit_seconds = time.process_time() - start
    fit_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    predict(x_new)  # warms up
    start = time.process_time()
    predict(x_new)
    seconds = time.process_time() - start
    return {
        "fit_seconds": round(fit_seconds, 3),
        "predict_microseconds_per_row": round(1e6 * seconds / PREDICTED, 3),
        "memory_mib": round((fit_memory - before) / 1024, 1),
    }


if __name__ == "__main__":
    curve, method, size = sys.argv[1:]
    print(json.dumps(work(Point(curve, method, int(size)))))
