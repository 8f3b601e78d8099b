"""What a fitted classifier says of new rows: classes, probabilities, sets, samples."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from compound.estimators.calibration import TemperatureScaler
from compound.estimators.columns import Array
from compound.estimators.conformal_scores import aps_score
from compound.estimators.mixins import UncertaintyMixin
from compound.estimators.thresholds import ThresholdMixin
from compound.predictive import CategoricalPredictive, Predictive
from compound.random import named_generator


class ClassPredictions(UncertaintyMixin, ThresholdMixin):
    """Predictions of `CompoundClassifier`."""

    classes_: Array
    temperature_: TemperatureScaler
    sets_: Any  # ConformalSets or AdaptiveSets

    def predict(self, X: Any) -> Array:
        """Predict the most probable class of each row.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.

        Returns
        -------
        ndarray of shape (rows,)
            Labels.
        """
        most_probable = self.predict_proba(X).argmax(1)
        return self.classes_[most_probable]

    def predict_proba(self, X: Any) -> Array:
        """Predict the probability of each class.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.

        Returns
        -------
        ndarray of shape (rows, classes)
            Calibrated probabilities, in the order of `classes_`.
        """
        return self._map_rows(X, lambda predictive: predictive.probs).numpy()

    def predict_log_proba(self, X: Any) -> Array:
        """Predict the log of the probability of each class.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.

        Returns
        -------
        ndarray of shape (rows, classes)
            Finite log-probabilities, in the order of `classes_`.
        """
        return np.log(np.clip(self.predict_proba(X), np.finfo(np.float64).tiny, None))

    def predict_set(self, X: Any, coverage: float = 0.9, *, groups: Any = None) -> Array:
        """Predict sets of classes, calibrated on held-out rows by conformal prediction.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.
        coverage : float, default=0.9
            Probability that the set holds the true class. With `n_calibration_` below 9, the set of coverage
            0.9 is that of all classes.
        groups : array-like of shape (rows,) or str, default=None
            Groups of the rows, if the estimator was fitted with groups; by default the column given there.

        Returns
        -------
        ndarray of bool of shape (rows, classes)
            Which classes are in the set, in the order of `classes_`.
        """
        check_is_fitted(self)
        labels = self.row_groups(X, groups)
        scores = self._map_rows(X, lambda predictive: aps_score(predictive.probs))  # (rows, classes)
        return (scores <= self.thresholds(coverage, len(scores), labels)).numpy()

    def predict_dist(self, X: Any) -> CategoricalPredictive:
        """Predict the distribution of each row.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.

        Returns
        -------
        CategoricalPredictive
            Probabilities with the components of their entropy, as tensors.
        """
        return cast(CategoricalPredictive, Predictive.concat(list(self._predictives(X))))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int = 0) -> Array:
        """Draw labels from each row's predictive distribution.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.
        n_samples : int, default=1
            Samples per row.
        random_state : int, default=0
            Seed.

        Returns
        -------
        ndarray of shape (rows, n_samples)
            Labels.
        """
        generator = named_generator(random_state, "sample")
        samples = [
            predictive.sample(n_samples, generator).T
            for predictive in cast(Iterator[CategoricalPredictive], self._predictives(X))
        ]
        return self.classes_[torch.cat(samples).numpy()]
