"""The cost model of docs/scale.md: measured on small sizes, fitted, and checked on other sizes.

    python tests/measurements/scale_costs.py steps rows reading memory workers --json costs.json

Every part measures processor seconds (the least of some repetitions) at sizes of a grid, fits coefficients
that are not negative by relative least squares, and compares with sizes that took no part, most of them
beyond the grid. With `--check costs.json` only these are measured.
"""

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from compound.models import Method
from compound.nn import PiecewiseLinearEncoding
from compound.random import named_generator
from compound.types import Task, make_dataset

Size = dict[str, Any]


def least(work: Callable[[], Any], repeats: int = 5) -> float:
    """The least processor time of some calls, after one that compiles."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def build(size: Size, rows: int) -> tuple[Any, Any]:
    """An ml-cdn for encoded columns, and rows for it."""
    width = size["width"]
    x = torch.randn(max(rows, 2000), width, generator=named_generator(0, "x"))
    task = Task("regression", 1)
    encoding = PiecewiseLinearEncoding.fit(x, "regression")
    method = Method("ml-cdn", widths=(size["units"],), members=size["members"])
    model = method.build(width, task, 0, encoding)
    data = make_dataset(x[:rows], x[:rows, :1].sin(), task)
    return model, data


def network_work(model: Any) -> float:
    """Products per row and member of hypernetworks and layers."""
    total = 0.0
    for layer in model.layers:
        inputs, outputs = layer.inputs + 1, layer.outputs
        hidden = sum(model.config.hyper)
        total += inputs * hidden + hidden * (inputs + outputs) + inputs * outputs
    return total


def step_features(size: Size) -> list[float]:
    model, _ = build(size, 2)
    parameters = sum(p.numel() for p in model.parameters())
    return [1.0, parameters, size["members"] * size["batch"] * network_work(model)]


def step_seconds(size: Size) -> float:
    model, data = build(size, size["batch"])
    model.on_fit_start(data, named_generator(0, "start"))
    optimizer = model.optimizer(type("Settings", (), {"lr": 1e-3}))
    generators = [named_generator(0, k) for k in range(size["members"])]

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model.loss(data, generators).total.backward()
        optimizer.step()

    return least(step, 12)


def row_features(size: Size) -> list[float]:
    model, _ = build(size, 2)
    draws = size["draws"] * 4
    neighbours = min(10_000, 2**21 // size["width"]) * size["width"]
    return [1.0, size["members"] * network_work(model), draws * (size["units"] + 20.0), neighbours]


def row_seconds(size: Size) -> float:
    """Processor seconds per row of a block: predictive, and distances from the training rows."""
    from compound.ood import Distance
    from compound.ood.neighbours import neighbour_distance

    model, data = build(size, 512)
    model.on_fit_start(data, named_generator(0, "start"))
    sample = torch.randn(
        min(10_000, 2**21 // size["width"]), size["width"], generator=named_generator(0, "s")
    )
    distance = Distance(size["width"])
    distance.fit_without_quantiles(sample[:3000], named_generator(0, "d"))

    def predict() -> None:
        predictive = model.predict(data.x, named_generator(0), size["draws"], 4)
        torch.stack([predictive.mean, predictive.std])
        neighbour_distance(data.x, sample)
        for _ in range(2):  # far noise, and the detector
            distance(data.x)

    return least(predict, 6) / 512


def reading_features(size: Size) -> list[float]:
    return [1.0, size["columns"]]


def reading_seconds(size: Size) -> float:
    """Processor seconds per row of the first pass over parquet: reading, statistics, samples."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from compound.tables.fitting import FitRequest
    from compound.tables.parquet_rows import ParquetRows
    from compound.tables.row_split import RowSplit
    from compound.tables.stream_fitting import find_columns, first_pass

    rows = size["rows"]
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        columns = {f"c{k}": rng.normal(size=rows) for k in range(size["columns"])}
        pq.write_table(pa.table({**columns, "y": rng.normal(size=rows)}), f"{folder}/t.parquet")
        table = ParquetRows.open(Path(folder, "t.parquet"))
        found = find_columns(table, FitRequest("y"))
        split = RowSplit.of(rows, 0.1, 0.1, 5, True, 0)
        return least(lambda: first_pass(table, found, split, True, lambda _: None), 2) / rows


def memory_features(size: Size) -> list[float]:
    sampled = min(size["rows"] * 0.9, 46_000, max(20_000, 8_000_000 / (size["columns"] + 1)))
    return [1.0, sampled * (size["columns"] + 1), 65_536 * size["columns"]]


