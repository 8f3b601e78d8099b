"""The command: arguments in, calls out. Heavy imports wait inside the commands, so that help comes at once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from compound import __version__


class Refused(click.ClickException):
    """Input that cannot be worked with: one sentence, exit code 2."""

    exit_code = 2


class Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ValueError as error:
            raise Refused(str(error)) from error
        except OSError as error:
            raise Refused(f"{error.filename or 'a file'}: {error.strerror or error}") from error


def _directory(name: str, default: str | None, words: str, env: str | None = None) -> Callable[[Any], Any]:
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option(name, type=kind, default=default, envvar=env, show_default=default is not None, help=words)


_file = click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Also write all numbers to this file.")
_runs = _directory("--runs", "runs", "Where runs are kept; a finished one is never repeated.")
_data_dir = _directory("--data-dir", None, "Folder of the data sets.  [env: COMPOUND_DATA]", env="COMPOUND_DATA")
_processes = click.option("--processes", type=click.IntRange(1), help="Worker processes.  [default: one per core]")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="compound")
def main() -> None:
    """Predictive uncertainty with compound density networks.

    Example: compound demo
    """


@main.command()
@click.argument("name")
@click.option("--preset", default="quick", show_default=True, help="quick, or paper: as long as in the paper.")
@click.option("--seeds", type=int, help="How many repetitions.  [default: the experiment's own]")
@click.option("--methods", default="", help="These, with commas between, or all.  [default: the experiment's own]")
@_directory("--out", "report", "The page goes to NAME/index.html in here.")
@_runs
@_file
@_data_dir
@_processes
def run(
    name: str,
    preset: str,
    seeds: int | None,
    methods: str,
    out: Path,
    runs: Path,
    json_path: Path | None,
    data_dir: Path | None,
    processes: int | None,
) -> None:
    """Work through an experiment and draw its page.

    toy, digits, ood-mnist, ood-fashion, fgsm-mnist, fgsm-fashion, fgsm-samples, fgsm-strong

    Example: compound run toy --preset paper --seeds 3
    """
    from compound.bench import experiments

    asked = [word.strip() for word in methods.split(",") if word.strip()]
    results = experiments.perform_all(experiments.plan(name, preset, seeds, asked), runs, data_dir, processes)
    bars = experiments.publish(results, out / name)
    if json_path:
        experiments.save_summary(json_path, experiments.summary(results, bars))
    _tell(bars, out / name / "index.html")


@main.command()
@_directory("--out", "report", "The page goes to index.html in here.")
@_runs
@_processes
def demo(out: Path, runs: Path, processes: int | None) -> None:
    """Two small experiments on one page, in about two minutes: doubt about numbers, doubt about pictures.

    Example: compound demo --out report
    """
    from compound.bench import experiments

    planned = [*experiments.plan("toy", "quick", 1), *experiments.plan("digits", "quick", 1)]
    results = experiments.perform_all(planned, runs, None, processes)
    _tell(experiments.publish(results, out, "What a compound density network knows, and what it does not"), out / "index.html")


@main.command()
@_file
@click.option("--quick", is_flag=True, help="Fewer repetitions.")
def bench(json_path: Path | None, quick: bool) -> None:
    """Measure speed and memory.

    Example: compound bench --quick --json speed.json
    """
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

    from compound.data.fetch import listing

    table = Table("set", "what", "files", "where")
    for state in listing(data_dir):
        missing = "compound data fetch " + state.name if state.fetchable else "to be put there by hand"
        table.add_row(state.name, state.words, f"{state.found} of {state.files}", state.where or missing)
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

    from compound.data.fetch import fetch

    with Progress(TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn(), console=Console(stderr=True)) as progress:
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
        return textwrap.fill(words, width, initial_indent=" " * indent, subsequent_indent=" " * indent, break_on_hyphens=False)

    for found in entries() if name is None else [entry(name)]:
        click.echo(f"{found.name:<15}{found.words} {found.source}")
        click.echo(lines(f"tasks: classes, targets; captures: {', '.join(found.shares)}", 15))
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


def _tell(bars: list[Any], page: Path) -> None:
    for bar in bars:
        value = "no number" if bar.value is None else f"{bar.value:.4g}"
        click.echo(f"{'ok  ' if bar.held else 'MISS'} {bar.claim}: {value} ({bar.sense} {bar.limit:g})")
    click.echo(f"page: {page}")
