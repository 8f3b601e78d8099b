"""Helpers of the tests of table commands: run a command, a synthetic table, options of a small fast model."""

from pathlib import Path

import numpy as np
import pandas as pd
from click.testing import CliRunner, Result

from compound.cli.app import main

SMALL_MODEL = (
    "--method",
    "ml-cdn",
    "--option",
    "members=2",
    "--option",
    "widths=[10]",
    "--option",
    "hyper=[5]",
)
TINY = (*SMALL_MODEL, "--epochs", "5")
FEATURES = ["size", "weight", "city", "garden"]
NUMBERS = ["mean", "std", "lower", "upper", "aleatoric", "epistemic", "ood_score", "is_ood"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def run_ok(*arguments: object) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def assert_rejected(result: Result, *expected: str) -> str:
    """Exit code 2 and one sentence that holds every `expected` text; returns it."""
    assert result.exit_code == 2, (result.output, result.exception)
    assert "Traceback" not in result.output
    (line,) = [line for line in result.output.splitlines() if line.startswith("Error:")]
    for text in expected:
        assert text in line
    assert line.count(". ") == 0 and len(line) < 600  # one sentence
    return line


def write(path: str, content: str | bytes) -> Path:
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())
    return Path(path)


def houses(rows: int, seed: int = 0) -> pd.DataFrame:
    """Numeric, missing, categorical and boolean values; a regression target (price) and a class (dear)."""
    random = np.random.default_rng(seed)
    size, weight = random.normal(50, 10, rows), random.normal(0, 1, rows)
    city = random.choice(["Ulm", "Kiel", "Rom"], rows)
    garden = random.random(rows) < 0.5
    price = 3 * size + 40 * (city == "Rom") + 10 * weight + random.normal(0, 5, rows)
    columns = {"size": size.round(3), "weight": weight.round(3), "city": city, "garden": garden}
    table = pd.DataFrame({**columns, "price": price.round(2)})
    table.loc[random.random(rows) < 0.15, "weight"] = np.nan
    table["dear"] = np.where(price > np.median(price), "yes", "no")
    return table
