"""Compiled loops on disk: whatever happened to the files, a loop gives its numbers."""

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


def hits(own) -> int:
    return sum(own.stats.cache_hits.values())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    assert compiled()(X.data_ptr(), 3) == 7
    (own,) = tmp_path.iterdir()
    assert sorted(path.suffix for path in own.iterdir()) == [".nbc", ".nbi"]
    return own


def test_a_kept_loop_is_not_compiled_again(folder: Path):
    own = compiled()
    assert own(X.data_ptr(), 3) == 7 and hits(own) == 1


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
    own = compiled()
    with pytest.warns(UserWarning, match=r"damaged.*compiled again"):
        assert own(X.data_ptr(), 3) == 7
    assert hits(own) == 0
    again = compiled()
    assert again(X.data_ptr(), 3) == 7 and hits(again) == 1  # without a warning, which would be an error


def test_a_missing_file_is_no_damage(folder: Path):
    next(folder.glob("*.nbc")).unlink()
    assert compiled()(X.data_ptr(), 3) == 7


def test_code_of_other_sources_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "_source_stamp", lambda folder: "changed")
    own = compiled()
    assert own(X.data_ptr(), 3) == 7 and hits(own) == 0


def test_code_of_another_key_is_not_used(folder: Path):
    """Two processes may give one file name to two keys; the index of the later one then names code of the other."""
    own = compiled()
    file = own._cache._cache_file
    (path,) = folder.glob("*.nbc")
    ((key, stamp), data) = file._read(path)
    file._write(str(path), (("another key", stamp), data))
    assert file.load(key) is None
    assert own(X.data_ptr(), 3) == 7 and hits(own) == 0


def test_a_folder_that_cannot_be_written_costs_time_only(folder: Path):
    own = compiled()
    shutil.rmtree(folder)
    folder.write_text("no folder any more")
    with pytest.warns(UserWarning, match=r"cannot be written|damaged"):
        assert own(X.data_ptr(), 3) == 7
    assert own(X.data_ptr(), 3) == 7
