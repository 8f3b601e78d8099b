"""Connecting to a Ray cluster, or starting one on this machine; errors say what to do, before any work."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from compound.ray.watcher import watched

LOCAL = "local"  # an address: start a cluster on this machine, for the time of the command
AUTO = "auto"  # an address: the cluster that runs on this machine, or that RAY_ADDRESS names
CONNECT_SECONDS = 5.0  # to reach an address
NODE_SECONDS = 120.0  # for a node to answer: its first worker imports the library
OBJECT_STORE_BYTES = 200 * 2**20  # of a local cluster: what is sent are results and models of some megabytes


class NodeReport(NamedTuple):
    """What a node answers before it is given work."""

    host: str
    versions: dict[str, str]  # of compound, torch and Python
    missing: tuple[str, ...]  # of the paths asked for


def require_ray() -> Any:
    """The module `ray`; ValueError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read by the processes that Ray starts
    try:
        import ray
    except ImportError as error:
        raise ValueError("Ray is not installed: pip install 'compound-torch[ray]'") from error
    return ray


@contextmanager
def connected(address: str = LOCAL, cores: int | None = None) -> Iterator[Any]:
    """A context manager: this process is connected to the cluster at `address`; gives the module `ray`.

    With LOCAL a cluster of `cores` cores (default: all) is started and stopped again, also where this process
    is killed. A connection that exists already is used, and left open. ValueError, within seconds, where the
    address cannot be reached.
    """
    ray = require_ray()
    if ray.is_initialized():
        yield ray
        return
    with watched() if address == LOCAL else nullcontext():
        yield from _connect(ray, address, cores)


def _connect(ray: Any, address: str, cores: int | None) -> Iterator[Any]:
    """Connect, give the module, and disconnect."""
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": True}
    if address == LOCAL:
        os.environ.setdefault("RAY_worker_niceness", "0")  # as other processes of a command; 15 by default
        options |= {
            "address": "local",
            "num_cpus": cores or _n_cores(),
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    else:
        _check_reachable(address)
        options["address"] = address
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise ValueError(
            f"no Ray cluster answers at {address} ({first_line(error)}): start one with ray start --head, "
            "or give --ray without an address to use this machine"
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray has set one that exits at once
    try:
        yield ray
    finally:
        ray.shutdown()


def check_nodes(ray: Any, paths: tuple[str, ...] = ()) -> None:
    """Raise ValueError if a node lacks one of `paths`, or has other versions of compound, torch or Python."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ours = node_report(())
    alive = [node for node in ray.nodes() if node["Alive"]]
    ask = ray.remote(num_cpus=0, max_retries=2)(node_report)
    near = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=True) for node in alive]
    references = [ask.options(scheduling_strategy=strategy).remote(paths) for strategy in near]
    try:
        reports: list[NodeReport] = ray.get(references, timeout=NODE_SECONDS)
    except ray.exceptions.GetTimeoutError as error:
        raise ValueError(
            f"not all {len(alive)} nodes of the Ray cluster answered in {NODE_SECONDS:.0f} s: "
            "look at ray status, and try again"
        ) from error
    except ray.exceptions.RayTaskError as error:
        raise ValueError(
            f"a node of the Ray cluster cannot import compound ({first_line(error.cause or error)}): "
            "install compound-torch there, in the version of this machine"
        ) from error
    for report in reports:
        if report.missing:
            raise ValueError(
                f"{report.missing[0]} does not exist on node {report.host}: give a folder that all nodes "
                "share, or exchange files through --storage URL"
            )
        for name, version in report.versions.items():
            if version != ours.versions[name]:
                raise ValueError(
                    f"node {report.host} has {name} {version}, this machine {ours.versions[name]}: "
                    "install the same versions, so that results have the same bits"
                )


def node_report(paths: tuple[str, ...]) -> NodeReport:
    """What this machine has; `paths` are looked for."""
    import platform
    from importlib.metadata import version

    import compound

    versions = {
        "compound": compound.__version__,
        "torch": version("torch"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }
    missing = tuple(path for path in paths if not os.path.exists(path))
    return NodeReport(socket.gethostname(), versions, missing)


def check_fits(ray: Any, cores: float, memory: int) -> None:
    """Raise ValueError if no node of the cluster has so many cores and so much memory (bytes)."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(node.get("CPU", 0) >= cores and node.get("memory", 0) >= memory for node in nodes):
        return
    largest = max(((node.get("CPU", 0), node.get("memory", 0)) for node in nodes), default=(0, 0))
    raise ValueError(
        f"a run needs {cores:g} core(s) and {memory / 1e9:.1f} GB, the largest node of the Ray cluster has "
        f"{largest[0]:g} and {largest[1] / 1e9:.1f} GB: add a larger node, or give fewer --cores"
    )


def _check_reachable(address: str) -> None:
    """Raise ValueError for an address of a wrong form, or one where nothing listens."""
    if address == AUTO:
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"--ray is {address!r}: give HOST:PORT, {AUTO}, or no value for this machine")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as connection:
            if not os.environ.get("RAY_USE_TLS"):
                _check_http2(connection)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"no Ray cluster answers at {address} ({first_line(error)}): start one with ray start --head, "
            "or give --ray without an address to use this machine"
        ) from error


def _check_http2(connection: socket.socket) -> None:
    """Raise OSError unless the other side begins with a SETTINGS frame, as gRPC does; Ray waits minutes."""
    connection.settimeout(CONNECT_SECONDS)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    frame = connection.recv(9)
    if len(frame) < 4 or frame[3] != 4:
        raise OSError("another program listens there")


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
