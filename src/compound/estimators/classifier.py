"""Labels to predict: two classes or many, numbers or text."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from compound.estimators.base import Array, Estimator
from compound.estimators.calibration import ROWS, ConformalSets, TemperatureScaler, aps_score
from compound.estimators.prediction import answers, to_float64
from compound.predictive import CategoricalPredictive, Predictive
from compound.random import derive_seed, named_generator
from compound.train.loop import held_out_count, last_of_class, stratified_sample
from compound.types import Task


class CompoundClassifier(ClassifierMixin, Estimator):
    """Predictive probabilities of classes, calibrated on held-out rows.

    `method` is a name ("ml-cdn", "vb-cdn", "deep-ensemble", ...) or `Method("ml-cdn", lam=1e-4)`. Rare classes keep their honest,
    small probabilities: nothing is reweighted, and every class has its share of the held-out rows, rounded up or down at random.

    >>> model = CompoundClassifier(random_state=0).fit(X, y)
    >>> model.predict_proba(X_new), model.decompose(X_new).epistemic, model.is_ood(X_new)
    """

    classes_: Array
    temperature_: TemperatureScaler
    sets_: ConformalSets

    def predict(self, X: Any) -> Array:
        """The most probable class of each row."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> Array:  # (rows, classes)
        """Probabilities, in the order of `classes_`."""
        return self._each(X, lambda answer: answer.probs).numpy()

    def predict_log_proba(self, X: Any) -> Array:
        return np.log(np.clip(self.predict_proba(X), np.finfo(np.float64).tiny, None))

    def predict_set(self, X: Any, coverage: float = 0.9) -> Array:  # (rows, classes) of truth values
        """Which classes are in the set that holds the true one with probability `coverage`, calibrated on held-out rows.

        Few of them (`n_calibration_`, for a coverage of 0.9 fewer than 9) vouch for the set of all classes only.
        """
        check_is_fitted(self)
        reach = self.sets_.conformal_quantile(coverage)
        return self._each(X, lambda answer: aps_score(answer.probs) <= reach).numpy()

    @property
    def n_calibration_(self) -> float:
        check_is_fitted(self)
        return self.sets_.rows

    def predict_dist(self, X: Any) -> CategoricalPredictive:
        """The whole predictive: probabilities with the shares of their entropy, as tensors."""
        return cast(CategoricalPredictive, Predictive.concat(list(self._categories(X))))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int = 0) -> Array:  # (rows, samples)
        """Labels drawn from each row's predictive."""
        generator = named_generator(random_state, "sample")
        parts = [answer.sample(n_samples, generator).T for answer in self._categories(X)]
        return self.classes_[torch.cat(parts).numpy()]

    def _categories(self, X: Any) -> Iterator[CategoricalPredictive]:
        return cast(Iterator[CategoricalPredictive], self._answers(X))

    def _check_y(self, y: Any) -> Array:
        target = column_or_1d(y, warn=True)
        if pd.isna(target).any():
            raise ValueError("Input y contains NaN: drop or fill the rows without a label")
        assert_all_finite(target, input_name="y")
        check_classification_targets(target)
        return cast(Array, target)

    def _learn_y(self, y: Array) -> tuple[Task, Tensor]:
        classes, labels = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"y holds one class only, {classes.tolist()[0]!r}: a classifier needs rows of at least two classes"
            )
        if self.warm_start and hasattr(self, "classes_") and not np.array_equal(classes, self.classes_):
            raise ValueError(
                f"y holds the classes {list(classes)}, training began with {list(self.classes_)}: set warm_start=False"
            )
        self.classes_ = classes
        return Task("classification", len(classes)), torch.from_numpy(labels.astype(np.int64))

    def _drawn(self, y: Tensor) -> Tensor:  # (rows,) True = to be held out
        return stratified_sample(
            y, held_out_count(len(y), self.validation_fraction), derive_seed(self.seed_, "hold out")
        )

    def _hold_out(self, y: Tensor, members: int) -> Tensor:
        """A part of every class, its share in expectation; the same rows for all members, for their answer comes as one.

        To be like rows to come, held-out rows must hold small classes as often as the table does. The last row of a class is learnt
        from nevertheless: `_calibrate` counts it as a row held out in vain.
        """
        drawn = self._drawn(y)
        return 1.0 - (drawn & ~last_of_class(y, drawn)).float()

    def _calibrate(self, x: Tensor, y: Tensor, held: Tensor, weights: Tensor) -> None:
        """A row drawn but learnt from, as the last of its class, has the worst of scores.

        No model without it could know the class: nor will it know the classes that are missing from the table, whose rows come about
        as often as such last ones are drawn.
        """
        rows = (held | self._drawn(y)).nonzero().squeeze(1)
        rows = rows[torch.randperm(len(rows), generator=named_generator(self.seed_, "calibrate"))[:ROWS]]
        scores, unseen = torch.ones(len(rows), dtype=torch.float64), held[rows]
        seen, weights, rows = weights[rows], weights[rows][unseen], rows[unseen]
        none = torch.zeros(0, len(self.classes_), dtype=torch.float64)
        probs = torch.cat(
            [
                none,
                *(
                    cast(CategoricalPredictive, answer).probs
                    for answer in answers(self.model_, x[rows], self.seed_)
                ),
            ]
        )
        self.temperature_ = TemperatureScaler.fit(probs, y[rows], weights)
        scores[unseen] = (
            aps_score(self.temperature_.soften(probs)).gather(-1, y[rows].unsqueeze(-1)).squeeze(-1).double()
        )
        self.sets_ = ConformalSets.fit(scores, seen)

    def _postprocess(self, answer: Predictive) -> Predictive:
        return self.temperature_(to_float64(cast(CategoricalPredictive, answer)))
