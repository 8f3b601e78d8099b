"""Commands that list what is available: data sets and methods."""

from pathlib import Path
from typing import Any

import click

from compound.cli import options

MAX_WIDTH = 120  # characters of a line
INDENT = 15  # characters before the description of a method
LEGEND = (
    "Components of the predictive uncertainty: component, noise given the network; mixing, variation over "
    "networks at one input; posterior, the epistemic part that more data would reduce. Every method also "
    "takes far=3.0, which adds epistemic uncertainty far from the training data. An option that is None "
    "depends on the task. compound methods NAME explains the options."
)


@click.group()
def data() -> None:
    """List data sets, and download those that are missing.

    Example: compound data list
    """


@data.command("list")
@options.data_dir
def data_list(data_dir: Path | None) -> None:
    """Show every data set and where its files are.

    Example: compound data list --data-dir ~/data
    """
    from rich.console import Console
    from rich.table import Table

    from compound.datasets.fetch import listing

    table = Table("data set", "description", "files", "location")
    for state in listing(data_dir):
        advice = f"compound data fetch {state.name}" if state.fetchable else "missing, no download"
        files = f"{state.n_found} of {state.n_files}"
        table.add_row(state.name, state.description, files, state.folder or advice)
    Console().print(table)


@data.command("fetch")
@click.argument("name")
@options.data_dir
def data_fetch(name: str, data_dir: Path | None) -> None:
    """Download a data set from its publisher and verify its checksums.

    Example: compound data fetch mnist
    """
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from compound.datasets.fetch import fetch

    columns = (TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, Any] = {}

        def callback(path: str, n_bytes: int, total: int) -> None:
            if path not in tasks:
                tasks[path] = progress.add_task(path)
            progress.update(tasks[path], completed=n_bytes, total=total or None)

        paths = fetch(name, data_dir, callback)
    click.echo("\n".join(str(path) for path in paths) or f"{name} is complete")


@click.command()
@click.argument("name", required=False)
def methods(name: str | None) -> None:
    """List the methods, or the options of one.

    Example: compound methods vmg
    """
    from compound.models.listing import entries, entry

    for method in entries() if name is None else [entry(name)]:
        click.echo(f"{method.name:<{INDENT}}{method.description} {method.reference}")
        tasks = f"tasks: classification, regression; components: {', '.join(method.components)}"
        click.echo(_wrap(tasks, INDENT))
        if name is None:
            defaults = ", ".join(f"{option.name}={option.default}" for option in method.options)
            click.echo(_wrap(defaults, INDENT))
        else:
            for option in method.options:
                click.echo(f"  {option.name:<18}{option.default!s:<12} {option.description}")
    if name is None:
        click.echo(_wrap(LEGEND, 0))


def _wrap(text: str, indent: int) -> str:
    """Text wrapped to the width of the terminal, every line indented by `indent` spaces."""
    import shutil
    import textwrap

    width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    margin = " " * indent
    return textwrap.fill(text, width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)


COMMANDS = (data, methods)
