"""The command that writes or serves a page to play with."""

from pathlib import Path

import click

from compound.cli import options


@click.command()
@options.model
@click.argument("table", type=options.path, required=False)
@click.option("--out", type=options.path, help="The page.  [default: MODEL.explore.html]")
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

    out = out or Path(f"{options.stem(model)}.explore.html")
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
