"""The Python blocks of docs/scale.md run, in order, on the cluster, with the paths of the test."""

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import ray_tables
from clusters import TestCluster

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
PRELUDE = """
import numpy as np
from compound.ray.cluster import connected
rng = np.random.default_rng(0)
X = rng.normal(size=(40, 2))
y = X[:, 0]
"""


def test_blocks_run(cluster: TestCluster, tmp_path: Path):
    (source,) = ray_tables.write(tmp_path / "new", 1, 300)
    ray_tables.fitted().save(tmp_path / "houses.model")
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    code = "".join(block for block in blocks if "ray" in block).replace("s3://bucket", str(tmp_path))
    code = code.replace("n_jobs=8", "n_jobs=1")  # the cluster of the tests has two cores
    code = code.replace("CompoundRegressor()", 'CompoundRegressor("ml-cdn", max_epochs=1)')
    body = "".join(f"    {line}\n" for line in code.splitlines())
    program = f"{PRELUDE}\nwith connected({cluster.address!r}):\n{body}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=cluster.environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answers = pd.concat(map(pd.read_parquet, (tmp_path / "answers").glob("*.parquet")))
    assert sorted(answers["id"]) == sorted(pd.read_parquet(source)["id"])
