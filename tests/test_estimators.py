"""Estimators for tables: scikit-learn's contract, honest intervals, strangeness, files."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from compound import CompoundClassifier, CompoundRegressor, Method

TINY = {"widths": (20,), "hyper": (10,)}
REGRESSOR = CompoundRegressor(Method("ml-cdn", members=2, **TINY), max_epochs=20, batch_size=32)
CLASSIFIER = CompoundClassifier(Method("ml-cdn", **TINY), max_epochs=15, batch_size=32)


def excused(estimator):
    return {"check_sample_weight_equivalence_on_dense_data": "rows are shuffled into batches, as in scikit-learn's own SGD"}


@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API.*")
@parametrize_with_checks([REGRESSOR, CLASSIFIER], expected_failed_checks=excused)
def test_keeps_the_contract_of_scikit_learn(estimator, check):
    check(estimator)
