"""The command that searches for the settings of a fit: tune."""

from contextlib import nullcontext
from pathlib import Path

import click

from compound.cli import options
from compound.cli.display import print_tables

SHOWN = 5  # trials in the table


@click.command()
@options.table
@click.option("--target", required=True, help="The column to predict.")
@click.option(
    "--trials", type=click.IntRange(1), default=20, show_default=True, help="Fits with different settings."
)
@click.option(
    "--search",
    multiple=True,
    metavar="NAME=VALUES",
    help="Where to look: lam=1e-8..1e-2 or lam=1e-4,1e-3; an option of the method, lr, batch_size, "
    "max_epochs or validation_fraction. May be repeated.  [default: lr, and lam where the method has it]",
)
@click.option(
    "--method", default="", help="A name listed by `compound methods`.  [default: that of the estimators]"
)
@click.option("--drop", multiple=True, metavar="COLUMN", help="Column to leave out, unread; may be repeated.")
@click.option("--epochs", "max_epochs", type=click.IntRange(1), help="Maximal number of epochs of a fit.")
@click.option(
    "--study", type=options.path, help="File of the trials, to go on from.  [default: TABLE.tune.journal]"
)
@click.option("--prune/--no-prune", default=True, show_default=True, help="End bad trials early.")
@click.option("--out", type=options.path, help="Directory of the best model.  [default: TABLE.model]")
@options.seed
@options.ray
def tune(
    table: Path,
    target: str,
    trials: int,
    search: tuple[str, ...],
    method: str,
    drop: tuple[str, ...],
    max_epochs: int | None,
    study: Path | None,
    prune: bool,
    out: Path | None,
    seed: int,
    ray_address: str | None,
) -> None:
    """Search for the settings with which TABLE is predicted best, fit with them, and save the model.

    Settings are compared by the NLL of rows held out of the training rows; test rows take no part. The same
    command goes on with the trials that are missing, or with more of them.

    Example: compound tune houses.csv --target price --trials 40 --search lam=1e-8..1e-2
    """
    from functools import partial

    from compound.io.paths import check_writable
    from compound.tables.fitting import FitRequest, check_model_path, fit_table, request_method, save
    from compound.tables.pages import fit_page, fit_summary
    from compound.tables.search_space import parse_space
    from compound.tables.tuning import LocalRunner, TuneRequest, require_optuna
    from compound.tables.tuning import tune as search_settings

    stem = options.stem(table)
    out, study = out or Path(f"{stem}.model"), study or Path(f"{stem}.tune.journal")
    require_optuna()
    check_model_path(out)
    check_writable(study)
    fit = FitRequest(target, method=method, drop=drop, max_epochs=max_epochs, seed=seed, verbose=False)
    request = TuneRequest(fit, parse_space(search, request_method(fit)), trials, prune)
    with _cluster(ray_address) as ray:
        runner = LocalRunner
        if ray is not None:
            from compound.ray.tune import RayRunner

            runner = partial(RayRunner, ray)  # type: ignore[assignment]
        tuned = search_settings(table, request, study, runner, lambda line: click.echo(line, err=True))
    result = fit_table(table, tuned.request)
    save(result, out, fit_page(result).html())
    names = list(tuned.settings)
    rows = [
        [number, *(str(values[name]) for name in names), value if state == "complete" else state]
        for number, state, value, values in tuned.trials[:SHOWN]
    ]
    print_tables([(f"{len(tuned.trials)} trials", ["trial", *names, "held-out NLL"], rows)])
    for name, text in (*fit_summary(result), ("model", out), ("report", out / "report.html")):
        click.echo(f"{name:<16} {text}")


def _cluster(address: str | None):  # type: ignore[no-untyped-def]
    """A context with the connected module `ray`, or None without an address."""
    if address is None:
        return nullcontext()
    from compound.ray.cluster import connected

    return connected(address)
