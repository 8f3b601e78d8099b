"""The list of methods says everything there is to choose."""

import dataclasses

import pytest
from click.testing import CliRunner

from compound.cli.app import main
from compound.models import METHODS, Method
from compound.models.listing import entries, entry


@pytest.mark.parametrize("found", entries(), ids=lambda found: found.name)
def test_every_option_is_explained(found):
    assert found.description and found.reference and found.components
    assert all(option.description for option in found.options), [
        option.name for option in found.options if not option.description
    ]
    fields = {field.name: field.default for field in dataclasses.fields(METHODS[found.name].Config)}
    assert {option.name: option.default for option in found.options} == fields
    Method(found.name, **fields)  # every default is one that can be written out


def test_command_prints_every_method_and_one():
    done = CliRunner().invoke(main, ["methods"], env={"COLUMNS": "200"})
    assert done.exit_code == 0 and all(name in done.output for name in METHODS)
    done = CliRunner().invoke(main, ["methods", "ml-cdn"], env={"COLUMNS": "200"})
    assert done.exit_code == 0 and all(
        option.description in done.output for option in entry("ml-cdn").options
    )
    done = CliRunner().invoke(main, ["methods", "mlcdn"])
    assert done.exit_code == 2 and "choose one of ml-cdn" in done.output
