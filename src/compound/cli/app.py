"""The command: arguments in, calls out. Heavy imports wait inside the commands, so that help comes at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from compound import __version__
from compound.cli import tables as cli_tables
from compound.cli.errors import Commands, exit_code


def _directory(name: str, default: str | None, words: str, env: str | None = None) -> Callable[[Any], Any]:
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option(
        name, type=kind, default=default, envvar=env, show_default=default is not None, help=words
    )


_file = click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write all numbers to this file.",
)
_runs = _directory("--runs", "runs", "Where runs are kept; a finished one is never repeated.")
_data_dir = _directory(
    "--data-dir", None, "Folder of the data sets.  [env: COMPOUND_DATA]", env="COMPOUND_DATA"
)
_jobs = click.option(
    "--jobs",
    type=click.IntRange(1),
    help="Runs at once; each takes its share of the cores.  [default: one per core]",
)
_preset = click.option(
    "--preset", default="quick", show_default=True, help="quick, or paper: as long as in the paper."
)
_seeds = click.option("--seeds", type=int, help="How many repetitions.  [default: the experiment's own]")
_methods = click.option(
    "--methods", default="", help="These, with commas between, or all.  [default: the experiment's own]"
)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="compound")
def main() -> None:
    """Predictive uncertainty with compound density networks.

    Example: compound demo
    """


for _command in cli_tables.COMMANDS:
    main.add_command(_command)


@main.command()
@click.argument("name")
@_preset
@_seeds
@_methods
@click.option(
    "--select",
    is_flag=True,
    help="First choose λ of ml-cdn by validation accuracy, from five fits of each form.",
)
@_directory("--out", "report", "The page goes to NAME/index.html in here.")
@_runs
@_file
@_data_dir
@_jobs
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
) -> None:
    """Work through an experiment and draw its page.

    toy, digits, ood-mnist, ood-fashion, fgsm-mnist, fgsm-fashion, fgsm-samples, fgsm-strong,
    fgsm-cifar, uci

    Finished runs are read, not repeated; after Ctrl-C, a crash or a power cut the same command goes on where it was. A run that
    fails is shown with its reason and takes no other down: the page is drawn from the rest, and the exit code is 1.

    Example: compound run toy --preset paper --seeds 3 --jobs 2
    """
    from compound import experiments
    from compound.experiments.ood.select import Selection, select_lambda

    planned = experiments.plan(name, preset, seeds, _words(methods))
    _check_outputs(out / name, runs, json_path=json_path)
    experiments.check_data(planned, runs, data_dir)
    with _resumable():
        selection = select_lambda(planned, preset, runs, data_dir, jobs) if select else Selection(planned, [])
        grid = experiments.run_grid(selection.runs, runs, data_dir, jobs)
    _show([*grid.results, *selection.results], grid.failures, out / name, "", json_path)


@main.command()
@_directory("--out", "report", "The page goes to index.html in here.")
@_runs
@_jobs
def demo(out: Path, runs: Path, jobs: int | None) -> None:
    """Two small experiments on one page, in about two minutes: doubt about numbers, doubt about pictures.

    Example: compound demo --out report
    """
    from compound import experiments

    _check_outputs(out, runs)
    planned = [*experiments.plan("toy", "quick", 1), *experiments.plan("digits", "quick", 1)]
    with _resumable():
        grid = experiments.run_grid(planned, runs, None, jobs)
    _show(grid.results, grid.failures, out, "What a compound density network knows, and what it does not")


@main.command()
@click.argument("name", required=False)
@_preset
@_seeds
@_methods
@_runs
def status(name: str | None, preset: str, seeds: int | None, methods: str, runs: Path) -> None:
    """Show which runs are done, running (how far, how fast, how long still), failed (why) and waiting.

    With the NAME of an experiment: its whole grid, as `compound run` with the same options would work through it. Without: every
    run that is found.

    Example: compound status ood-mnist --preset paper --seeds 3
    """
    from rich.console import Console

    from compound import experiments
    from compound.experiments.status import find_runs, run_states, state_tables

    planned = find_runs(runs) if name is None else experiments.plan(name, preset, seeds, _words(methods))
    for table in state_tables(run_states(planned, runs)):
        Console().print(table)


@main.command()
@_runs
@_directory("--out", "report", "The page goes to index.html in here.")
@click.option(
    "--preset", default="", help="Only runs of this one: quick or paper.  [default: both, apart, paper first]"
)
def report(runs: Path, out: Path, preset: str) -> None:
    """One page from all finished runs in a folder: every figure and table, and what agrees with the paper.

    Nothing is trained. Runs of different presets are never mixed. The data of each figure lie beside the page as csv.

    Example: compound report --runs runs --out report
    """
    from compound.experiments.overview import overview

    _check_outputs(out)
    made = overview(runs, out, preset)
    for line in made.errors:
        click.echo(line, err=True)
    click.echo(f"page: {out / 'index.html'} ({made.runs} runs)")
    if made.errors:
        raise click.exceptions.Exit(1)


@main.command()
@_file
@click.option("--quick", is_flag=True, help="Fewer repetitions.")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Another checkout: ratios of times new / old, from interleaved pairs.",
)
@click.option("--pairs", type=click.IntRange(3), help="Of --against.  [default: 15; 3 with --quick]")
def bench(json_path: Path | None, quick: bool, against: Path | None, pairs: int | None) -> None:
    """Measure speed and memory.

    Example: compound bench --quick --json speed.json
    """
    _check_outputs(json_path=json_path)
    if against is not None:
        from compound.bench.against import main as compare

        compare(against, json_path, quick, pairs)
        return
    from compound.bench.speed import main as measure

    measure(json_path, quick)


@main.group()
def data() -> None:
    """See which data sets are here, and get those that are not.

    Example: compound data list
    """


@data.command("list")
@_data_dir
def data_list(data_dir: Path | None) -> None:
    """Show every data set and where it was found.

    Example: compound data list --data-dir ~/data
    """
    from rich.console import Console
    from rich.table import Table

    from compound.datasets.fetch import listing

    table = Table("set", "what", "files", "where")
    for state in listing(data_dir):
        missing = "compound data fetch " + state.name if state.fetchable else "to be put there by hand"
        files = f"{state.n_found} of {state.n_files}"
        table.add_row(state.name, state.description, files, state.folder or missing)
    Console().print(table)


@data.command("fetch")
@click.argument("name")
@_data_dir
def data_fetch(name: str, data_dir: Path | None) -> None:
    """Get a data set from its makers, checked by its checksums.

    Example: compound data fetch mnist
    """
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from compound.datasets.fetch import fetch

    with Progress(
        TextColumn("{task.description}"),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
    ) as progress:
        tasks: dict[str, Any] = {}

        def watch(path: str, done: int, size: int) -> None:
            if path not in tasks:
                tasks[path] = progress.add_task(path)
            progress.update(tasks[path], completed=done, total=size or None)

        got = fetch(name, data_dir, watch)
    click.echo("\n".join(str(path) for path in got) or f"{name} is here already")


@main.command()
@click.argument("name", required=False)
def methods(name: str | None) -> None:
    """List the methods, or the options of one.

    Example: compound methods vmg
    """
    import shutil
    import textwrap

    from compound.models.listing import entries, entry

    width = min(shutil.get_terminal_size().columns, 120)

    def lines(words: str, indent: int) -> str:
        return textwrap.fill(
            words, width, initial_indent=" " * indent, subsequent_indent=" " * indent, break_on_hyphens=False
        )

    for found in entries() if name is None else [entry(name)]:
        click.echo(f"{found.name:<15}{found.words} {found.source}")
        click.echo(lines(f"tasks: classes, targets; captures: {', '.join(found.components)}", 15))
        if name is None:
            click.echo(lines(", ".join(f"{option.name}={option.default}" for option in found.options), 15))
    if name is not None:
        for option in entry(name).options:
            click.echo(f"  {option.name:<18}{option.default!s:<12} {option.words}")
        return
    click.echo(
        lines(
            "component: noise given the network; mixing: spread over networks at one input; posterior: what more data would settle. "
            "Every method takes far=3.0 besides, doubt about inputs far from the training data. An option that is None is chosen by the "
            "task. compound methods NAME explains the options.",
            0,
        )
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _check_outputs(*folders: Path, json_path: Path | None = None) -> None:
    """Before the work whose results they are for."""
    from compound.io.paths import check_folder, check_writable

    for folder in folders:
        check_folder(folder)
    if json_path:
        check_writable(json_path)


@contextmanager
def _resumable() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the command in a sentence."""
    try:
        yield
    except KeyboardInterrupt as error:
        click.echo("stopped: the same command goes on where it was", err=True)
        raise click.exceptions.Exit(exit_code(error)) from None


def _show(
    results: list[Any], failures: list[Any], out: Path, title: str, json_path: Path | None = None
) -> None:
    """The page, the numbers, the last words; exit code 1 where a run failed."""
    from compound.experiments.pages import publish, save_summary

    claims = publish(results, out, title, failures)
    if json_path:
        save_summary(json_path, results, claims, failures)
    for claim in claims:
        value = "no number" if claim.value is None else f"{claim.value:.4g}"
        click.echo(
            f"{'ok  ' if claim.held else 'MISS'} {claim.claim}: {value} ({claim.sense} {claim.limit:g})"
        )
    click.echo(f"page: {out / 'index.html'}")
    for failure in failures:
        click.echo(f"failed: {failure.run}: {failure.reason}", err=True)
    if failures:
        raise click.exceptions.Exit(1)
