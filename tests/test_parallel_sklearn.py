"""scikit-learn's and joblib's ways to use several processes work with the estimators."""

import joblib
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score

from compound import CompoundClassifier, CompoundRegressor


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    return x, x[:, 0] + 0.1 * rng.normal(size=60)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_scores_of_folds_do_not_depend_on_the_number_of_processes(data, n_jobs: int):
    x, y = data
    model = CompoundRegressor("map", max_epochs=3, random_state=0)
    alone = [model.fit(x[20:], y[20:]).score(x[:20], y[:20])]
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        scores = cross_val_score(model, x, y, cv=3, n_jobs=n_jobs)
    assert scores[:1].tolist() == alone


def test_grid_search_in_processes_sets_options_of_the_method(data):
    x, y = data
    model = CompoundClassifier("map", max_epochs=3, random_state=0)
    grid = {"method__widths": [(2,), (4,)], "lr": [1e-3]}
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        search = GridSearchCV(model, grid, cv=2, n_jobs=2).fit(x, (y > 0).astype(int))
    assert search.best_estimator_.model_.config.widths == search.best_params_["method__widths"]
    assert not np.isnan(search.cv_results_["mean_test_score"]).any()