def memory_bytes(size: Size) -> float:
    """Peak resident bytes of a streamed fit, in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "one-fit",
        "--rows",
        str(size["rows"]),
        "--columns",
        str(size["columns"]),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def one_fit(rows: int, columns: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from compound.tables.fitting import FitRequest
    from compound.tables.stream_fitting import fit_path

    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        schema = pa.schema([(f"c{k}", pa.float64()) for k in range(columns)] + [("y", pa.float64())])
        with pq.ParquetWriter(f"{folder}/t.parquet", schema) as writer:
            for start in range(0, rows, 20_000):
                part = rng.normal(size=(columns + 1, min(20_000, rows - start)))
                writer.write_table(pa.Table.from_arrays(list(map(pa.array, part)), schema=schema))
        request = FitRequest("y", method="map", max_epochs=1, verbose=False, stream=True)
        fit_path(Path(folder, "t.parquet"), request)
    print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def worker_features(size: Size) -> list[float]:
    return [1.0, size["parameters"]]


def worker_seconds(size: Size) -> float:
    """Seconds (wall, the least) of averaging gradients of two processes of this machine."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        workers = [context.Process(target=_average, args=(rank, folder, size, queue)) for rank in range(2)]
        for worker in workers:
            worker.start()
        values = [queue.get(timeout=300) for _ in workers]
        for worker in workers:
            worker.join()
    return float(max(values))


def _average(rank: int, folder: str, size: Size, queue: Any) -> None:
    from torch.distributed import destroy_process_group, init_process_group

    from compound.train.processes import Processes

    torch.set_num_threads(1)
    init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    parameter = torch.zeros(size["parameters"])
    parameter.grad = torch.ones(size["parameters"])
    times = []
    for _ in range(300):
        start = time.perf_counter()
        Processes(rank, 2).mean_gradients([parameter], [torch.zeros(1)], False)
        times.append(time.perf_counter() - start)
    queue.put(min(times))
    destroy_process_group()


def grid(**values: list[Any]) -> list[Size]:
    """Sizes that differ from a middle one in one or two ways."""
    middle = {name: options[len(options) // 2] for name, options in values.items()}
    out = [middle]
    for name, options in values.items():
        out += [{**middle, name: value} for value in options if value != middle[name]]
    out.append({name: options[0] for name, options in values.items()})
    out.append({name: options[-1] for name, options in values.items()})
    return out


PARTS: dict[str, tuple[Any, Any, list[Size], list[Size]]] = {
    "steps": (
        step_seconds,
        step_features,
        grid(width=[10, 30, 100], units=[50, 100], members=[1, 3, 5], batch=[50, 100, 200]),
        [
            {"width": 60, "units": 75, "members": 4, "batch": 150},
            {"width": 200, "units": 100, "members": 5, "batch": 200},
            {"width": 20, "units": 50, "members": 5, "batch": 400},
        ],
    ),
    "rows": (
        row_seconds,
        row_features,
        grid(width=[10, 30, 100], units=[50, 100], members=[1, 5], draws=[10, 20, 40]),
        [
            {"width": 60, "units": 75, "members": 3, "draws": 30},
            {"width": 200, "units": 50, "members": 5, "draws": 20},
            {"width": 20, "units": 100, "members": 5, "draws": 60},
        ],
    ),
    "reading": (
        reading_seconds,
        reading_features,
        [
            {"rows": rows, "columns": columns}
            for rows, columns in ((100_000, 5), (100_000, 20), (200_000, 10))
        ],
        [{"rows": 300_000, "columns": 40}, {"rows": 400_000, "columns": 10}],
    ),
    "memory": (
        memory_bytes,
        memory_features,
        [
            {"rows": rows, "columns": columns}
            for rows, columns in ((20_000, 5), (60_000, 20), (60_000, 60), (30_000, 60))
        ],
        [{"rows": 200_000, "columns": 20}, {"rows": 100_000, "columns": 120}],
    ),
    "workers": (
        worker_seconds,
        worker_features,
        [{"parameters": n} for n in (1_000, 30_000, 100_000, 500_000, 2_000_000)],
        [{"parameters": 200_000}, {"parameters": 1_000_000}],
    ),
}


def fit(features: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Coefficients, none negative, of least relative squares."""
    scale = np.abs(features).max(0)
    return nnls(features / scale / values[:, None], np.ones(len(values)))[0] / scale


def run(name: str, known: dict[str, Any]) -> dict[str, Any]:
    measure, features, sizes, others = PARTS[name]
    if name in known:
        coefficients, rows = np.array(known[name]["coefficients"]), known[name]["sizes"]
    else:
        values = np.array([measure(size) for size in sizes])
        coefficients = fit(np.array([features(size) for size in sizes]), values)
        rows = [[size, value] for size, value in zip(sizes, values.tolist(), strict=True)]
    checks = []
    for size in others:
        measured, predicted = measure(size), float(np.dot(features(size), coefficients))
        checks.append([size, measured, predicted])
        off = predicted / measured - 1
        print(f"{name} {size}: measured {measured:.3g}, predicted {predicted:.3g}, off by {off:+.0%}")
    return {"coefficients": coefficients.tolist(), "sizes": rows, "checks": checks}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "one-fit"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--columns", type=int, default=0)
    given = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    if given.parts == ["one-fit"]:
        one_fit(given.rows, given.columns)
    else:
        before = json.loads(given.check.read_text()) if given.check else {}
        results = {}
        for part in given.parts:
            results[part] = run(part, before)
            if given.json:
                given.json.write_text(json.dumps(results, indent=1))
