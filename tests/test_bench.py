"""The comparison of two checkouts, on cases of known cost."""

from pathlib import Path

import pytest

from compound.bench import against
from compound.bench.against import Ratio, compare, find_source

CASES = """
from collections import namedtuple

Case = namedtuple("Case", "name ours")

def spin(n):
    for _ in range(n):
        pass

def cases():
    print("a line on stdout, where replies go")
    yield Case("same", lambda: spin(20_000))
    yield Case("slower", lambda: spin(60_000))
    yield Case("new", lambda: None)
"""
SPEED = """
def spin(n):
    for _ in range(n):
        pass

def measure(rounds):
    yield compare("slower", lambda: spin(20_000), None, 1.0, rounds)
    yield compare("same", lambda: spin(20_000), None, 1.0, rounds, 1)

def compare(*_):
    raise AssertionError("replaced by the worker")
"""


@pytest.fixture
def checkouts(tmp_path: Path) -> tuple[Path, Path]:
    """A checkout with `bench.cases`, and an earlier one without."""
    for name in ("new", "old"):
        bench = tmp_path / name / "src" / "compound" / "bench"
        bench.mkdir(parents=True)
        for folder in (bench, bench.parent):
            (folder / "__init__.py").touch()
        (bench / "speed.py").write_text(SPEED)
    (tmp_path / "new" / "src" / "compound" / "bench" / "cases.py").write_text(CASES)
    return find_source(tmp_path / "new"), find_source(tmp_path / "old")


def test_ratios_of_two_checkouts(checkouts, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(against, "SLICE_SECONDS", 0.05)
    ratios = {ratio.name: ratio for ratio in compare(*checkouts, pairs=5)}
    assert list(ratios) == ["same", "slower"]
    assert 0.5 < ratios["same"].median < 2 < ratios["slower"].low <= ratios["slower"].median < 6


def test_interval_of_the_median():
    ratio = Ratio.from_pairs("case", [k / 8 for k in range(15, 0, -1)])
    assert (ratio.median, ratio.low, ratio.high) == (1.0, 4 / 8, 12 / 8)
    assert ratio.confidence == pytest.approx(1 - 2 * (1 + 15 + 105 + 455) / 2**15)
    few = Ratio.from_pairs("case", [1.0, 3.0, 2.0])
    assert (few.low, few.high, few.confidence) == (1.0, 3.0, 0.75)


def test_another_folder_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="is no checkout of compound"):
        find_source(tmp_path)
