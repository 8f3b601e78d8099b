"""The state of runs, from their directories alone: nothing is asked of the processes that work on them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.markup import escape
from rich.table import Table

from compound.experiments import progress
from compound.experiments.runs import FAILURE, METRICS, Damaged, Run, held, read_metrics

Kind = Literal["done", "running", "failed", "waiting"]
COLOURS: dict[Kind, str] = {"done": "green", "running": "cyan", "failed": "red", "waiting": "default"}


class State(NamedTuple):
    run: Run
    kind: Kind
    words: str
    seconds: float | None = None  # still to come, of training


def found(root: Path) -> list[Run]:
    """Every run that has a directory, by experiment."""
    runs = [read_config(path) for path in sorted(root.glob("*/config.json"))]
    known = [run for run in runs if run is not None]
    order = sorted(
        known,
        key=lambda run: (
            run.experiment,
            run.settings.get("steps", 0),
            run.data,
            run.method,
            run.seed,
            run.key,
        ),
    )
    if not order:
        raise ValueError(
            f"{root} holds no runs: start one with compound run, or name another folder by --runs"
        )
    return order


def read_config(path: Path) -> Run | None:
    """The run that a config.json describes, None where it describes none that belongs there."""
    try:
        run = Run(**json.loads(path.read_text()))
        return run if run.key == path.parent.name else None
    except (OSError, ValueError, TypeError):
        return None


def unreadable(root: Path) -> list[Path]:
    """Descriptions of finished runs that describe none: nobody can tell what their results are of."""
    return [
        path
        for path in sorted(root.glob("*/config.json"))
        if (path.parent / METRICS).exists() and read_config(path) is None
    ]


def survey(runs: Sequence[Run], root: Path) -> list[State]:
    return [state(run, root / run.key) for run in runs]


def state(run: Run, directory: Path) -> State:
    if (directory / METRICS).exists():
        try:
            seconds = read_metrics(directory)["record"].get("seconds")
        except Damaged as error:
            return State(run, "failed", str(error))
        return State(run, "done", "" if seconds is None else f"{_time(seconds)}")
    at = progress.read(directory) or {}
    step, steps, rate = at.get("step"), at.get("steps"), at.get("rate")
    far = f"step {step:,} of {steps:,}" if step and steps else ""
    if held(directory / "lock"):
        if not far:
            return State(run, "running", "")
        if step == steps:
            return State(run, "running", "trained, answering")
        left = (steps - step) / rate if step and steps and rate else None
        speed = f", {rate:.0f} steps/s" if rate else ""
        return State(
            run,
            "running",
            far + speed + (f", {_time(left)} of training left" if left is not None else ""),
            left,
        )
    if (directory / FAILURE).exists():
        return State(run, "failed", str(_read(directory / FAILURE).get("reason", "")))
    return State(run, "waiting", f"stopped at {far}" if far else "")


def tables(states: Sequence[State]) -> list[Table]:
    """One for each experiment."""
    made = []
    for name in dict.fromkeys(one.run.experiment for one in states):
        own = [one for one in states if one.run.experiment == name]
        counts = ", ".join(f"{sum(one.kind == kind for one in own)} {kind}" for kind in COLOURS)
        table = Table(
            "data", "method", "seed", "steps", "state", "", title=f"{name}: {counts}", title_justify="left"
        )
        for run, kind, words, _ in own:
            steps = run.settings.get("steps")
            cells = (
                run.data,
                run.method + _extra(run, own),
                str(run.seed),
                "" if steps is None else f"{steps:,}",
            )
            table.add_row(*(escape(cell) for cell in cells), f"[{COLOURS[kind]}]{kind}[/]", escape(words))
        made.append(table)
    return made


def _extra(run: Run, states: Sequence[State]) -> str:
    """What tells a run from others of the same method, data and seed."""

    def slot(one: Run) -> tuple[object, ...]:
        return one.method, one.data, one.seed, one.settings.get("steps")

    alike = [one.run.options for one in states if slot(one.run) == slot(run)]
    names = [name for name in run.options if any(other.get(name) != run.options[name] for other in alike)]
    words = "".join(f", {name}={run.options[name]}" for name in sorted(names))
    return words if len(words) < 40 else f"{words[:39]}…"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content
