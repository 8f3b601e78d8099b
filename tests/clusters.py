"""A Ray cluster of two nodes on this machine, in a process of its own: python tests/clusters.py

The process starts two raylets of one core each, prints the address, and does what the lines of its standard
input say: `kill` kills the second node and everything on it by SIGKILL of its raylet, `add` starts another.
It ends with its standard input. All processes carry a mark in their environment, by which they are found.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "COMPOUND_TEST_CLUSTER"  # environment variable
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "memory": 4 * 2**30}
START_SECONDS = 120
AGENTS = (b"ray::IDLE", b"ray::DashboardAgent", b"ray::RuntimeEnvAgent")  # titles of processes without work


class TestCluster:
    """The cluster's process, its address, and the environment of its processes and drivers."""

    __test__ = False

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # short: for sockets
        self.mark = uuid.uuid4().hex
        here = str(Path(__file__).parent)
        self.environment = {
            **os.environ,
            MARK: self.mark,
            "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # 15 by default: workers would starve beside other programs
            "RAY_DATA_PARQUET_FOOTER_NUM_ACTORS": "1",  # processes that read_parquet starts; 32 by default
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": uuid.uuid4().hex,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        }
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.address = self._answer("address ")

    def kill_node(self) -> None:
        """Kill the second node by SIGKILL of its raylet."""
        self._tell("kill")
        self._answer("killed")

    def add_node(self) -> None:
        self._tell("add")
        self._answer("added")

    def processes(self, title: bytes = b"") -> dict[int, bytes]:
        """Process id -> command line, of all processes with the mark and this begin of their command line."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (path / "cmdline").read_bytes()
                if command.startswith(title) and f"{MARK}={self.mark}".encode() in (
                    path / "environ"
                ).read_bytes().split(b"\0"):
                    found[int(path.name)] = command
        return found

    def workers(self) -> list[int]:
        """Processes that perform a task now."""
        return [pid for pid, title in self.processes(b"ray::").items() if not title.startswith(AGENTS)]

    @contextmanager
    def killing(self, title: bytes, times: int, ready: Callable[[int], bool]) -> Iterator[list[int]]:
        """Context in which processes with this title are killed, the k-th when `ready(k)`; their ids."""
        killed: list[int] = []
        done = threading.Event()

        def kill() -> None:
            while len(killed) < times and not done.wait(0.05):
                pids = self.processes(title)
                if pids and ready(len(killed)):
                    with suppress(ProcessLookupError):
                        os.kill(min(pids), signal.SIGKILL)
                        killed.append(min(pids))

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        try:
            yield killed
        finally:
            done.set()
            thread.join()

    def close(self) -> dict[int, bytes]:
        """End the cluster; what is left of its processes after some seconds, which is then killed."""
        with suppress(OSError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        until = time.monotonic() + 20
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.2)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return left

    def _tell(self, line: str) -> None:
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def _answer(self, start: str) -> str:
        """The rest of the next line that begins with `start`."""
        for line in self.process.stdout:
            if line.startswith(start):
                return line.removeprefix(start).strip()
        raise RuntimeError("the test cluster has ended")


@contextmanager
def test_cluster() -> Iterator[TestCluster]:
    """A context manager with a cluster; no process of it may be left afterwards."""
    cluster = TestCluster()
    try:
        yield cluster
    finally:
        left = cluster.close()
    assert not left, left


test_cluster.__test__ = False  # type: ignore[attr-defined]


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    node = cluster.add_node(**NODE)
    print("address", cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            raylet = node.all_processes["raylet"][0].process
            raylet.kill()
            raylet.wait()
            print("killed", flush=True)
        elif line.strip() == "add":
            cluster.remove_node(node, allow_graceful=False)
            node = cluster.add_node(**NODE)
            print("added", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
