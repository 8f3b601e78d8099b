"""Speed of this checkout relative to another one: for each benchmark case, the ratio of their times.

compound bench --against ../base

Each checkout has a worker process with one thread (worker.py), whose processor time is measured. A pair is a
measurement of each, one after the other; the order alternates, so that drifts of the machine cancel.
"""

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

import compound
from compound.bench import worker
from compound.io.atomic import write_atomic

MIB = 2**20
PAIRS = 15
QUICK_PAIRS = 3
SLICE_SECONDS = 0.2  # duration of one measurement of a pair, which has at least one call
QUICK_SECONDS = 0.05  # the same with `quick`
QUICK_CALL = 0.2  # seconds: with `quick`, cases whose calls take longer are left out
CONFIDENCE = 0.95
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    "MALLOC_MMAP_THRESHOLD_": str(32 * MIB),  # as experiments.memory sets them
    "MALLOC_TRIM_THRESHOLD_": str(512 * MIB),
    "MALLOC_TOP_PAD_": str(64 * MIB),
}


class Ratio(NamedTuple):
    """Median over pairs of the ratio of times new / old, with a confidence interval from order statistics."""

    name: str
    median: float
    low: float
    high: float
    confidence: float  # of the interval: below 95% for fewer than six pairs
    pairs: int

    @classmethod
    def from_pairs(cls, name: str, ratios: list[float]) -> "Ratio":
        """Median and confidence interval of `ratios`, one per pair."""
        n = len(ratios)
        # P(the median lies outside the k-th smallest and k-th largest) = 2 P(Binomial(n, 1/2) < k)
        outside = [2 * sum(math.comb(n, i) for i in range(k)) / 2**n for k in range(n // 2 + 1)]
        k = max(1, max(k for k, p in enumerate(outside) if p <= 1 - CONFIDENCE))
        ordered = sorted(ratios)
        return cls(name, statistics.median(ratios), ordered[k - 1], ordered[n - k], 1 - outside[k], n)


class Worker:
    """Interface to the timing process of one checkout, whose package is in `source`."""

    def __init__(self, process: "subprocess.Popen[str]", source: Path):
        self._process = process
        self._source = source
        start = self._receive()
        self.cases: list[str] = start["cases"]
        if not Path(start["file"]).is_relative_to(source):
            raise ValueError(f"the worker of {source} imports {start['file']}: remove that from its path")

    def seconds(self, case: str, repeats: int) -> float:
        """Processor time per call of a case, in seconds, over `repeats` calls."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"case": self.cases.index(case), "repeats": repeats}) + "\n")
        self._process.stdin.flush()
        return float(self._receive()["seconds"])

    def _receive(self) -> dict[str, Any]:
        """The next reply of the process; ValueError if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ValueError(f"the worker of {self._source} ended with code {self._process.wait()}")
        content: dict[str, Any] = json.loads(line)
        return content


@contextmanager
def start_worker(source: Path) -> Iterator[Worker]:
    """Context with a worker that imports compound from the folder `source`; its process ends on exit."""
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(source.resolve())}
    command = [sys.executable, "-P", worker.__file__]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Worker(process, source.resolve())
        finally:
            process.kill()


def find_source(checkout: Path) -> Path:
    """The folder of a checkout that holds the package; a ValueError where there is none."""
    for source in (checkout / "src", checkout):
        if (source / "compound" / "bench" / "speed.py").exists():
            return source
    raise ValueError(f"{checkout} is no checkout of compound: it has no src/compound/bench/speed.py")


def compare(new: Path, old: Path, pairs: int = PAIRS, quick: bool = False) -> Iterator[Ratio]:
    """Time all cases that both source folders have; yields ratios of times, new / old, over `pairs` pairs.

    `quick` takes shorter measurements, and leaves out slow cases.
    """
    with start_worker(new) as new_worker, start_worker(old) as old_worker:
        for case in new_worker.cases:
            if case not in old_worker.cases:
                continue
            for side in (old_worker, new_worker):
                side.seconds(case, 1)  # compiles and warms up
            once = old_worker.seconds(case, 1)
            if quick and once > QUICK_CALL:
                continue
            repeats = max(1, round((QUICK_SECONDS if quick else SLICE_SECONDS) / once))
            yield Ratio.from_pairs(case, _time_ratios(case, repeats, pairs, new_worker, old_worker))


def _time_ratios(case: str, repeats: int, pairs: int, new: Worker, old: Worker) -> list[float]:
    """Ratio of times new / old of each pair; the worker that is timed first alternates."""
    ratios = []
    for number in range(pairs):
        order = (new, old) if number % 2 else (old, new)
        seconds = {side: side.seconds(case, repeats) for side in order}
        ratios.append(seconds[new] / seconds[old])
    return ratios


def main(old: Path, json_path: Path | None, quick: bool, pairs: int | None = None) -> list[Ratio]:
    """Compare this checkout with another one: print a table, and write it to `json_path` if given."""
    sources = Path(compound.__file__).parents[1], find_source(old)
    pairs = pairs or (QUICK_PAIRS if quick else PAIRS)
    console = Console()
    table = Table("case", "new / old", "interval", title=f"Time against {old}; below 1 is faster")
    ratios = []
    for ratio in compare(*sources, pairs, quick):
        ratios.append(ratio)
        interval = f"{ratio.low:.3f} to {ratio.high:.3f} ({100 * ratio.confidence:.1f}%)"
        console.print(f"{ratio.name}: {ratio.median:.3f}, {interval}")
        table.add_row(ratio.name, f"{ratio.median:.3f}", interval)
    console.print(table)
    if json_path is not None:
        content = [ratio._asdict() for ratio in ratios]
        write_atomic(json_path, (json.dumps(content, indent=2) + "\n").encode())
    return ratios
