"""Compiled loops on disk: whatever happens to the files, a loop computes the same."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numba import config

from compound.ops import cache
from compound.ops.jit import FASTMATH, array, kernel

X = torch.tensor([1.0, 2.0, 4.0])


def loop(x_: int, count: int) -> float:
    x, total = array(x_, (count,)), np.float32(0)
    for i in range(count):
        total += x[i]
    return total


def compiled():
    """The loop as another process would meet it."""
    return kernel(FASTMATH)(loop)


def cache_hits(function) -> int:
    return sum(function.stats.cache_hits.values())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    assert compiled()(X.data_ptr(), 3) == 7
    (cache_folder,) = tmp_path.iterdir()
    assert sorted(path.suffix for path in cache_folder.iterdir()) == [".nbc", ".nbi"]
    return cache_folder


def test_a_cached_loop_is_not_compiled_again(folder: Path):
    function = compiled()
    assert function(X.data_ptr(), 3) == 7 and cache_hits(function) == 1


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


@pytest.mark.parametrize("kind", [".nbi", ".nbc"])
@pytest.mark.parametrize(
    "damage",
    [flip, lambda path: path.write_bytes(path.read_bytes()[:-3]), lambda path: path.write_bytes(b"")],
)
def test_a_damaged_file_is_compiled_again_and_replaced(folder: Path, kind: str, damage):
    (path,) = folder.glob(f"*{kind}")
    damage(path)
    function = compiled()
    with pytest.warns(UserWarning, match=r"damaged.*compiled again"):
        assert function(X.data_ptr(), 3) == 7
    assert cache_hits(function) == 0
    again = compiled()  # without a warning, which would be an error
    assert again(X.data_ptr(), 3) == 7 and cache_hits(again) == 1


def test_a_missing_file_is_no_damage(folder: Path):
    next(folder.glob("*.nbc")).unlink()
    assert compiled()(X.data_ptr(), 3) == 7


def test_code_of_other_sources_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "_source_stamp", lambda folder: "changed")
    function = compiled()
    assert function(X.data_ptr(), 3) == 7 and cache_hits(function) == 0


def test_code_of_another_key_is_not_used(folder: Path):
    """Two processes may give one file name to two keys: an index then names the code of the other key."""
    function = compiled()
    file = function._cache._cache_file
    (path,) = folder.glob("*.nbc")
    ((key, stamp), data) = file._read(path)
    file._write(str(path), (("another key", stamp), data))
    assert file.load(key) is None
    assert function(X.data_ptr(), 3) == 7 and cache_hits(function) == 0


def test_a_folder_that_cannot_be_written_costs_time_only(folder: Path):
    function = compiled()
    shutil.rmtree(folder)
    folder.write_text("no folder any more")
    with pytest.warns(UserWarning, match=r"cannot be written|damaged"):
        assert function(X.data_ptr(), 3) == 7
    assert function(X.data_ptr(), 3) == 7
