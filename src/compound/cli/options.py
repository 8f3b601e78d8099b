"""Options and helpers shared by the commands."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

path = click.Path(path_type=Path)
table = click.argument("table", type=path)
model = click.argument("model", type=path)
seed = click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
json_file = click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write all results to this file.",
)

ray = click.option(
    "--ray",
    "ray_address",
    is_flag=False,
    flag_value="local",
    metavar="[ADDRESS]",
    help="Work on a Ray cluster: HOST:PORT, auto, or, without a value, one started here for the command.",
)


def directory(name: str, default: str | None, text: str, env: str | None = None) -> Callable[[Any], Any]:
    """A click option whose value is a directory; `text` is its help, `env` its environment variable."""
    return click.option(
        name,
        type=click.Path(file_okay=False, path_type=Path),
        default=default,
        envvar=env,
        show_default=default is not None,
        help=text,
    )


data_dir = directory(
    "--data-dir", None, "Directory of the data sets.  [env: COMPOUND_DATA]", env="COMPOUND_DATA"
)


def stem(file: Path) -> str:
    """The file name without its endings: houses.csv.gz gives houses."""
    return file.name.removesuffix(".gz").rsplit(".", 1)[0]


def check_outputs(*folders: Path, json_path: Path | None = None) -> None:
    """Raise ValueError, before any work, if one of the folders or the JSON file cannot be written."""
    from compound.io.paths import check_folder, check_writable

    for folder in folders:
        check_folder(folder)
    if json_path:
        check_writable(json_path)
