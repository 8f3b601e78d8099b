"""Twenty workers, nodes and drivers of grids on Ray are killed.

    python tests/measurements/ray_faults.py [KILLS] [SEED]

A cluster of two nodes on this machine; every run must end exactly once, with the bits of an undisturbed local
grid, and no torn file or process may be left. Half of the kills happen to grids whose files go through a
storage URL.
"""

import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import grids
from clusters import test_cluster
from ray_kills import VICTIMS, kill_and_compare

RUNS, STEPS = 5, 500

if __name__ == "__main__":
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 10**6
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    victims = [VICTIMS[i % len(VICTIMS)] for i in range(kills)]
    chance.shuffle(victims)
    with tempfile.TemporaryDirectory() as name, test_cluster() as cluster:
        folder = Path(name)
        calm = grids.run_grid(grids.grid(RUNS, STEPS), grids.work_of, folder / "calm", None, 1).results
        for storage, part in ((False, victims[: kills // 2]), (True, victims[kills // 2 :])):
            home = folder / ("storage" if storage else "shared")
            count = kill_and_compare(cluster, home, part, calm, STEPS, chance, storage)
            print(f"{dict(Counter(part))} in {count} grids, storage={storage}: all bits equal", flush=True)
    print("no process left")
