"""The page of the experiments that one command ran, and their numbers as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compound.experiments import load
from compound.experiments.launch import Failure
from compound.experiments.runs import Result
from compound.experiments.times import draw_times
from compound.io.atomic import write_atomic
from compound.report.page import Claim, Page


def publish(
    results: Sequence[Result], out: Path, title: str = "", failures: Sequence[Failure] = ()
) -> list[Claim]:
    """Write out/index.html, a page for one or more experiments; return the claims it makes.

    Figures and data are files in the same folder. The title defaults to that of the first experiment.
    """
    runs = [*(result.run for result in results), *(failure.run for failure in failures)]
    names = list(dict.fromkeys(run.experiment for run in runs))
    page = Page(title or load(names[0]).title)
    claims = []
    for name in names:
        if title or name != names[0]:
            page.heading(load(name).title)
        group = [result for result in results if result.run.experiment == name]
        if group:
            claims += load(name).fill_page(group, page)
    if failures:
        page.heading("Runs that failed")
        page.text("All numbers above are without them. The same command tries them again.")
        page.table(("run", "reason"), [(str(run), reason) for run, reason in failures])
    if results:
        page.heading("Time")
        draw_times(results, page, f"{names[0]}-times")
        page.provenance([result.provenance for result in results])
    page.write(out / "index.html")
    return claims


def save_summary(
    path: Path, results: Sequence[Result], claims: Sequence[Claim], failures: Sequence[Failure] = ()
) -> None:
    """Write a JSON file: runs with configurations and metrics, claims with limits, failures with reasons."""
    content: dict[str, Any] = {
        "runs": [
            {
                "key": result.run.key,
                "config": result.run.config(),
                "metrics": result.metrics,
                "record": result.provenance,
            }
            for result in results
        ],
        "bars": [{**claim._asdict(), "held": claim.held} for claim in claims],
        "failures": [{"key": run.key, "config": run.config(), "reason": reason} for run, reason in failures],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(content, indent=1) + "\n").encode())
