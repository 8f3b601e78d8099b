"""The command that predicts the rows of a table."""

from pathlib import Path
from typing import Any

import click

from compound.cli import options
from compound.cli.display import row_progress


@click.command()
@options.model
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
    out = Path(target or (f"{table.name}.predicted" if is_folder else f"{options.stem(table)}.predicted.csv"))
    run = predict_folder if is_folder else predict_file
    with row_progress("rows") as callback:
        summary = run(load_estimator(model), table, out, coverage, only, callback)
    _echo_summary(summary, out)


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
