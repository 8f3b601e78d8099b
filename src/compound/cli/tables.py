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
LABEL = 16  # width in characters of the first column of the summary


@click.command()
@_table
@click.option("--target", required=True, help="The column to predict.")
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
def fit(table: Path, out: Path | None, method_options: tuple[str, ...], **request: Any) -> None:
    """Fit a model that predicts a column of TABLE (.csv, .tsv, .parquet; csv and tsv may end in .gz).

    TABLE may be larger than memory, and a folder of parquet files: it is then read in a stream, and an
    interrupted fit goes on when the command is given again.

    Some rows are held out to evaluate the model. The summary, with figures and the rows of highest OOD score,
    is also in report.html in the model's directory.

    Several processes fit together when torchrun starts them: torchrun --nproc-per-node 2 -m compound fit ...

    Example: compound fit houses.csv --target price
    """
    from compound.io.paths import check_writable
    from compound.tables.fitting import FitRequest, check_model_path, save
    from compound.tables.pages import fit_page, fit_summary
    from compound.tables.stream_fitting import fit_path, is_streamed
    from compound.train.processes import torchrun

    out = out or Path(f"{_stem(table)}.model")
    check_model_path(out)
    request["options"] = tuple(_parse_option(text) for text in method_options)
    request["stream"] = is_streamed(table, request["stream"])
    leftovers = []
    if request["stream"]:
        request["work"] = Path(f"{out}.rows.parquet")
        leftovers = [request["work"]]
    if request["stream"] and not request["checkpoint"]:
        request["checkpoint"] = Path(f"{out}.checkpoint")
        leftovers.append(request["checkpoint"])
    if request["checkpoint"]:
        check_writable(request["checkpoint"])
    with ExitStack() as stack:
        processes = stack.enter_context(torchrun())
        progress = stack.enter_context(row_progress("rows read", show=processes.is_first))
        callback = stack.enter_context(row_progress("rows evaluated", show=processes.is_first))
        request |= {"distributed": processes.size > 1, "verbose": processes.is_first}
        result = fit_path(table, FitRequest(**request), callback, progress)
        if not processes.is_first:
            return
    save(result, out, fit_page(result).html())
    for path in leftovers:
        path.unlink(missing_ok=True)
    for name, text in (*fit_summary(result), ("model", out), ("report", out / "report.html")):
        click.echo(f"{name:<{LABEL}} {text}")


@click.command()
@_model
@_table
@click.option(
    "--out",
    type=_path,
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
def predict(model: Path, table: Path, out: Path | None, coverage: float, only: bool) -> None:
    """Predict every row of TABLE; tables of any length take the same memory.

    For a folder of parquet files a folder of files with predictions is written. What an interrupted run has
    done is kept, and the same command goes on with the rest.

    Regression: mean, std, lower, upper. Classification: class, probability, set. Both: aleatoric and
    epistemic uncertainty, ood_score and is_ood.

    Example: compound predict houses.model new.csv --out predictions.csv
    """
    from compound.tables.model_inputs import load_estimator
    from compound.tables.predicting_folders import predict_folder
    from compound.tables.streaming import predict_file

    is_folder = table.is_dir()
    out = out or Path(f"{table.name}.predicted" if is_folder else f"{_stem(table)}.predicted.csv")
    run = predict_folder if is_folder else predict_file
    with row_progress("rows") as callback:
        summary = run(load_estimator(model), table, out, coverage, only, callback)
    speed = summary.rows / max(summary.seconds, 1e-9)
    click.echo(
        f"{summary.rows:,} rows, {summary.n_ood:,} flagged as out-of-distribution, "
        f"{summary.seconds:.1f} s, {speed:,.0f} rows/s: {out}"
    )


@click.command()
@_model
@_table
@click.option("--ood", type=_path, help="A table of out-of-distribution rows, to measure their detection.")
@click.option("--target", help="The column with the true values.  [default: that of the fit]")
@click.option(
    "--slice",
    "slice_names",
    multiple=True,
    metavar="COLUMN",
    help="Show all slices of a column; may be repeated.  [default: those of lowest coverage]",
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
    values in one of five quantile bins: slices show where the model is badly calibrated.

    Example: compound evaluate houses.model test.csv --ood boats.csv --slice city
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


COMMANDS = (fit, predict, evaluate, explain, export)


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
