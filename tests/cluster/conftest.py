"""A cluster of two nodes for the tests of this folder; they are skipped, with the reason, without Ray.

This process is a driver of the cluster, for the tests that need none that can be killed: starting one takes
seconds, and so do the workers, which a cluster keeps for each driver.
"""

import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import clusters
import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[clusters.TestCluster]:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'compound-torch[ray]'")
    if not sys.platform.startswith("linux"):
        pytest.skip("looks for processes in /proc")
    with clusters.test_cluster() as started, pytest.MonkeyPatch.context() as patch:
        for name, value in started.environment.items():  # before Ray is imported: it reads them then
            patch.setenv(name, value)
        yield started


@pytest.fixture(scope="session")
def ray(cluster: clusters.TestCluster) -> Iterator[Any]:
    """The module `ray`; this process is connected to the cluster, until the end of all tests."""
    from compound.ray.cluster import connected

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray, about its own future
        connection = connected(cluster.address)
        module = connection.__enter__()
    yield module
    connection.__exit__(None, None, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray, in this process, warns of what it does itself."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:::ray"))
