"""One torch thread for every test unless OMP_NUM_THREADS says more, and a last line about the tests that had no data."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
NO_DATA = "no data"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of the data sets; a test that asks for it is skipped where there is none."""
    folder = os.environ.get("COMPOUND_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip(f"{NO_DATA}: set COMPOUND_DATA to the folder of the data sets")
    return Path(folder)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    result = yield  # after the list of failures
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(NO_DATA in str(report.longrepr) for report in skipped)
    terminalreporter.write_line(
        f"{count} tests skipped for want of data" + (" (set COMPOUND_DATA)" if count else "")
    )
    return result
