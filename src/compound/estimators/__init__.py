"""scikit-learn estimators for tables: `CompoundRegressor` and `CompoundClassifier`."""

from compound.estimators.classifier import CompoundClassifier as CompoundClassifier
from compound.estimators.files import load as load
from compound.estimators.regressor import CompoundRegressor as CompoundRegressor
