"""Entry point of the command line. Heavy imports are inside the commands, so that --help is fast."""

import click

from compound import __version__
from compound.cli import catalogue, experiments
from compound.cli.errors import Commands
from compound.cli.evaluate import evaluate
from compound.cli.explain import explain
from compound.cli.explore import explore
from compound.cli.export import export
from compound.cli.fit import fit
from compound.cli.predict import predict
from compound.cli.recalibrate import recalibrate
from compound.cli.tune import tune


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="compound")
def main() -> None:
    """Predictive uncertainty with compound density networks.

    Example: compound demo
    """


TABLES = (fit, predict, recalibrate, evaluate, explain, explore, export, tune)

for command in (*TABLES, *experiments.COMMANDS, *catalogue.COMMANDS):
    main.add_command(command)
