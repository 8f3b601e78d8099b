"""Kill the parent process, a worker or all at random moments: every run ends once, with the same bits."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import grids
import numpy as np
import pytest

from compound.experiments.runs import read

KILLS = 20
RUNS, STEPS = 5, 250
COMMAND = [sys.executable, grids.__file__]


def start(root: Path) -> subprocess.Popen:
    arguments = [*COMMAND, str(root), "2", str(RUNS), str(STEPS)]
    return subprocess.Popen(
        arguments, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def workers(driver: int) -> list[int]:
    """Worker processes of the driver, without multiprocessing's resource tracker."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == driver and b"spawn_main" in (path.parent / "cmdline").read_bytes():
                pids.append(int(path.parent.name))
        except (OSError, ValueError):
            pass  # gone meanwhile
    return pids


def kill_one(driver: subprocess.Popen, chance: random.Random) -> str | None:
    """Kill one; None where there is nothing to kill."""
    victim = chance.choice(["driver", "group", "worker", "worker", "worker"])
    pids = workers(driver.pid)
    try:
        if victim == "worker" and pids:
            os.kill(chance.choice(pids), signal.SIGKILL)
        elif victim != "worker" and driver.poll() is None:
            (os.killpg if victim == "group" else os.kill)(driver.pid, signal.SIGKILL)
        else:
            return None
    except ProcessLookupError:
        return None
    return victim


def modification_times(root: Path) -> set[tuple[Path, int]]:
    """Files that workers write, with their times."""
    return {
        (path, path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.name in ("begun", "checkpoint.safetensors", "metrics.json")
    }


def wait_random(driver: subprocess.Popen, root: Path, chance: random.Random) -> None:
    """Wait for a random moment: while processes are starting, or after some files have changed."""
    for _ in range(chance.choice([0, 0, 0, 1, 2, 3])):
        before, until = modification_times(root), time.monotonic() + 60
        while driver.poll() is None and time.monotonic() < until and modification_times(root) == before:
            time.sleep(0.01)
    time.sleep(chance.uniform(0.0, 1.0))


def unreadable_files(root: Path) -> list[Path]:
    """JSON and npz files that cannot be read."""
    bad = []
    for path in root.rglob("*"):
        if path.name.startswith(".") or not path.is_file():
            continue
        try:
            if path.suffix == ".json":
                json.loads(path.read_text())
            elif path.suffix == ".npz":
                with np.load(path) as arrays:
                    assert all(array.size for array in arrays.values())
        except FileNotFoundError:
            pass
        except Exception:
            bad.append(path)
    return bad


def written(root: Path) -> dict[Path, tuple[int, int]]:
    """Inode and time of every metrics.json: a second write would change them."""
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in root.rglob("metrics.json")}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for workers in /proc")
def test_twenty_kills_change_nothing(tmp_path: Path):
    seed = int(os.environ.get("COMPOUND_FAULTS", time.time_ns() % 10**6))
    print(f"COMPOUND_FAULTS={seed} repeats the choices")
    chance = random.Random(seed)
    runs = grids.grid(RUNS, STEPS)
    reference = grids.run_grid(runs, grids.work_of, tmp_path / "calm", None, 1).results
    done, round_, counts = 0, 0, {"driver": 0, "group": 0, "worker": 0}
    while done < KILLS:
        root, first = tmp_path / f"round {round_}", {}
        round_ += 1
        while True:  # one grid, until it ends
            driver = start(root)
            while driver.poll() is None:
                if done < KILLS:
                    wait_random(driver, root, chance)
                    victim = kill_one(driver, chance)
                    if victim is not None:
                        done, counts[victim] = done + 1, counts[victim] + 1
                else:
                    driver.wait(900)  # a busy machine may take its time
                assert not unreadable_files(root)
                for path, mark in written(root).items():
                    assert first.setdefault(path, mark) == mark, f"{path} was written twice"
            if driver.returncode == 0:
                break
        assert len(written(root)) == RUNS
        assert first.items() <= written(root).items()
        for before in reference:
            after = read(before.run, root)
            assert after.metrics == before.metrics
            assert np.array_equal(after.arrays["mean"], before.arrays["mean"])
            home, fit = root / before.run.key, root / "fits" / before.run.fit_key
            assert (home / "history.csv").read_text() == (
                tmp_path / "calm" / before.run.key / "history.csv"
            ).read_text()
            assert not [
                path for folder in (home, fit) for path in folder.glob(".*")
            ]  # what the dead were writing is swept
            assert not (home / "failure.json").exists()
    print(f"{KILLS} kills {counts} in {round_} grids")


def test_leftovers_of_the_dead_are_swept_and_never_read(tmp_path: Path):
    (run,) = grids.grid(1, 20)
    home, fit = tmp_path / run.key, tmp_path / "fits" / run.fit_key
    for folder in (home, fit):
        folder.mkdir(parents=True)
        for name in ("metrics.json", "arrays.npz", "checkpoint.safetensors", "progress.json"):
            (folder / f".{name}.0123abcd.new").write_text('{"metrics": {"sum": ')
    assert not read_or_none(run, tmp_path)
    grids.run_grid([run], grids.work_of, tmp_path, None, 1)
    assert {path.name for path in home.iterdir()} == {
        "arrays.npz",
        "begun",
        "config.json",
        "history.csv",
        "lock",
        "metrics.json",
    }
    assert {path.name for path in fit.iterdir()} == {"checkpoint.safetensors", "lock"}


def read_or_none(run, root: Path):
    try:
        return read(run, root)
    except ValueError:
        return None
