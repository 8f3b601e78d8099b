"""Commands for table files: fit, predict, evaluate, explain, export."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from compound.cli import options
from compound.cli.display import print_tables, row_progress

_path = click.Path(path_type=Path)
_table = click.argument("table", type=_path)
_model = click.argument("model", type=_path)
KINDS = ("gaussian", "student-t", "log-normal", "weibull", "poisson", "negative-binomial")  # see estimators
LABEL = 16  # width in characters of the first column of the summary


@click.command()
@_table
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
@click.option("--out", type=_path, help="Directory of the model.  [default: TABLE.model]")
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
    "--checkpoint", type=_path, help="A file to save progress to; an interrupted fit goes on from it."
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

    out = out or Path(f"{_stem(table)}.model")
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


@click.command()
@_model
@click.argument("source", metavar="TABLE")
@click.option(
    "--out",
    "target",
    metavar="PATH",
    help="A .csv, .tsv (also .gz) or .parquet file; for a folder, a folder.  [default: TABLE.predicted.csv]",
)
@click.option(
    "--coverage",
    type=float,
    default=0.9,
    show_default=True,
    help="Coverage of the prediction intervals or sets.",
)
@click.option("--only", is_flag=True, help="Write the predictions without the columns of TABLE.")
@options.ray
def predict(
    model: Path, source: str, target: str | None, coverage: float, only: bool, ray_address: str | None
) -> None:
    """Predict every row of TABLE; tables of any length take the same memory.

    For a folder of parquet files a folder of files with predictions is written. What an interrupted run has
    done is kept, and the same command goes on with the rest.

    Regression: mean, std, lower, upper, for several targets as mean(price) and so on; times until an event
    also have median and p(>30), the probability of none until then. Classification: class, probability, set.
    Both: aleatoric and epistemic uncertainty, ood_score and is_ood.

    With --ray, TABLE is a Parquet file, a folder of them, or a pattern in quotes, also at a URL such as
    s3://bucket/new. The answers are files of the same names in another folder; the same command goes on
    where it was stopped.

    Example: compound predict houses.model new.csv --out predictions.csv
    """
    if ray_address is not None:
        _predict_on_ray(model, source, target, coverage, only, ray_address)
        return
    from compound.tables.model_inputs import load_estimator
    from compound.tables.predicting_folders import predict_folder
    from compound.tables.streaming import predict_file

    table = Path(source)
    is_folder = table.is_dir()
    out = Path(target or (f"{table.name}.predicted" if is_folder else f"{_stem(table)}.predicted.csv"))
    run = predict_folder if is_folder else predict_file
    with row_progress("rows") as callback:
        summary = run(load_estimator(model), table, out, coverage, only, callback)
    _echo_summary(summary, out)


@click.command()
@_model
@_table
@click.option("--ood", type=_path, help="A table of out-of-distribution rows, to measure their detection.")
@click.option("--target", help="The column with the true values.  [default: that of the fit]")
@click.option(
    "--by",
    "--slice",
    "slice_names",
    multiple=True,
    metavar="COLUMN",
    help="Show all slices of a column of TABLE, also of one that the model does not read; may be repeated.  "
    "[default: those of lowest coverage]",
)
@click.option("--out", type=_path, help="Also write a page (.html) with figures and all slices.")
@click.option("--json", "json_path", type=_path, help="Also write all results to this file.")
@options.seed
def evaluate(
    model: Path,
    table: Path,
    ood: Path | None,
    target: str | None,
    slice_names: tuple[str, ...],
    out: Path | None,
    json_path: Path | None,
    seed: int,
) -> None:
    """Compare a model's predictions for TABLE with the true values in it.

    Metrics have 95% confidence intervals. A slice is the set of rows with one value of a column, or with
    values in one of five quantile bins: slices show where the model is badly calibrated. Those of fewer than
    30 rows are not ranked.

    Example: compound evaluate houses.model test.csv --ood boats.csv --by city --out test.html
    """
    from compound.io.paths import check_writable
    from compound.tables.evaluating import evaluate as evaluate_table

    for path in (out, json_path):
        if path:
            check_writable(path)
    with row_progress("rows evaluated") as callback:
        evaluation = evaluate_table(model, table, ood, target, slice_names, seed, callback)
    if out:
        evaluation.write_page(out)
    if json_path:
        evaluation.write_json(json_path)
    print_tables(evaluation.tables())


@click.command()
@_model
@_table
@click.option("--out", type=_path, help="Directory of the adapted model.  [default: MODEL]")
def recalibrate(model: Path, table: Path, out: Path | None) -> None:
    """Adapt intervals or sets to the rows of TABLE, whose truth has arrived, in their order.

    By adaptive conformal inference: coverage stays as promised though the data drift. The network stays as
    it is.

    Example: compound recalibrate houses.model march.csv
    """
    from compound.tables.recalibrating import recalibrate_model

    done = recalibrate_model(model, table, out)
    skipped = f", {done.left_out:,} without a target left out" if done.left_out else ""
    click.echo(f"{done.rows:,} rows{skipped}, {done.covered:.1%} in the 90% sets before: {out or model}")


@click.command()
@_model
@_table
@click.option("--row", type=click.IntRange(1), required=True, help="Row number, from 1.")
@click.option("--out", type=_path, help="A page (.html) or figure (.png).  [default: TABLE.row-N.html]")
@options.seed
def explain(model: Path, table: Path, row: int, out: Path | None, seed: int) -> None:
    """Show what each column contributes to the OOD score and epistemic uncertainty of a row of TABLE.

    Each value is shown beside that of the nearest prototype, a cluster centre of the training rows.

    Example: compound explain houses.model new.csv --row 17
    """
    from compound.tables.explain_report import check_output, explanation_tables, write_explanation
    from compound.tables.explaining import explain_row

    out = out or Path(f"{_stem(table)}.row-{row}.html")
    check_output(out)
    explanation = explain_row(model, table, row, seed)
    write_explanation(explanation, f"Row {row} of {table.name}", out)
    print_tables(explanation_tables(explanation))
    click.echo(f"page: {out}" if out.suffix == ".html" else f"figure: {out}")


@click.command()
@_model
@click.option("--out", type=_path, help="The exported program.  [default: MODEL.pt2]")
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Batch size of the program.",
)
def export(model: Path, out: Path | None, rows: int) -> None:
    """Write a model as a torch.export program, for serving without this library.

    Example: compound export houses.model --out houses.pt2
    """
    from compound.estimators import load
    from compound.estimators.export import export as export_program
    from compound.io.paths import check_writable

    out = out or Path(f"{_stem(model)}.pt2")
    check_writable(out)
    export_program(load(model), out, rows)
    click.echo(f"program: {out}")


@click.command()
@_model
@click.argument("table", type=_path, required=False)
@click.option("--out", type=_path, help="The page.  [default: MODEL.explore.html]")
@click.option("--serve", is_flag=True, help="Serve the page on this machine instead of writing it.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Of --serve.")
@click.option(
    "--no-prototypes",
    is_flag=True,
    help="Leave out the training rows; the OOD score is then a lower bound.",
)
def explore(
    model: Path, table: Path | None, out: Path | None, serve: bool, port: int, no_prototypes: bool
) -> None:
    """Write a page to play with: sliders and menus for the columns, and the prediction that follows them.

    The page is one HTML file that works anywhere without Python and without network. It HOLDS TRAINING ROWS,
    the nearest of which it shows, unless --no-prototypes is given (averages of groups of rows remain, and a
    group may be a single unusual row), and the first 200 rows of TABLE to start from. Of the methods,
    ml-cdn is supported.

    Example: compound explore houses.model --out houses.html
    """
    from compound.io.atomic import write_atomic
    from compound.io.paths import check_writable
    from compound.tables.explore.page import explore_page
    from compound.tables.explore.server import page_server

    out = out or Path(f"{_stem(model)}.explore.html")
    if not serve:
        check_writable(out)
    page = explore_page(model, table, not no_prototypes)
    if not serve:
        write_atomic(out, page.encode())
        click.echo(f"page: {out}, {len(page) / 1e6:.1f} MB, {_held_rows(no_prototypes)}")
        return
    server = page_server(page, port)
    click.echo(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends)")
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("ended")


def _held_rows(no_prototypes: bool) -> str:
    return (
        "without training rows" if no_prototypes else "holds training rows: share it as you would the table"
    )


COMMANDS = (fit, predict, recalibrate, evaluate, explain, explore, export)


def _predict_on_ray(
    model: Path, source: str, target: str | None, coverage: float, only: bool, address: str
) -> None:
    """`compound predict --ray`."""
    from compound.ray.cluster import connected
    from compound.ray.parts import default_folder
    from compound.ray.predict import plan_files, predict_files
    from compound.tables.model_inputs import load_estimator

    estimator, out = load_estimator(model), target or default_folder(source)
    plan = plan_files(estimator, source, out, coverage, only)  # refused here, before a cluster is needed
    with connected(address) as ray, row_progress("rows") as callback:
        summary = predict_files(ray, estimator, plan, callback)
    _echo_summary(summary, out)


def _echo_summary(summary: Any, out: Path | str) -> None:
    speed = summary.rows / max(summary.seconds, 1e-9)
    click.echo(
        f"{summary.rows:,} rows, {summary.n_ood:,} flagged as out-of-distribution, "
        f"{summary.seconds:.1f} s, {speed:,.0f} rows/s: {out}"
    )


def _stem(path: Path) -> str:
    """The file name without its endings: houses.csv.gz gives houses."""
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]


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
