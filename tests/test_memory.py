"""Prediction of many rows needs little memory; an exported program for too many rows is refused."""

import subprocess
import sys

import numpy as np
import pytest

from compound import CompoundRegressor
from compound.estimators import export

SCRIPT = """
import resource, torch
from compound import Task, build, named_generator
from compound.models import Method
torch.set_num_threads(1)
rows = 100_000
x = torch.randn(rows, 2, generator=named_generator(0))
model = build(Method("ml-cdn", widths=(5,), hyper=(4,), members=1, noise=0.5), 2, Task("{kind}", 2), 0)
model.predict(x[:10], named_generator(1))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seen = sum(len(part.total) for part in model.predict_chunks(x, named_generator(1)))
assert seen == rows
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_chunked_prediction_has_bounded_memory(kind):
    """100,000 rows x 100 draws are 80 MB of logits per copy; the chunk size follows from the budget."""
    out = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(kind=kind)], capture_output=True, text=True, check=True
    )
    assert int(out.stdout) < 700 * 1024  # KiB


def test_a_program_for_too_many_rows_is_refused_before_any_work(tmp_path, monkeypatch):
    x = np.linspace(-1, 1, 30)[:, None]
    model = CompoundRegressor("map", max_epochs=1, random_state=0).fit(x, x[:, 0])
    for rows in (0, 1_000_000_000):
        with pytest.raises(ValueError, match=f"rows is {rows:,}: a program takes between 1 and 4,096"):
            model.export(tmp_path / "a.pt2", rows)
    monkeypatch.setattr(export, "available", lambda: 10**6)
    with pytest.raises(
        ValueError, match=r"needs about \d+\.\d GB to make, 0\.0 GB are free: give at most \d+ rows"
    ):
        model.export(tmp_path / "a.pt2", 4096)
    assert not list(tmp_path.iterdir())
