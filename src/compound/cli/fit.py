"""The command that fits a model to a table."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from compound.cli import options
from compound.cli.display import row_progress

KINDS = ("gaussian", "student-t", "log-normal", "weibull", "poisson", "negative-binomial")  # see estimators
LABEL = 16  # width in characters of the first column of the summary


@click.command()
@options.table
@click.option(
    "--target",
    "targets",
    required=True,
    multiple=True,
    metavar="COLUMN",
    help="The column to predict; may be repeated to predict several numbers.",
)
@click.option(
    "--target-kind",
    type=click.Choice(["auto", *KINDS, "ordinal"]),
    default="auto",
    show_default=True,
    help="The distribution of the target; auto proposes one from the column.",
)
@click.option("--event", metavar="COLUMN", help="For times: 1 where the event was observed, 0 if censored.")
@click.option("--group", metavar="COLUMN", help="Groups, each with the promised coverage of its own.")
@click.option("--time", metavar="COLUMN", help="Order of the rows: the newest calibrate and judge.")
@click.option("--weight", metavar="COLUMN", help="How much a row counts, in training and calibration.")
@click.option(
    "--class-weight",
    type=click.Choice(["balanced"]),
    help="Weigh classes as if they were equally frequent.",
)
@click.option(
    "--task",
    type=click.Choice(["auto", "regression", "classification"]),
    default="auto",
    show_default=True,
    help="The task; auto infers it from the target.",
)
@click.option(
    "--method", default="", help="A name listed by `compound methods`.  [default: that of the estimators]"
)
@click.option(
    "--option",
    "method_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the method, such as lam=1e-4; may be repeated.",
)
@click.option("--drop", multiple=True, metavar="COLUMN", help="Column to leave out, unread; may be repeated.")
@click.option(
    "--keep",
    multiple=True,
    metavar="COLUMN",
    help="Column to use although it seems to name the rows: of 100 rows or more, text with no value twice, "
    "or integers that rise from row to row (years and dates aside). May be repeated.",
)
@click.option("--out", type=options.path, help="Directory of the model.  [default: TABLE.model]")
@click.option(
    "--held-out",
    "test_fraction",
    type=float,
    default=0.1,
    show_default=True,
    help="Fraction of rows held out as test set.",
)
@click.option(
    "--epochs",
    "max_epochs",
    type=click.IntRange(1),
    help="Maximal number of epochs.  [default: set by the number of rows]",
)
@click.option("--batch-size", type=click.IntRange(1), help="Rows per step.  [default: 100 or 200]")
@click.option(
    "--false-alarms",
    "false_positive_rate",
    type=float,
    default=0.01,
    show_default=True,
    help="False positive rate of is_ood: fraction of in-distribution rows that are flagged.",
)
@click.option("--stream", is_flag=True, help="Read TABLE in a stream even if it fits in memory.")
@click.option(
    "--checkpoint", type=options.path, help="A file to save progress to; an interrupted fit goes on from it."
)
@options.seed
@options.ray
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Processes on Ray.")
@click.option("--cores", type=click.IntRange(1), default=1, show_default=True, help="Of each worker on Ray.")
def fit(
    table: Path,
    out: Path | None,
    method_options: tuple[str, ...],
    ray_address: str | None,
    workers: int,
    cores: int,
    **request: Any,
) -> None:
    """Fit a model that predicts a column of TABLE (.csv, .tsv, .parquet; csv and tsv may end in .gz).

    TABLE may be larger than memory, and a folder of parquet files: it is then read in a stream, and an
    interrupted fit goes on when the command is given again.

    Some rows are held out to evaluate the model. The summary, with figures and the rows of highest OOD score,
    is also in report.html in the model's directory.

    Several processes fit together when torchrun starts them: torchrun --nproc-per-node 2 -m compound fit ...
    With --ray they are workers of a Ray cluster, whose nodes share the folders of TABLE and of the model.

    Example: compound fit houses.csv --target price
    """
    from compound.tables.fit_command import prepare
    from compound.tables.fitting import FitRequest
    from compound.tables.roles import Roles
    from compound.train.processes import torchrun

    out = out or Path(f"{options.stem(table)}.model")
    request["target"], *more = request.pop("targets")
    columns = {name: request.pop(name) for name in ("event", "group", "time", "weight")}
    request["roles"] = Roles(tuple(more), **columns)
    parsed = tuple(_parse_option(text) for text in method_options)
    command = prepare(table, out, FitRequest(options=parsed, **request))
    if ray_address:
        from compound.ray.train import fit_on_ray

        summary = fit_on_ray(ray_address, workers, cores, command)
    else:
        with ExitStack() as stack:
            processes = stack.enter_context(torchrun())
            progress = stack.enter_context(row_progress("rows read", show=processes.is_first))
            callback = stack.enter_context(row_progress("rows evaluated", show=processes.is_first))
            summary = command.run(processes, callback, progress)
    for name, text in summary:
        click.echo(f"{name:<{LABEL}} {text}")


def _parse_option(text: str) -> tuple[str, Any]:
    """Name and value of NAME=VALUE; the value is parsed as JSON (lists become tuples), else kept as text."""
    import json

    name, sign, value = text.partition("=")
    if not sign or not name or name in ("name", "self"):  # the name of a method is given by --method
        raise ValueError(f"--option is {text!r}: write NAME=VALUE, such as lam=1e-4")
    try:
        parsed = json.loads(value)
    except ValueError:
        return name, value
    except RecursionError as error:
        raise ValueError(
            f"--option {name} is nested too deeply: write NAME=VALUE, such as lam=1e-4"
        ) from error
    return name, tuple(parsed) if isinstance(parsed, list) else parsed
