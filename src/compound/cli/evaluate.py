"""The command that compares predictions with the truth."""

from pathlib import Path

import click

from compound.cli import options
from compound.cli.display import print_tables, row_progress


@click.command()
@options.model
@options.table
@click.option(
    "--ood", type=options.path, help="A table of out-of-distribution rows, to measure their detection."
)
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
@click.option("--out", type=options.path, help="Also write a page (.html) with figures and all slices.")
@click.option("--json", "json_path", type=options.path, help="Also write all results to this file.")
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
