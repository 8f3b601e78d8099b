"""The elementary functions of compiled loops."""

import numpy as np
import pytest
from numba import njit

from compound.ops import jit


def vectorised(function):
    """A compiled function of one number, applied to an array."""

    @njit
    def loop(x):
        out = np.empty_like(x)
        for i in range(len(x)):
            out[i] = function(x[i])
        return out

    return loop


@pytest.mark.parametrize(
    ("name", "x", "ulps"),
    [
        ("exp", np.linspace(-87, 88, 20_001), 2),
        ("log", np.geomspace(1e-37, 1e37, 20_001), 2),
        ("log", np.linspace(0.5, 2.0, 20_001), 4),
        ("log1p", np.geomspace(1e-30, 1.0, 20_001), 4),
    ],
)
def test_elementary_functions_are_accurate_to_a_few_ulps(name, x, ulps):
    x = x.astype(np.float32)
    exact = getattr(np, name)(x.astype(np.float64))
    ulp = np.maximum(np.spacing(np.abs(exact).astype(np.float32)), np.float32(1e-40))
    assert (np.abs(vectorised(getattr(jit, name))(x) - exact) / ulp).max() <= ulps


def test_exp_stays_within_float32():
    low, high, nan = vectorised(jit.exp)(np.array([-1e6, 1e6, np.nan], dtype=np.float32))
    assert 0 <= low < 1e-37 and 1e38 < high < np.inf and np.isnan(nan)
