"""Every program in examples/ is short, runs without a warning and draws one picture."""

import ast
import os
import resource
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_draws_its_picture(path: Path, tmp_path: Path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    environment = {
        **os.environ,
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    subprocess.run([sys.executable, "-W", "error", str(path)], cwd=tmp_path, env=environment, check=True)
    assert [file.name for file in tmp_path.iterdir()] == [f"{path.stem}.png"]
    picture = matplotlib.image.imread(tmp_path / f"{path.stem}.png")
    assert picture.shape[1] > 500
    assert picture[..., :3].std() > 0.02  # not blank
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 20  # seconds of one core


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_has_title_and_text(path: Path):
    source = path.read_text()
    assert len(source.splitlines()) <= 60
    title, blank, text = (ast.get_docstring(ast.parse(source)) or "").split("\n", 2)
    assert title.endswith((".", "?"))
    assert not blank
    assert len(text) > 80


def test_gallery_has_every_example():
    source = ast.parse((ROOT / "docs" / "_ext" / "generated_pages.py").read_text())
    (names,) = [
        ast.literal_eval(node.value)
        for node in source.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXAMPLES"
    ]
    assert sorted(names) == [path.stem for path in EXAMPLES]
    assert len(names) >= 6
