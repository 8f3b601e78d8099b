"""The state of runs (done, running, failed, waiting), read from the files and locks of their directories."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.markup import escape
from rich.table import Table

from compound.experiments import progress
from compound.experiments.identity import Run, read_config
from compound.experiments.locks import is_locked
from compound.experiments.run_files import CONFIG, FAILURE, METRICS, Damaged, read_metrics

Kind = Literal["done", "running", "failed", "waiting"]
COLOURS: dict[Kind, str] = {"done": "green", "running": "cyan", "failed": "red", "waiting": "default"}
MAX_OPTIONS = 40  # characters of options in a table


class State(NamedTuple):
    run: Run
    kind: Kind
    detail: str = ""  # seconds of a finished run, progress of a running one, reason of a failure
    remaining: float | None = None  # seconds of training; None: not known


def find_runs(root: Path) -> list[Run]:
    """All runs that have a directory in root, sorted by experiment; ValueError if there is none."""
    runs = [read_config(path) for path in sorted(root.glob(f"*/{CONFIG}"))]
    order = sorted((run for run in runs if run is not None), key=_sort_key)
    if not order:
        raise ValueError(
            f"{root} holds no runs: start one with compound run, or name another folder by --runs"
        )
    return order


def _sort_key(run: Run) -> tuple[Any, ...]:
    return run.experiment, run.settings.get("steps", 0), run.data_label, run.method, run.seed, run.key


def unreadable_configs(root: Path) -> list[Path]:
    """Paths of unreadable config.json files of finished runs: it is not known which runs these were."""
    paths = [path for path in sorted(root.glob(f"*/{CONFIG}")) if (path.parent / METRICS).exists()]
    return [path for path in paths if read_config(path) is None]


def run_states(runs: Sequence[Run], root: Path) -> list[State]:
    return [run_state(run, root / run.key) for run in runs]


def run_state(run: Run, directory: Path) -> State:
    if (directory / METRICS).exists():
        return _finished_state(run, directory)
    position = progress.read(directory) or {}
    step = position.get("step")
    steps = position.get("steps")
    done = f"step {step:,} of {steps:,}" if step and steps else ""
    if is_locked(directory / "lock"):
        return _running_state(run, step, steps, position.get("rate"), done)
    if (directory / FAILURE).exists():
        return State(run, "failed", str(_read_json(directory / FAILURE).get("reason", "")))
    return State(run, "waiting", f"stopped at {done}" if done else "")


def _finished_state(run: Run, directory: Path) -> State:
    try:
        seconds = read_metrics(directory)["record"].get("seconds")
    except Damaged as error:
        return State(run, "failed", str(error))
    return State(run, "done", "" if seconds is None else _duration(seconds))


def _running_state(run: Run, step: int | None, steps: int | None, rate: float | None, done: str) -> State:
    """`rate` in steps per second; `done` is the text about steps."""
    if not (step and steps):
        return State(run, "running")
    if step == steps:
        return State(run, "running", "trained, evaluating")
    if not rate:
        return State(run, "running", done)
    remaining = (steps - step) / rate
    detail = f"{done}, {rate:.0f} steps/s, {_duration(remaining)} of training left"
    return State(run, "running", detail, remaining)


def state_tables(states: Sequence[State]) -> list[Table]:
    """A table for each experiment, with a row per run."""
    tables = []
    for name in dict.fromkeys(state.run.experiment for state in states):
        group = [state for state in states if state.run.experiment == name]
        counts = ", ".join(f"{sum(state.kind == kind for state in group)} {kind}" for kind in COLOURS)
        columns = ("data", "method", "seed", "steps", "state", "")
        table = Table(*columns, title=f"{name}: {counts}", title_justify="left")
        for run, kind, detail, _ in group:
            steps = run.settings.get("steps")
            method = run.method + _differing_options(run, group)
            cells = (run.data_label, method, str(run.seed), "" if steps is None else f"{steps:,}")
            table.add_row(*(escape(cell) for cell in cells), f"[{COLOURS[kind]}]{kind}[/]", escape(detail))
        tables.append(table)
    return tables


def _differing_options(run: Run, states: Sequence[State]) -> str:
    """The options, as text, in which a run differs from others of the same method, data, seed and steps."""

    def group_key(other: Run) -> tuple[object, ...]:
        return other.method, other.data_label, other.seed, other.settings.get("steps")

    alike = [state.run.options for state in states if group_key(state.run) == group_key(run)]
    names = [name for name in run.options if any(other.get(name) != run.options[name] for other in alike)]
    text = "".join(f", {name}={run.options[name]}" for name in sorted(names))
    return text if len(text) < MAX_OPTIONS else f"{text[: MAX_OPTIONS - 1]}…"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if it is unreadable."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content
