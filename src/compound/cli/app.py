"""Entry point of the command line. Heavy imports are inside the commands, so that --help is fast."""

import click

from compound import __version__
from compound.cli import catalogue, experiments, tables, tune
from compound.cli.errors import Commands


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="compound")
def main() -> None:
    """Predictive uncertainty with compound density networks.

    Example: compound demo
    """


for command in (*tables.COMMANDS, *tune.COMMANDS, *experiments.COMMANDS, *catalogue.COMMANDS):
    main.add_command(command)
