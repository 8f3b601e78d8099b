"""The command that adapts intervals or sets to rows whose truth has arrived."""

from pathlib import Path

import click

from compound.cli import options


@click.command()
@options.model
@options.table
@click.option("--out", type=options.path, help="Directory of the adapted model.  [default: MODEL]")
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
