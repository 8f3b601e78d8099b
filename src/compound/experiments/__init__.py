"""The experiments by name, and the two things done with one: work through its grid, draw its page."""

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from compound.datasets.catalogue import require
from compound.experiments import launch
from compound.experiments.launch import Failure, Grid
from compound.experiments.runs import Outcome, Result, Run, RunContext, Work, finished
from compound.experiments.times import draw_times
from compound.io.atomic import write_atomic
from compound.report.page import Claim, Page

NAMES = (
    "toy",
    "digits",
    "ood-mnist",
    "ood-fashion",
    "fgsm-mnist",
    "fgsm-fashion",
    "fgsm-samples",
    "fgsm-strong",
    "fgsm-cifar",
    "uci",
)
HIDDEN = ("select-mnist", "select-fashion")  # parts of others
EXPERIMENTS = {name: f"compound.experiments.{name.replace('-', '_')}" for name in (*NAMES, *HIDDEN)}


class Experiment(Protocol):
    """What every module of EXPERIMENTS offers."""

    TITLE: str
    METHODS: tuple[str, ...]  # worked through where none is asked for
    ALL_METHODS: tuple[str, ...]  # all that can be asked for
    PRESETS: tuple[str, ...]
    SEEDS: int
    DATA: tuple[str, ...]  # sets of the catalogue that it needs

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]: ...
    def work(self, run: Run, place: RunContext) -> Outcome: ...
    def draw(self, results: Sequence[Result], page: Page) -> list[Claim]: ...


def load(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ValueError(f"experiment is {name!r}: choose one of {', '.join(NAMES)}")
    module = import_module(EXPERIMENTS[name])
    return cast(Experiment, getattr(module, "EXPERIMENT", module))


def plan(name: str, preset: str, seeds: int | None = None, methods: Sequence[str] = ()) -> list[Run]:
    """The runs of an experiment, every wish checked before any work."""
    experiment = load(name)
    if preset not in experiment.PRESETS:
        raise ValueError(f"preset is {preset!r}: {name} has {', '.join(experiment.PRESETS)}")
    methods = experiment.ALL_METHODS if list(methods) == ["all"] else methods
    for method in methods:
        if method not in experiment.ALL_METHODS:
            raise ValueError(f"method is {method!r}: {name} has {', '.join(experiment.ALL_METHODS)}, or all")
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds is {seeds}: ask for at least 1")
    return experiment.grid(preset, seeds or experiment.SEEDS, methods or experiment.METHODS)


def check_data(runs: Sequence[Run], root: Path, data_dir: Path | None = None) -> None:
    """Refuse before any work where data that unfinished runs need are not here."""
    names = {run.experiment for run in runs if not finished(run, root)}
    require(dict.fromkeys(one for name in sorted(names) for one in load(name).DATA), data_dir)


def work_of(name: str) -> Work:
    return load(name).work


def work_through(
    runs: Sequence[Run], root: Path, data_dir: Path | None = None, jobs: int | None = None
) -> Grid:
    """What came of all runs, with progress on the terminal."""
    return launch.work_through(runs, work_of, root, data_dir, jobs)


def perform_all(
    runs: Sequence[Run], root: Path, data_dir: Path | None = None, jobs: int | None = None
) -> list[Result]:
    """The results of all runs, in their order; one that fails is an error, after all others have ended."""
    grid = work_through(runs, root, data_dir, jobs)
    if grid.failures:
        run, reason = grid.failures[0]
        raise ValueError(
            f"{len(grid.failures)} of {len(runs)} runs failed, first {run} ({reason}): see failure.json in {root / run.key}"
        )
    return grid.results


def publish(
    results: Sequence[Result], out: Path, title: str = "", failures: Sequence[Failure] = ()
) -> list[Claim]:
    """One page for the results of one experiment or more, out/index.html, with figures and their data as files beside it."""
    names = list(
        dict.fromkeys(run.experiment for run in (*(r.run for r in results), *(f.run for f in failures)))
    )
    page = Page(title or load(names[0]).TITLE)
    bars = []
    for name in names:
        if title or name != names[0]:
            page.heading(load(name).TITLE)
        own = [result for result in results if result.run.experiment == name]
        if own:
            bars += load(name).draw(own, page)
    if failures:
        page.heading("Runs that failed")
        page.text("All numbers above are without them. The same command tries them again.")
        page.table(("run", "why"), [(str(run), reason) for run, reason in failures])
    if results:
        page.heading("Time")
        draw_times(results, page, f"{names[0]}-times")
        page.provenance([result.record for result in results])
    page.write(out / "index.html")
    return bars


def summary(
    results: Sequence[Result], bars: Sequence[Claim], failures: Sequence[Failure] = ()
) -> dict[str, Any]:
    """All numbers as JSON: every run with its configuration, every claim with its bar, every failure with its reason."""
    return {
        "runs": [
            {"key": r.run.key, "config": r.run.config(), "metrics": r.metrics, "record": r.record}
            for r in results
        ],
        "bars": [
            {"claim": bar.claim, "value": bar.value, "limit": bar.limit, "sense": bar.sense, "held": bar.held}
            for bar in bars
        ],
        "failures": [{"key": run.key, "config": run.config(), "reason": reason} for run, reason in failures],
    }


def save_summary(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(content, indent=1) + "\n").encode())
