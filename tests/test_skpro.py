"""skpro's own checks of the regressor and of its distribution; both against `CompoundRegressor`."""

import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import integrate

from compound import CompoundRegressor

pytest.importorskip("skpro", reason="skpro is not installed")

from compound.models import Method
from compound.skpro import CompoundProbaRegressor, PredictiveDistribution

SMALL = Method("ml-cdn", members=2, widths=(6,), hyper=(4,))


def table(rows: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    random = np.random.default_rng(0)
    X = pd.DataFrame({"a": random.normal(size=rows), "b": random.choice(["x", "y"], rows)})
    noise = random.normal(size=(rows, 2)) * 0.1
    y = pd.DataFrame(noise, columns=["u", "v"]).add(X["a"], axis=0)
    return X.set_index(X.index + 7), y.set_index(y.index + 7)


@pytest.fixture(scope="module")
def fitted() -> tuple[CompoundProbaRegressor, CompoundRegressor, pd.DataFrame]:
    """The regressor of skpro, our own fitted alike, and new rows."""
    X, y = table(150)
    options = {"method": SMALL, "max_epochs": 10, "random_state": 3}
    ours = CompoundRegressor(**options).fit(X[:120], y[:120])
    return CompoundProbaRegressor(**options).fit(X[:120], y[:120]), ours, X[120:]


@pytest.mark.parametrize("checked", [CompoundProbaRegressor, PredictiveDistribution])
def test_checks_of_skpro_pass(checked):
    from skpro.utils import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of skpro
        results = check_estimator(checked, verbose=False)
    failures = {name: result for name, result in results.items() if result != "PASSED"}
    assert len(results) > 50 and not failures


def test_predictions_are_those_of_the_estimator(fitted):
    model, ours, X = fitted
    assert np.array_equal(model.predict(X), ours.predict(X))
    assert model.predict(X).index.equals(X.index) and list(model.predict(X)) == ["u", "v"]
    lower, upper = ours.predict_interval(X, 0.8)
    intervals = model.predict_interval(X, coverage=[0.5, 0.8])
    for k, name in enumerate("uv"):
        assert np.array_equal(intervals[name, 0.8, "lower"], lower[:, k])
        assert np.array_equal(intervals[name, 0.8, "upper"], upper[:, k])
    quantiles = model.predict_quantiles(X, alpha=[0.3, 0.1])
    assert np.array_equal(quantiles["v"][0.1], ours.predict_quantiles(X, 0.1)[:, 1, 0])


def test_the_distribution_is_the_mixture(fitted):
    model, ours, X = fitted
    distribution, predictive = model.predict_proba(X), ours.predict_dist(X)
    assert np.allclose(distribution.mean(), predictive.mean)
    one = distribution.loc[[X.index[4]], ["v"]]
    grid = np.linspace(-8, 8, 8001)
    density = np.array([one.pdf(y).iloc[0, 0] for y in grid[::8]])
    step = grid[8] - grid[0]
    assert integrate.simpson(density, dx=step) == pytest.approx(1, abs=1e-6)
    assert integrate.simpson(density * grid[::8], dx=step) == pytest.approx(one.mean().iloc[0, 0], abs=1e-6)
    centred = (grid[::8] - one.mean().iloc[0, 0]) ** 2
    assert integrate.simpson(density * centred, dx=step) == pytest.approx(one.var().iloc[0, 0], rel=1e-4)
    levels = np.random.default_rng(1).uniform(0.001, 0.999, (len(X), 2))
    assert np.allclose(distribution.cdf(distribution.ppf(levels)), levels, atol=1e-12)
    scalar = distribution.iat[4, 1]
    assert scalar.ndim == 0 and scalar.pdf(0.3) == pytest.approx(one.pdf(0.3).iloc[0, 0])


def test_draws_have_the_moments_of_the_distribution(fitted):
    model, _, X = fitted
    distribution = model.predict_proba(X).iloc[:3]
    np.random.seed(0)
    draws = distribution.sample(4000)
    assert draws.index.get_level_values(1).unique().equals(X.index[:3])
    means = draws.groupby(level=1).mean()
    errors = np.sqrt(distribution.var() / 4000)
    assert (np.abs(means - distribution.mean()) < 5 * errors).all().all()


def test_without_skpro_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['skpro'] = None\n"
        "import compound.skpro\n"
        "try: compound.skpro.CompoundProbaRegressor\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'compound-torch[skpro]'" in done.stdout
