"""One torch thread unless OMP_NUM_THREADS says more; which tests are slow; how many tests had no data."""

import os
from collections import defaultdict
from pathlib import Path

import pytest
import torch

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
NO_DATA = "no data"
SLOW = Path(__file__).with_name("slow.txt")  # test functions, one per line, without parameters
SLOW_SECONDS = 0.1  # of processor time, the mean over a function's parameters
CPU_TIMES: dict[str, list[float]] = defaultdict(list)  # by test function


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-slow", action="store_true", help=f"write {SLOW.name} from this run's times")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = set(SLOW.read_text().split()) if SLOW.is_file() else set()
    for item in items:
        if function(item) in slow:
            item.add_marker(pytest.mark.slow)


def function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    start = cpu_seconds()
    result = yield
    CPU_TIMES[function(item)].append(cpu_seconds() - start)
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--record-slow"):
        slow = {name for name, times in CPU_TIMES.items() if sum(times) / len(times) > SLOW_SECONDS}
        if (
            session.config.option.markexpr == "not slow"
        ):  # who now pays for fixtures that slow tests had set up
            slow |= set(SLOW.read_text().split())
        SLOW.write_text("\n".join(sorted(slow)) + "\n")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of the data sets; a test that uses it is skipped where there is none."""
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
