"""The toy experiment with S = 1, 3 and 10 draws in training, over seeds; average variances of weights.

    python tests/measurements/toy_draws.py [--seeds 5] [--steps 10000] [--runs runs]

The paper's footnotes: more than one draw is crucial for the CDNs, which with one look like VMG and noisy
K-FAC, and does not change these; with one draw the objective of ML-CDN is that of VIB. Published forms; vib
in the common setting. Prints tables: means and standard errors over seeds. Finished runs are not repeated.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from compound import experiments
from compound.experiments.identity import PUBLISHED, Run
from compound.experiments.means import Mean
from compound.experiments.published import paper_weight_variances
from compound.experiments.runs import Result, perform

SAMPLES = (1, 3, 10)
METHODS = ("ml-cdn", "vb-cdn", "vmg", "noisy-kfac", "vib")
MEASURES = {
    "set 1": {"sd outside / inside": "ratio", "error inside": "error"},
    "set 2": {"sd left / right": "ratio", "error": "error"},
}


def planned(seeds: int, steps: int) -> list[tuple[int, Run]]:
    """S and run, for every method, set and seed."""
    out = []
    for run in experiments.plan("toy", "paper", seeds, METHODS):
        if run.variant == PUBLISHED or run.method == "vib":
            settings = {**run.settings, "steps": steps}
            for s in SAMPLES:
                out.append((s, replace(run, options={**run.options, "samples": s}, settings=settings)))
    return out


def text(values: list[float], digits: int = 2) -> str:
    return Mean.from_values(values).text(digits) if values else ""


def row(*cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    options = parser.parse_args()
    work = experiments.work_of("toy")
    results: dict[tuple[str, str, int], list[Result]] = {}
    for s, run in planned(options.seeds, options.steps):
        results.setdefault((run.data, run.method, s), []).append(perform(run, work, options.runs))

    print(f"{options.seeds} seeds, {options.steps:,} steps; means ± standard errors over seeds.\n")
    for data, measures in MEASURES.items():
        columns = [f"{name}, S = {s}" for name in measures for s in SAMPLES]
        print(row(data, *columns), row(*["---"] * (len(columns) + 1)), sep="\n")
        for method in METHODS:
            cells = [
                text([r.metrics[key] for r in results[data, method, s]])
                for key in measures.values()
                for s in SAMPLES
            ]
            print(row(f"`{method}`", *cells))
        print()
    print_variances(results)


def print_variances(results: dict[tuple[str, str, int], list[Result]]) -> None:
    """Average variances of weights of vb-cdn, and in how many seeds they are in the paper's order."""

    def values(data: str, part: str, kind: str, s: int) -> list[float]:
        return [r.metrics["variances"][part][kind] for r in results[data, "vb-cdn", s]]

    columns = [f"{kind}, S = {s}" for kind in ("mean", "median") for s in SAMPLES]
    print(row("vb-cdn, average variance", "paper", *columns), row(*["---"] * (len(columns) + 2)), sep="\n")
    for data in MEASURES:
        for part, paper in paper_weight_variances()[data.replace(" ", "_")].items():
            cells = [text(values(data, part, kind, s), 3) for kind in ("mean", "median") for s in SAMPLES]
            print(row(f"{data}, {part.replace('_', ', ')}", f"{paper:.3f}", *cells))
    comparisons = {
        "set 2: mixing, left above right": (("set 2", "mixing_left"), ("set 2", "mixing_right")),
        "posterior, set 1 above set 2": (("set 1", "posterior"), ("set 2", "posterior")),
        "set 1: posterior above mixing": (("set 1", "posterior"), ("set 1", "mixing")),
    }
    for name, (high, low) in comparisons.items():
        cells = []
        for kind in ("mean", "median"):
            for s in SAMPLES:
                pairs = list(zip(values(*high, kind, s), values(*low, kind, s), strict=True))
                cells.append(f"{sum(a > b for a, b in pairs)} of {len(pairs)} seeds")
        print(row(name, "yes", *cells))


if __name__ == "__main__":
    main()
