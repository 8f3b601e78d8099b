"""Models saved by earlier commits load and give the same answers; tests/saved_models/make.py saved them."""

import numpy as np
import pytest
from saved_models import make

import compound

SAVED = sorted(path.with_suffix("") for path in make.HERE.glob("layout-*/*.npz"))


@pytest.mark.parametrize("path", SAVED, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_models_of_earlier_commits_give_the_same_answers(path):
    """To the rounding of float32: kernels have since changed the order in which they add."""
    model, x = compound.load(path), make.table()[["a", "b", "word"]].head(20)
    found = make.answers(model, x)
    with np.load(path.with_suffix(".npz")) as expected:
        assert set(expected) == set(found)
        for name, values in expected.items():
            if name in ("set", "bounds"):
                size = np.ptp(values, axis=-1).mean() if name == "bounds" else 1.0
            else:
                size = np.abs(values).mean()
            np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-5 * size, err_msg=name)


def test_every_layout_that_is_read_is_tried():
    from compound.estimators.files import READABLE

    assert {path.parent.name for path in SAVED} == {f"layout-{layout}" for layout in READABLE}
