"""The command that writes a model as a program for serving."""

from pathlib import Path

import click

from compound.cli import options


@click.command()
@options.model
@click.option(
    "--out",
    type=options.path,
    help="A .pt2 (torch.export), .onnx (ONNX Runtime), .mar (TorchServe) or .yaml (Ray Serve) file.  "
    "[default: MODEL.pt2]",
)
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Batch size of the program.",
)
def export(model: Path, out: Path | None, rows: int) -> None:
    """Write a model as a program, for serving without this library.

    A .yaml file is for `serve run`, which serves the model itself, by two replicas on Ray.

    Example: compound export houses.model --out houses.pt2
    """
    from compound.estimators import load
    from compound.estimators.export import export as export_program
    from compound.io.paths import check_writable

    out = out or Path(f"{options.stem(model)}.pt2")
    check_writable(out)
    if out.suffix == ".yaml":
        from compound.io.atomic import write_atomic
        from compound.ray.serve import config

        write_atomic(out, config(model).encode())
        click.echo(f"start it with: serve run {out}")
        return
    export_program(load(model), out, rows)
    click.echo(f"program: {out}")
