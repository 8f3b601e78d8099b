"""A model behind HTTP: two replicas on Ray Serve, requests in batches, and the load that they bear.

    python serve_houses.py MODEL --seconds 20               # a model that `compound fit` has written
    python serve_houses.py --load http://127.0.0.1:8000/    # the load alone, from any machine

The load comes from a second process: clients that each send a request as soon as they have the answer to the
one before. It prints requests and rows per second, and how long answers take.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit


def serve_model(model: Path, port: int, given: argparse.Namespace) -> None:
    """Serve a saved model, and measure it from a second process."""
    from ray import serve

    from compound import load
    from compound.ray.cluster import connected
    from compound.ray.serve import deployment

    types = load(model).encoder_.types()
    with connected():  # a cluster on this machine; an address joins another one
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(deployment(model, replicas=2, max_requests=64, wait_seconds=0.005))
        try:
            command = [sys.executable, __file__, "--load", f"http://127.0.0.1:{port}/"]
            command += ["--seconds", str(given.seconds), "--clients", str(given.clients)]
            subprocess.run([*command, "--rows", str(given.rows), "--types", json.dumps(types)], check=True)
        finally:
            serve.shutdown()


def measure_load(url: str, types: dict[str, str], seconds: float, clients: int, rows: int) -> dict:
    """Requests of random rows from `clients` threads; latencies in milliseconds."""
    latencies: list[float] = []
    errors: list[int] = []
    end = time.monotonic() + seconds

    def client(seed: int) -> None:
        chance = random.Random(seed)
        where = urlsplit(url)
        connection = HTTPConnection(where.hostname, where.port, timeout=60)
        while time.monotonic() < end:
            body = {"rows": [random_row(types, chance) for _ in range(rows)]}
            start = time.monotonic()
            connection.request("POST", where.path or "/", json.dumps(body))
            answer = connection.getresponse()
            content = json.loads(answer.read())
            if answer.status == 200 and len(content["predictions"]) == rows:
                latencies.append(1000 * (time.monotonic() - start))
            else:
                errors.append(answer.status)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(clients)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - start
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")
    return {
        "requests": len(latencies),
        "errors": len(errors),
        "requests_per_second": round(len(latencies) / elapsed, 1),
        "rows_per_second": round(rows * len(latencies) / elapsed, 1),
        "milliseconds": {f"p{k}": round(cuts[k - 1], 1) for k in (50, 95, 99)},
    }


def random_row(types: dict[str, str], chance: random.Random) -> dict:
    """Numbers, and no values elsewhere: what a model answers does not change how long it takes."""
    return {name: chance.gauss(0, 1) if kind == "number" else None for name, kind in types.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--load", metavar="URL")
    parser.add_argument("--types", type=json.loads, default={}, help="columns of the model, as JSON")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rows", type=int, default=1, help="of each request")
    options = parser.parse_args()
    if options.load:
        print(
            json.dumps(
                measure_load(options.load, options.types, options.seconds, options.clients, options.rows)
            )
        )
    elif options.model:
        serve_model(options.model, options.port, options)
    else:
        parser.error("give MODEL, or --load URL")
