"""The comparison of two checkouts, on cases of known cost."""

from pathlib import Path

import numpy as np
import pytest

from compound.bench import against, peers
from compound.bench.against import Ratio, compare, find_source
from compound.bench.synthetic import mixed_table

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
    same, slower = ratios["same"], ratios["slower"]
    assert 0.5 < same.median < 2 < slower.median < 6
    assert slower.low <= slower.median <= slower.high  # one pair of five may have met other work


def test_interval_of_the_median():
    ratio = Ratio.from_pairs("case", [k / 8 for k in range(15, 0, -1)])
    assert (ratio.median, ratio.low, ratio.high) == (1.0, 4 / 8, 12 / 8)
    assert ratio.confidence == pytest.approx(1 - 2 * (1 + 15 + 105 + 455) / 2**15)
    few = Ratio.from_pairs("case", [1.0, 3.0, 2.0])
    assert (few.low, few.high, few.confidence) == (1.0, 3.0, 0.75)


def test_another_folder_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="is no checkout of compound"):
        find_source(tmp_path)


def test_costs_beside_peers_are_resumed_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Points in the file are not measured again; what is not installed has a reason."""
    measured = []

    def measure(point: peers.Point) -> dict[str, float]:
        measured.append(point.name)
        return {"fit_seconds": 2.0, "predict_microseconds_per_row": 3.0, "memory_mib": 4.0}

    monkeypatch.setattr(peers, "measure", measure)
    monkeypatch.setattr(peers, "MODULES", {"ml-cdn": "torch", "absent": "no_such_module"})
    path = tmp_path / "peers.json"
    results = peers.main(path, quick=True)
    assert measured == ["rows 1000 ml-cdn"]
    assert [entry.get("reason") for entry in results] == [None, "no_such_module is not installed"]
    assert "no_such_module is not installed" in (tmp_path / "peers.html").read_text()
    assert (tmp_path / "peers-rows.csv").read_text().splitlines()[1] == "ml-cdn,1000,2.0,3.0,4.0"
    assert len(peers.main(path, quick=True)) == 2 and len(measured) == 1
    path.write_text("[1]")
    with pytest.raises(ValueError, match="no results of --peers"):
        peers.main(path, quick=True)


def test_a_mixed_table_has_the_noise_it_says():
    table, y = mixed_table(20_000, 6)
    level = table["text 0"].isin(["a", "b", "c"])
    first, third = table["number 0"], table["number 2"]
    second = table["number 1"]
    mean = np.sin(2 * first) + second * level + 0.5 * first * third
    z = ((y - mean) / (0.1 + 0.2 * third.abs())).dropna()
    assert abs(z.mean()) < 5 / len(z) ** 0.5 and abs(z.std() - 1) < 0.03
    assert 0.01 < table["number 1"].isna().mean() < 0.03
    assert mixed_table(20_000, 6)[0].equals(table)
