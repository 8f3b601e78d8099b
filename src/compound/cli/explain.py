"""The command that explains what is unusual about a row."""

from pathlib import Path

import click

from compound.cli import options
from compound.cli.display import print_tables


@click.command()
@options.model
@options.table
@click.option("--row", type=click.IntRange(1), required=True, help="Row number, from 1.")
@click.option(
    "--out", type=options.path, help="A page (.html) or figure (.png).  [default: TABLE.row-N.html]"
)
@options.seed
def explain(model: Path, table: Path, row: int, out: Path | None, seed: int) -> None:
    """Show what each column contributes to the OOD score and epistemic uncertainty of a row of TABLE.

    Each value is shown beside that of the nearest prototype, a cluster centre of the training rows.

    Example: compound explain houses.model new.csv --row 17
    """
    from compound.tables.explain_report import check_output, explanation_tables, write_explanation
    from compound.tables.explaining import explain_row

    out = out or Path(f"{options.stem(table)}.row-{row}.html")
    check_output(out)
    explanation = explain_row(model, table, row, seed)
    write_explanation(explanation, f"Row {row} of {table.name}", out)
    print_tables(explanation_tables(explanation))
    click.echo(f"page: {out}" if out.suffix == ".html" else f"figure: {out}")
