"""The command for people with a table: fit, predict, evaluate, explain, export. Arguments in, calls out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

_path = click.Path(path_type=Path)
_table = click.argument("table", type=_path)
_model = click.argument("model", type=_path)
_coverage = click.option(
    "--coverage",
    type=float,
    default=0.9,
    show_default=True,
    help="Of the intervals, or of the sets of classes.",
)
_seed = click.option("--seed", type=int, default=0, show_default=True, help="Of all random choices.")


@click.command()
@_table
@click.option("--target", required=True, help="The column to predict.")
@click.option(
    "--task",
    type=click.Choice(["auto", "regression", "classification"]),
    default="auto",
    show_default=True,
    help="Numbers or classes.",
)
@click.option(
    "--method", default="", help="A name that `compound methods` lists.  [default: that of the estimators]"
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of the method, such as lam=1e-4; may be repeated.",
)
@click.option("--drop", multiple=True, metavar="COLUMN", help="Leave a column out; may be repeated.")
@click.option("--out", type=_path, help="Folder of the model.  [default: TABLE.model]")
@click.option(
    "--held-out",
    type=float,
    default=0.1,
    show_default=True,
    help="Part of the rows that the model is judged on.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1),
    help="At most so many passes over the rows.  [default: chosen by the number of rows]",
)
@click.option(
    "--false-alarms",
    type=float,
    default=0.01,
    show_default=True,
    help="Share of ordinary rows that is_ood may flag.",
)
@_seed
def fit(
    table: Path,
    target: str,
    task: Any,
    method: str,
    options: tuple[str, ...],
    drop: tuple[str, ...],
    out: Path | None,
    held_out: float,
    epochs: int | None,
    false_alarms: float,
    seed: int,
) -> None:
    """Learn to predict a column of TABLE (.csv, .tsv, .parquet; csv and tsv may end in .gz).

    Some rows are held out, and the model is judged on them. The summary, with pictures and the strangest rows, is also in
    report.html in the folder of the model.

    Example: compound fit houses.csv --target price
    """
    from compound.tables.fitting import FitRequest, check_model_path, fit_table, save
    from compound.tables.pages import fit_page, summary

    out = out or Path(f"{_stem(table)}.model")
    check_model_path(out)
    wish = FitRequest(
        target,
        task,
        method,
        tuple(_option(text) for text in options),
        drop,
        held_out,
        epochs,
        false_alarms,
        seed,
    )
    with _counting("rows judged") as watch:
        fitted = fit_table(table, wish, watch)
    save(fitted, out, fit_page(fitted).html())
    for name, words in summary(fitted):
        click.echo(f"{name:<16} {words}")
    click.echo(f"{'model':<16} {out}\n{'report':<16} {out / 'report.html'}")


@click.command()
@_model
@_table
@click.option(
    "--out",
    type=_path,
    help="A .csv, .tsv (or those with .gz) or .parquet file.  [default: TABLE.predicted.csv]",
)
@_coverage
@click.option("--only", is_flag=True, help="Leave the table's own columns out.")
def predict(model: Path, table: Path, out: Path | None, coverage: float, only: bool) -> None:
    """Answer every row of TABLE; tables of any length take the same memory.

    Numbers: mean, std, lower, upper. Classes: class, probability, set. Both: aleatoric and epistemic doubt, ood_score and is_ood.

    Example: compound predict houses.model new.csv --out answers.csv
    """
    from compound.tables.reading import load_estimator
    from compound.tables.streaming import predict as stream

    out = out or Path(f"{_stem(table)}.predicted.csv")
    with _counting("rows") as watch:
        told = stream(load_estimator(model), table, out, coverage, only, watch)
    speed = told.rows / max(told.seconds, 1e-9)
    click.echo(
        f"{told.rows:,} rows, {told.n_ood:,} of them strange, {told.seconds:.1f} s, {speed:,.0f} rows/s: {out}"
    )


@click.command()
@_model
@_table
@click.option(
    "--ood", type=_path, help="Another table, of rows unlike those learnt from: how well are they told apart?"
)
@click.option("--target", help="The column with the truth.  [default: the one that was learnt]")
@click.option(
    "--slice",
    "columns",
    multiple=True,
    metavar="COLUMN",
    help="Show all slices of a column; may be repeated.  [default: the worst of all]",
)
@click.option("--out", type=_path, help="Also write a page (.html), with pictures and all slices.")
@click.option("--json", "json_path", type=_path, help="Also write all numbers to this file.")
@_seed
def evaluate(
    model: Path,
    table: Path,
    ood: Path | None,
    target: str | None,
    columns: tuple[str, ...],
    out: Path | None,
    json_path: Path | None,
    seed: int,
) -> None:
    """Compare a model's answers for TABLE with the truth in it.

    Every number comes with its 95% interval. Slices are the rows with one value of a column, or with values in one of
    five ranges: is the model as honest there?

    Example: compound evaluate houses.model test.csv --ood boats.csv --slice city
    """
    from compound.io.paths import check_writable
    from compound.tables.evaluating import evaluate as judged

    for path in (out, json_path):
        if path:
            check_writable(path)
    with _counting("rows judged") as watch:
        found = judged(model, table, ood, target, columns, seed, watch)
    if out:
        found.write_page(out)
    if json_path:
        found.write_json(json_path)
    for title, heads, rows in found.tables():
        _print(title, heads, rows)


@click.command()
@_model
@_table
@click.option("--row", type=click.IntRange(1), required=True, help="Which one, counted from 1.")
@click.option("--out", type=_path, help="A page (.html) or picture (.png).  [default: TABLE.row-N.html]")
@_seed
def explain(model: Path, table: Path, row: int, out: Path | None, seed: int) -> None:
    """Show which columns make a row of TABLE strange, and its answer doubtful.

    Beside each value stands that of the nearest prototype, the mean of rows that the model learnt from.

    Example: compound explain houses.model new.csv --row 17
    """
    from compound.tables.explain_report import check_output, tables, write
    from compound.tables.explaining import explain_row

    out = out or Path(f"{_stem(table)}.row-{row}.html")
    check_output(out)
    found = explain_row(model, table, row, seed)
    write(found, f"Row {row} of {table.name}", out)
    for title, heads, rows in tables(found):
        _print(title, heads, rows)
    click.echo(f"page: {out}" if out.suffix == ".html" else f"picture: {out}")


@click.command()
@_model
@click.option("--out", type=_path, help="The program.  [default: MODEL.pt2]")
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="How many rows the program takes at a time.",
)
def export(model: Path, out: Path | None, rows: int) -> None:
    """Write a model as a torch.export program, for serving without this library.

    Example: compound export houses.model --out houses.pt2
    """
    from compound.estimators import load
    from compound.estimators.export import export as write
    from compound.io.paths import check_writable

    out = out or Path(f"{_stem(model)}.pt2")
    check_writable(out)
    write(load(model), out, rows)
    click.echo(f"program: {out}")


COMMANDS = (fit, predict, evaluate, explain, export)


def _stem(path: Path) -> str:
    """houses.csv.gz -> houses"""
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]


def _option(text: str) -> tuple[str, Any]:
    """lam=1e-4, widths=[50,50] -> a name and a value."""
    import json

    name, sign, value = text.partition("=")
    if not sign or not name or name in ("name", "self"):  # the method itself has --method
        raise ValueError(f"--option is {text!r}: write NAME=VALUE, such as lam=1e-4")
    try:
        found = json.loads(value)
    except ValueError:
        return name, value
    except RecursionError as error:
        raise ValueError(
            f"--option {name} is a list within a list within a list: write NAME=VALUE, such as lam=1e-4"
        ) from error
    return name, tuple(found) if isinstance(found, list) else found


def _print(title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from compound.report.page import shown

    table = Table(*heads, title=Text(title), title_justify="left")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    Console().print(table)


@contextmanager
def _counting(what: str) -> Iterator[Callable[[int], None]]:
    """How many, and how many per second, on stderr; work of less than two seconds stays silent."""
    import time

    from rich import progress
    from rich.console import Console

    words = progress.TextColumn("{task.completed:,.0f} " + what + "  {task.fields[speed]:,.0f}/s")
    drawing = progress.Progress(
        progress.SpinnerColumn(), words, console=Console(stderr=True), transient=True, auto_refresh=False
    )
    task = drawing.add_task(what, total=None, speed=0.0)
    begin = last = 0.0

    def watch(done: int) -> None:
        nonlocal begin, last
        now = time.monotonic()
        begin = begin or now
        if now - begin > 2 and now - last > 0.2:
            drawing.start()
            drawing.update(task, completed=done, speed=done / (now - begin), refresh=True)
            last = now

    try:
        yield watch
    finally:
        drawing.stop()
