"""A cluster of two nodes for the tests of this folder; they are skipped, with the reason, without Ray."""

import sys
from collections.abc import Iterator

import clusters
import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[clusters.TestCluster]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'compound-torch[ray]'")
    if not sys.platform.startswith("linux"):
        pytest.skip("looks for processes in /proc")
    with clusters.test_cluster() as started:
        yield started
