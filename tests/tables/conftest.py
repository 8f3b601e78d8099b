"""Fixtures of the tests of table commands."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium
from table_commands import TINY, houses, run_ok


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, a regression model (price), a classifier (dear) and their outputs."""
    folder = tmp_path_factory.mktemp("tables")
    houses(400).to_csv(folder / "houses.csv", index=False)
    houses(120, seed=1).to_csv(folder / "new.csv", index=False)
    for target, other in (("price", "dear"), ("dear", "price")):
        out = folder / f"{target}.model"
        fit = run_ok("fit", folder / "houses.csv", "--target", target, "--drop", other, "--out", out, *TINY)
        (folder / f"{target}.txt").write_text(fit.output)
    predicted = run_ok("predict", folder / "price.model", folder / "new.csv", "--out", folder / "plain.csv")
    (folder / "plain.txt").write_text(predicted.output)
    return folder


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser; tests that use it are of the xdist group "browser", so that there is one."""
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
