"""The Python blocks of docs/scale.md run, in order, on the cluster, with the paths of the test."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import ray_tables

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_blocks_run(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (source,) = ray_tables.write(tmp_path / "new", 1, 300)
    ray_tables.fitted().save(tmp_path / "houses.model")
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    code = "".join(block for block in blocks if "ray" in block).replace("s3://bucket", str(tmp_path))
    code = code.replace("n_jobs=8", "n_jobs=1")  # the cluster of the tests has two cores
    code = code.replace("CompoundRegressor()", 'CompoundRegressor("ml-cdn", max_epochs=1)')
    x = np.random.default_rng(0).normal(size=(40, 2))
    namespace = {"X": x, "y": x[:, 0]}
    exec(compile(code, str(PAGE), "exec"), namespace)
    assert namespace["search"].best_params_["method__lam"] in (1e-6, 1e-4)
    answers = pd.concat(map(pd.read_parquet, (tmp_path / "answers").glob("*.parquet")))
    assert sorted(answers["id"]) == sorted(pd.read_parquet(source)["id"])
