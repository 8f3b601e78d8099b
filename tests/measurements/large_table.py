"""Fit and predict a table larger than memory: time, peak memory of all processes together, disk.

    python tests/measurements/large_table.py generate FOLDER --rows 20000000
    python tests/measurements/large_table.py measure FOLDER --out FOLDER.measured

`generate` writes 20 columns (numbers of several shapes, gaps, text, times, a target) in files of a million
rows, piece by piece. `measure` runs `compound fit` and `compound predict` on them and samples the resident
memory (proportional set size) of the whole process tree ten times a second. `quantiles` compares quantiles of
the streamed encoder with exact ones, column by column.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILE_ROWS = 1_000_000
GROUP_ROWS = 250_000
CITIES = 40


def piece(first: int, rows: int, seed: int) -> pa.Table:
    """Rows of the table; y depends on numbers, a category and the time, its noise on a number."""
    rng = np.random.default_rng([seed, first])
    numbers = {f"n{k}": rng.normal(size=rows).astype(np.float32) for k in range(8)}
    skewed = {f"s{k}": rng.lognormal(sigma=1 + 0.3 * k, size=rows).astype(np.float32) for k in range(4)}
    whole = {f"w{k}": rng.integers(0, 10 ** (k + 1), rows).astype(np.int32) for k in range(3)}
    gap = np.where(rng.random(rows) < 0.1, np.nan, rng.normal(50, 7, rows))
    city = np.minimum(rng.zipf(1.3, rows), CITIES)
    kind = rng.integers(0, 12, rows)
    seconds = rng.integers(0, 3 * 365 * 86400, rows)
    level = np.sin(np.arange(CITIES + 1))[city]
    y = (
        numbers["n0"] * (kind % 3)
        + np.sin(2 * numbers["n1"])
        + 0.5 * np.log(skewed["s0"])
        + level
        + np.cos(2 * np.pi * seconds / 86400)
        + 0.3 * np.exp(0.5 * numbers["n2"]) * rng.normal(size=rows)
    )
    text = {
        "city": pa.array(city).cast(pa.string()).dictionary_encode(),
        "kind": pa.array([f"kind {k}" for k in range(12)]).take(pa.array(kind)).dictionary_encode(),
    }
    times = pa.array((1_600_000_000 + seconds) * 1000, pa.timestamp("ms"))
    columns = {**numbers, **skewed, **whole, "gap": pa.array(gap, from_pandas=True), **text, "time": times}
    return pa.table({**columns, "y": y.astype(np.float32)})


def generate(folder: Path, rows: int, seed: int = 0) -> None:
    """Write files of FILE_ROWS rows until there are `rows`, if the disk has room."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if rows * 110 > 0.5 * free:
        raise SystemExit(f"{folder} has {free / 1e9:.1f} GB free: the table takes {rows * 110 / 1e9:.1f} GB")
    for first in range(0, rows, FILE_ROWS):
        path = folder / f"part-{first // FILE_ROWS:04d}.parquet"
        if not path.exists():
            count = min(FILE_ROWS, rows - first)
            with pq.ParquetWriter(path, piece(0, 1, seed).schema) as writer:
                for start in range(first, first + count, GROUP_ROWS):
                    writer.write_table(piece(start, min(GROUP_ROWS, first + count - start), seed))
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{rows:,} rows, {size / 1e9:.2f} GB")


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    out = [pid]
    for parent in out:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                out += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return out


def resident(pid: int) -> int:
    """Bytes that a process tree holds; shared pages are divided among those that share them."""
    total = 0
    for each in tree(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            total += 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total


def watched(command: list[str], log: Path) -> dict[str, float]:
    """Run a command; seconds, processor seconds, peak memory."""
    peak, done = [0], threading.Event()
    before = os.times()
    start = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)

        def sample() -> None:
            while not done.is_set():
                peak[0] = max(peak[0], resident(process.pid))
                done.wait(0.1)

        thread = threading.Thread(target=sample)
        thread.start()
        code = process.wait()
        done.set()
        thread.join()
    after = os.times()
    if code:
        raise SystemExit(f"{' '.join(command)} failed:\n{log.read_text()[-2000:]}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": time.monotonic() - start, "cpu": cpu, "peak_gib": peak[0] / 2**30}


def measure(folder: Path, out: Path, processes: int, extra: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model, answers = out / "model", out / "predicted"
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    fit = [*start, "compound", "fit", str(folder), "--target", "y", "--out", str(model), *extra]
    results = {"fit": watched(fit, out / "fit.log")}
    print(json.dumps(results), flush=True)
    predict = [
        sys.executable,
        "-m",
        "compound",
        "predict",
        str(model),
        str(folder),
        "--out",
        str(answers),
        "--only",
    ]
    results["predict"] = watched(predict, out / "predict.log")
    disk = sum(f.stat().st_size for place in (folder, out) for f in place.rglob("*") if f.is_file())
    results["disk_gb"] = disk / 1e9  # type: ignore[assignment]
    print(json.dumps(results, indent=1))
    (out / "results.json").write_text(json.dumps(results, indent=1))


def quantiles(folder: Path) -> None:
    """Rank errors of the sketch for every number column, against all values sorted."""
    from compound.estimators.quantile_sketch import QuantileSketch

    levels = np.linspace(0.001, 0.999, 999)
    names = [f for f in pq.read_schema(next(iter(sorted(folder.iterdir())))).names if f[0] in "nsw"]
    worst = 0.0
    for name in names[::3]:
        sketch, parts = QuantileSketch(0), []
        for file in sorted(folder.iterdir()):
            for batch in pq.ParquetFile(file).iter_batches(65_536, columns=[name]):
                values = batch.column(0).to_numpy(zero_copy_only=False).astype(np.float64)
                sketch.update(values)
                parts.append(values.astype(np.float32))
        ordered = np.sort(np.concatenate(parts))
        found = np.array([sketch.quantile(level) for level in levels]).astype(np.float32)
        low = np.searchsorted(ordered, found, "left") / len(ordered)
        high = np.searchsorted(ordered, found, "right") / len(ordered)
        error = np.maximum(np.maximum(low - levels, levels - high), 0).max()
        worst = max(worst, float(error))
        print(f"{name}: rank error at most {100 * error:.4f}%")
    print(f"worst {100 * worst:.4f}%")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["generate", "measure", "quantiles"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    given, rest = parser.parse_known_args()
    if given.what == "generate":
        generate(given.folder, given.rows)
    elif given.what == "measure":
        measure(given.folder, given.out or Path(f"{given.folder}.measured"), given.processes, rest)
    else:
        quantiles(given.folder)
