"""The experiments by name, and the two things done with one: work through its grid, draw its page."""

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from compound.bench.memory import keep_memory
from compound.bench.report import Bar, Page, picture
from compound.bench.runs import Outcome, Place, Result, Run, perform
from compound.persist import write_atomic
from compound.train import Watch

NAMES = ("toy", "digits", "ood-mnist", "ood-fashion", "fgsm-mnist", "fgsm-fashion", "fgsm-samples", "fgsm-strong")
EXPERIMENTS = {name: f"compound.bench.experiments.{name.replace('-', '_')}" for name in NAMES}
News = tuple[int, int, int]  # number of the run, step, steps


class Drawn(NamedTuple):
    """What a page says in numbers: claims with their bars, and the figure worth a file of its own."""

    bars: list[Bar]
    figure: Figure


class Experiment(Protocol):
    """What every module of EXPERIMENTS offers."""

    TITLE: str
    METHODS: tuple[str, ...]  # worked through where none is asked for
    EVERY: tuple[str, ...]  # all that can be asked for
    PRESETS: tuple[str, ...]
    SEEDS: int

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]: ...
    def work(self, run: Run, place: Place) -> Outcome: ...
    def draw(self, results: Sequence[Result], page: Page) -> Drawn: ...


def load(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ValueError(f"experiment is {name!r}: choose one of {', '.join(EXPERIMENTS)}")
    module = import_module(EXPERIMENTS[name])
    return cast(Experiment, getattr(module, "EXPERIMENT", module))


def plan(name: str, preset: str, seeds: int | None = None, methods: Sequence[str] = ()) -> list[Run]:
    """The runs of an experiment, every wish checked before any work."""
    experiment = load(name)
    if preset not in experiment.PRESETS:
        raise ValueError(f"preset is {preset!r}: {name} has {', '.join(experiment.PRESETS)}")
    methods = experiment.EVERY if list(methods) == ["all"] else methods
    for method in methods:
        if method not in experiment.EVERY:
            raise ValueError(f"method is {method!r}: {name} has {', '.join(experiment.EVERY)}, or all")
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds is {seeds}: ask for at least 1")
    return experiment.grid(preset, seeds or experiment.SEEDS, methods or experiment.METHODS)


def perform_all(runs: Sequence[Run], root: Path, data_dir: Path | None = None, processes: int | None = None) -> list[Result]:
    """The results of all runs, in their order, with progress on the terminal."""
    processes = min(processes or _cores(), len(runs))
    with _progress() as progress:
        every = progress.add_task("all runs", total=len(runs))
        tasks = [progress.add_task(str(run), total=None, start=False, visible=False) for run in runs]

        def told(news: News) -> None:
            number, step, steps = news
            progress.start_task(tasks[number])
            progress.update(tasks[number], completed=step, total=steps, visible=True)

        def ended(number: int, result: Result) -> Result:
            progress.update(tasks[number], visible=False)
            progress.advance(every)
            progress.console.print(f"{runs[number]}: {result.record['seconds']:.0f} s", highlight=False)
            return result

        if processes == 1:
            _begin()
            return [ended(number, _one(run, root, data_dir, number, told)) for number, run in enumerate(runs)]
        return _in_processes(runs, root, data_dir, processes, told, ended)


def _in_processes(
    runs: Sequence[Run],
    root: Path,
    data_dir: Path | None,
    processes: int,
    told: Callable[[News], None],
    ended: Callable[[int, Result], Result],
) -> list[Result]:
    context = get_context("spawn")  # a forked torch may hang in its thread pool
    results: dict[int, Result] = {}
    # as many processes as cores: more threads than one in each would only take turns
    with (
        context.Manager() as manager,
        ProcessPoolExecutor(processes, context, initializer=_begin) as pool,
    ):
        news = manager.Queue()
        numbers = {pool.submit(_one, run, root, data_dir, number, news.put): number for number, run in enumerate(runs)}
        pending = set(numbers)
        try:
            while pending:
                done, pending = wait(pending, timeout=0.1, return_when=FIRST_COMPLETED)
                while not news.empty():
                    told(news.get())
                for future in done:
                    results[numbers[future]] = ended(numbers[future], future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)  # what has begun may end and is kept, the rest need not begin
            raise
    return [results[number] for number in range(len(runs))]


def _begin() -> None:
    """One thread per run: products as small as these are no faster with more."""
    torch.set_num_threads(1)
    keep_memory()


def _one(run: Run, root: Path, data_dir: Path | None, number: int, tell: Callable[[News], None]) -> Result:
    last = 0.0

    def watch(seen: Watch) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 0.1 or seen.step == seen.steps:
            last = now
            tell((number, seen.step, seen.steps))

    return perform(run, load(run.experiment).work, root, data_dir, watch)


def publish(results: Sequence[Result], out: Path, title: str = "") -> list[Bar]:
    """One page for the results of one experiment or more, out/index.html, and each one's figure beside it."""
    names = list(dict.fromkeys(result.run.experiment for result in results))
    page = Page(title or load(names[0]).TITLE)
    bars = []
    for name in names:
        if title:
            page.heading(load(name).TITLE)
        drawn = load(name).draw([result for result in results if result.run.experiment == name], page)
        picture(drawn.figure, out / f"{name}.png")
        bars += drawn.bars
    page.origins([result.record for result in results])
    page.write(out / "index.html")
    return bars


def summary(results: Sequence[Result], bars: Sequence[Bar]) -> dict[str, Any]:
    """All numbers as JSON: every run with its configuration, every claim with its bar."""
    return {
        "runs": [{"key": r.run.key, "config": r.run.config(), "metrics": r.metrics, "record": r.record} for r in results],
        "bars": [{"claim": bar.claim, "value": bar.value, "limit": bar.limit, "sense": bar.sense, "held": bar.held} for bar in bars],
    }


def save_summary(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(content, indent=1) + "\n").encode())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _progress() -> AbstractContextManager[Progress]:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)
    )
