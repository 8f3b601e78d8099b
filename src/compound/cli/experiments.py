"""Commands for the paper's experiments: run, demo, status, report; and bench, for speed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from compound.cli import options
from compound.cli.errors import exit_code

_runs = options.directory("--runs", "runs", "Directory of the runs; a finished run is never repeated.")
_jobs = click.option(
    "--jobs",
    type=click.IntRange(1),
    help="Number of parallel runs, which share the cores.  [default: one per core]",
)
_preset = click.option(
    "--preset", default="quick", show_default=True, help="quick, or paper: as long as in the paper."
)
_seeds = click.option("--seeds", type=int, help="Number of repetitions.  [default: set by the experiment]")
_methods = click.option(
    "--methods", default="", help="Comma-separated names, or all.  [default: set by the experiment]"
)
_page_directory = options.directory("--out", "report", "The page is written to index.html in this directory.")


@click.command()
@click.argument("name")
@_preset
@_seeds
@_methods
@click.option(
    "--select",
    is_flag=True,
    help="First select λ of ml-cdn by validation accuracy, from five fits of each form.",
)
@options.directory("--out", "report", "The page is written to NAME/index.html in this directory.")
@_runs
@options.json_file
@options.data_dir
@_jobs
@options.ray
@click.option("--cores", type=click.IntRange(1), default=1, show_default=True, help="Of each run on Ray.")
@click.option("--storage", help="An fsspec URL for files of runs on Ray, where nodes share no folder.")
def run(
    name: str,
    preset: str,
    seeds: int | None,
    methods: str,
    select: bool,
    out: Path,
    runs: Path,
    json_path: Path | None,
    data_dir: Path | None,
    jobs: int | None,
    ray_address: str | None,
    cores: int,
    storage: str | None,
) -> None:
    """Run an experiment and write its page.

    toy, digits, ood-mnist, ood-fashion, fgsm-mnist, fgsm-fashion, fgsm-samples, fgsm-strong,
    fgsm-cifar, uci, tables, images, sequences

    Finished runs are reused; after Ctrl-C, a crash or a power failure the same command resumes. A failed run
    is reported with its reason and does not stop the others: the page shows the rest, the exit code is 1.

    With --ray the runs are tasks of a Ray cluster; --runs is a folder that its nodes share, or --storage
    names where they exchange files.

    Example: compound run toy --preset paper --seeds 3 --jobs 2
    """
    from compound import experiments
    from compound.experiments.ood.select import Selection, select_lambda

    planned = experiments.plan(name, preset, seeds, _split_names(methods))
    options.check_outputs(out / name, runs, json_path=json_path)
    experiments.check_data(planned, runs, data_dir)
    if storage and not ray_address:
        raise ValueError("--storage is for runs on Ray: give --ray, or leave it out")
    with _exit_on_interrupt(), _executor(ray_address, cores, storage, jobs) as executor:
        selection = Selection(planned, [])
        if select:
            selection = select_lambda(planned, preset, runs, data_dir, jobs, executor)
        grid = experiments.run_grid(selection.runs, runs, data_dir, jobs, executor)
    _publish([*grid.results, *selection.results], grid.failures, out / name, "", json_path)


@click.command()
@_page_directory
@_runs
@_jobs
def demo(out: Path, runs: Path, jobs: int | None) -> None:
    """Two small experiments on one page, regression and image classification, in about two minutes.

    Example: compound demo --out report
    """
    from compound import experiments

    options.check_outputs(out, runs)
    planned = [*experiments.plan("toy", "quick", 1), *experiments.plan("digits", "quick", 1)]
    with _exit_on_interrupt():
        grid = experiments.run_grid(planned, runs, None, jobs)
    title = "Predictive uncertainty of compound density networks"
    _publish(grid.results, grid.failures, out, title)


@click.command()
@click.argument("name", required=False)
@_preset
@_seeds
@_methods
@_runs
def status(name: str | None, preset: str, seeds: int | None, methods: str, runs: Path) -> None:
    """Show which runs are done, running (with progress), failed (with the reason) and waiting.

    With the NAME of an experiment: all runs that `compound run` with the same options would make. Without:
    every run in the directory.

    Example: compound status ood-mnist --preset paper --seeds 3
    """
    from rich.console import Console

    from compound import experiments
    from compound.experiments.status import find_runs, run_states, state_tables

    chosen = _split_names(methods)
    planned = find_runs(runs) if name is None else experiments.plan(name, preset, seeds, chosen)
    for table in state_tables(run_states(planned, runs)):
        Console().print(table)


@click.command()
@_runs
@_page_directory
@click.option(
    "--preset", default="", help="Only runs of this preset: quick or paper.  [default: both, paper first]"
)
def report(runs: Path, out: Path, preset: str) -> None:
    """Write one page with the figures and tables of all finished runs, compared with the paper.

    Nothing is trained, and presets are never mixed. The data of each figure are saved beside the page as csv.

    Example: compound report --runs runs --out report
    """
    from compound.experiments.overview import overview

    options.check_outputs(out)
    result = overview(runs, out, preset)
    for line in result.errors:
        click.echo(line, err=True)
    click.echo(f"page: {out / 'index.html'} ({result.runs} runs)")
    if result.errors:
        raise click.exceptions.Exit(1)


@click.command()
@options.json_file
@click.option("--quick", is_flag=True, help="Fewer repetitions.")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Another checkout: ratios of times new / old, from interleaved pairs.",
)
@click.option("--pairs", type=click.IntRange(3), help="Of --against.  [default: 15; 3 with --quick]")
@click.option(
    "--peers",
    is_flag=True,
    help="Fit, predict and memory beside CatBoost, LightGBM, NGBoost and bayesian-torch at growing sizes, "
    "with a page of curves beside the file of --json; the same command resumes.",
)
def bench(json_path: Path | None, quick: bool, against: Path | None, pairs: int | None, peers: bool) -> None:
    """Measure speed and memory.

    Example: compound bench --quick --json speed.json
    """
    options.check_outputs(json_path=json_path)
    if peers:
        from compound.bench.peers import main as measure_peers

        measure_peers(json_path, quick)
        return
    if against is not None:
        from compound.bench.against import main as compare

        compare(against, json_path, quick, pairs)
        return
    from compound.bench.speed import main as measure

    measure(json_path, quick)


COMMANDS = (run, demo, status, report, bench)


def _split_names(text: str) -> list[str]:
    """Names separated by commas, as a list."""
    return [name.strip() for name in text.split(",") if name.strip()]


@contextmanager
def _executor(address: str | None, cores: int, storage: str | None, jobs: int | None) -> Iterator[Any]:
    """Context: what performs the runs on a Ray cluster; None without an address."""
    if address is None:
        yield None
        return
    from compound.experiments import memory_of
    from compound.ray import cluster
    from compound.ray.grid import RayExecutor
    from compound.ray.storage import Storage

    files = Storage(storage) if storage else None
    if files:
        files.check()
    with cluster.connected(address, jobs and jobs * cores) as ray:
        yield RayExecutor(ray, memory_of, cores, files)


@contextmanager
def _exit_on_interrupt() -> Iterator[None]:
    """Context: Ctrl-C and SIGTERM exit with the message that the same command resumes, not a traceback."""
    try:
        yield
    except KeyboardInterrupt as error:
        click.echo("stopped: the same command resumes", err=True)
        raise click.exceptions.Exit(exit_code(error)) from None


def _publish(
    results: list[Any], failures: list[Any], out: Path, title: str, json_path: Path | None = None
) -> None:
    """Write the page and JSON file of finished runs, and print their claims; exit code 1 if a run failed."""
    from compound.experiments.pages import publish, save_summary

    claims = publish(results, out, title, failures)
    if json_path:
        save_summary(json_path, results, claims, failures)
    for claim in claims:
        value = "no value" if claim.value is None else f"{claim.value:.4g}"
        mark = "ok  " if claim.held else "MISS"
        click.echo(f"{mark} {claim.claim}: {value} ({claim.sense} {claim.limit:g})")
    click.echo(f"page: {out / 'index.html'}")
    for failure in failures:
        click.echo(f"failed: {failure.run}: {failure.reason}", err=True)
    if failures:
        raise click.exceptions.Exit(1)
