"""Speed of each benchmark case relative to its reference; the two are timed in turns, on one thread.

compound bench --json speed.json
"""

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from compound.bench.cases import Call, Case, cases
from compound.experiments.memory import keep_memory
from compound.io.atomic import write_atomic

ROUND_SECONDS = 0.03  # about the time that a round takes for the case, and again for its reference


class Row(NamedTuple):
    """Result of one case."""

    name: str
    ratio: float  # of times, case / reference
    limit: float  # highest ratio allowed
    memory: float  # MiB allocated per call

    @property
    def holds(self) -> bool:
        return self.ratio <= self.limit


def main(json_path: Path | None, quick: bool) -> list[Row]:
    """Time all cases (`quick`: in fewer rounds), print a table, and write it to `json_path` if given."""
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)  # raises before the work
    keep_memory()
    console = Console()
    rows = []
    with one_thread(), console.status("timing"):
        for case in cases():
            rows.append(measure(case, rounds=5 if quick else 25))
            console.print(f"{rows[-1].name}: {rows[-1].ratio:.4g} (limit {rows[-1].limit:.4g})")
    columns = ("case", "ratio", "limit", "", "MiB")
    table = Table(*columns, title="Time against the reference named; lower is better")
    for row in rows:
        verdict = "holds" if row.holds else "[red]missed[/red]"
        table.add_row(row.name, f"{row.ratio:.4g}", f"{row.limit:.4g}", verdict, f"{row.memory:.1f}")
    console.print(table)
    if json_path is not None:
        entries = [{"name": r.name, "ratio": r.ratio, "bar": r.limit, "memory_mib": r.memory} for r in rows]
        write_atomic(json_path, (json.dumps(entries, indent=2) + "\n").encode())
    return rows


def measure(case: Case, rounds: int) -> Row:
    """Time a case: the median over rounds of the ratio of its time to that of its reference."""
    repeats = [n_repeats(call, ROUND_SECONDS, case.min_calls) for call in (case.ours, case.reference)]
    ratios = []
    for _ in range(max(3, rounds // case.divisor)):
        ratios.append(seconds_per_call(case.ours, repeats[0]) / seconds_per_call(case.reference, repeats[1]))
    return Row(case.name, statistics.median(ratios), case.limit, _allocated_mib(case.ours))


def n_repeats(call: Call, seconds: float, min_calls: int = 1) -> int:
    """How many calls take about `seconds`, at least `min_calls`; a first call warms up."""
    call()
    return max(min_calls, round(seconds / seconds_per_call(call, 1)))


def seconds_per_call(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _allocated_mib(call: Call) -> float:
    """MiB of memory that torch allocates in one call, summed over operations."""
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    return sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages()) / 2**20


@contextmanager
def one_thread() -> Iterator[None]:
    """Context in which torch uses one thread."""
    previous = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
