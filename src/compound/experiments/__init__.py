"""The experiments by name, and functions that plan the runs of one and perform them.

registry, interface    __init__, base, forms, published (numbers of the paper)
one run                identity, runs, run_files, locks, progress, provenance
many runs              launch, scheduler, workers, memory, run_memory, status
pages                  pages, times, means, overview, paper_comparison
experiments            toy, digits, ood (with the selection of λ), fgsm (with CIFAR-10), uci, tables, images,
                       sequences
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from compound.datasets.catalogue import require
from compound.experiments import launch
from compound.experiments.base import PRESETS, Experiment
from compound.experiments.identity import Run
from compound.experiments.launch import Executor, GridResult
from compound.experiments.run_memory import run_bytes
from compound.experiments.runs import Result, Work, is_finished

# name -> module whose dictionary EXPERIMENTS holds it; imported when it is asked for
MODULES = {
    "toy": "toy",
    "digits": "digits",
    "ood-mnist": "ood",
    "ood-fashion": "ood",
    "fgsm-mnist": "fgsm",
    "fgsm-fashion": "fgsm",
    "fgsm-samples": "fgsm",
    "fgsm-strong": "fgsm",
    "fgsm-cifar": "fgsm.cifar",
    "uci": "uci",
    "tables": "tables",
    "images": "images",
    "sequences": "sequences",
    "select-mnist": "ood.select",
    "select-fashion": "ood.select",
}
INTERNAL = ("select-mnist", "select-fashion")  # started by `compound run --select`
NAMES = tuple(name for name in MODULES if name not in INTERNAL)


def load(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in MODULES:
        raise ValueError(f"experiment is {name!r}: choose one of {', '.join(NAMES)}")
    experiments: dict[str, Experiment] = import_module(f"compound.experiments.{MODULES[name]}").EXPERIMENTS
    return experiments[name]


def plan(name: str, preset: str, seeds: int | None = None, methods: Sequence[str] = ()) -> list[Run]:
    """The runs of an experiment under a preset, for seeds 0, ..., seeds - 1; ValueError for a wrong argument.

    Without `seeds` or `methods` the experiment's defaults are used; "all" means all of its methods
    that are installed.
    """
    experiment = load(name)
    if preset not in PRESETS:
        raise ValueError(f"preset is {preset!r}: {name} has {', '.join(PRESETS)}")
    if list(methods) == ["all"]:
        methods = [method for method in experiment.all_methods if method not in experiment.not_installed]
    for method in methods:
        if method not in experiment.all_methods:
            raise ValueError(f"method is {method!r}: {name} has {', '.join(experiment.all_methods)}, or all")
        if method in experiment.not_installed:
            raise ValueError(
                f"method {method} is not installed: pip install 'compound-torch[peers]', or leave it out"
            )
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds is {seeds}: ask for at least 1")
    quick_methods = experiment.quick_methods if preset == PRESETS[0] else ()
    methods = methods or quick_methods or experiment.methods
    return experiment.grid(preset, seeds or experiment.n_seeds, methods)


def check_data(runs: Sequence[Run], root: Path, data_dir: Path | None = None) -> None:
    """Raise an error if a data set that an unfinished run needs is not on disk."""
    names = {run.experiment for run in runs if not is_finished(run, root)}
    require(dict.fromkeys(data for name in sorted(names) for data in load(name).data), data_dir)


def work_of(name: str) -> Work:
    """The function that trains and evaluates one run of the experiment of this name."""
    return load(name).work


def memory_of(run: Run) -> int:
    """Estimated peak memory of a run, in bytes."""
    return run_bytes(run, load(run.experiment).data_size(run))


def run_grid(
    runs: Sequence[Run],
    root: Path,
    data_dir: Path | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> GridResult:
    """Perform the runs that are not finished, `jobs` at once; results and failures of all runs.

    Run directories are in `root`. Progress is shown on the terminal. Without an `executor`, the runs are
    performed by processes of this machine.
    """
    return launch.run_grid(runs, work_of, root, data_dir, jobs, executor)


def perform_all(
    runs: Sequence[Run],
    root: Path,
    data_dir: Path | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> list[Result]:
    """The results of `run_grid`, in the order of runs; ValueError, after all have ended, if one failed."""
    grid = run_grid(runs, root, data_dir, jobs, executor)
    if grid.failures:
        run, reason = grid.failures[0]
        raise ValueError(
            f"{len(grid.failures)} of {len(runs)} runs failed, first {run} ({reason}): "
            f"see failure.json in {root / run.key}"
        )
    return grid.results
