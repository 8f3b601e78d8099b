"""The worked plan of docs/scale.md, from the coefficients that scale_costs.py has written.

    python tests/measurements/scale_plan.py costs.*.json

10 million rows of 100 numbers to learn from, a billion to predict, 16 machines of 8 cores. What lies beyond
the measured sizes is marked: 100 columns and one core are within them, 16 machines and a network are not.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import scale_costs

ROWS, COLUMNS, PREDICTED, MACHINES, CORES = 10_000_000, 100, 1_000_000_000, 16, 8
NETWORK = (0.5e-3, 1e9)  # seconds per message, bytes per second: assumed, of ten gigabits


def cost(costs: dict[str, Any], part: str, **size: Any) -> float:
    """Seconds or bytes by the model."""
    return float(np.dot(scale_costs.PARTS[part][1](size), costs[part]["coefficients"]))


def main(paths: list[str]) -> None:
    costs: dict[str, Any] = {}
    for path in paths:
        costs |= json.loads(Path(path).read_text())
    size = {"width": COLUMNS + 1, "units": 50, "members": 5}
    model, _ = scale_costs.build(size, 2)
    parameters = sum(p.numel() for p in model.parameters())
    first = ROWS * cost(costs, "reading", columns=COLUMNS, rows=ROWS)
    memory = cost(costs, "memory", rows=ROWS, columns=COLUMNS)
    print(f"first pass: {first / 60:.1f} min on one core; memory of a process {memory / 2**30:.2f} GiB")
    for batch in (200, 1600, 3200):
        alone = cost(costs, "steps", batch=batch, **size)
        epoch = ROWS / batch * alone / 3600
        print(f"step of {batch} rows, one process: {1000 * alone:.1f} ms, epoch {epoch:.2f} h")
        for processes in (2, 16):
            share = cost(costs, "steps", batch=-(-batch // processes), **size)
            message = 2 * (processes - 1) * (NETWORK[0] + 4 * parameters / processes / NETWORK[1])
            total = share + message
            print(f"  {processes} machines: {1000 * total:.1f} ms, {alone / total:.1f} times as fast")
    row = cost(costs, "rows", draws=20, **size) + cost(costs, "reading", columns=COLUMNS, rows=1)
    hours = PREDICTED * row / 3600
    print(f"prediction: {1e6 * row:.0f} µs per row")
    print(f"  {hours:.0f} core hours, {hours / MACHINES / CORES:.1f} hours on all cores")
    print(f"parameters {parameters:,}")


if __name__ == "__main__":
    main(sys.argv[1:])
