"""The estimator for classification: calibrated probabilities and prediction sets of two or more classes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from compound.estimators.base import Estimator
from compound.estimators.calibration import MAX_ROWS, ConformalSets, TemperatureScaler
from compound.estimators.class_predictions import ClassPredictions
from compound.estimators.columns import Array
from compound.estimators.conformal_scores import aps_score
from compound.estimators.parameters import documented
from compound.estimators.prediction import predictives
from compound.estimators.validation import TrainingTable
from compound.predictive import CategoricalPredictive
from compound.random import derive_seed, named_generator
from compound.train.holdout import held_out_count, last_of_class, stratified_sample
from compound.types import Task


@documented
@dataclass(eq=False, repr=False, kw_only=True)
class CompoundClassifier(ClassifierMixin, ClassPredictions, Estimator):
    """Classification with calibrated probabilities and prediction sets.

    Classes are not reweighted by default: rare classes have small probabilities. Every class has its
    proportion of the held-out rows, rounded up or down at random.

    Parameters
    ----------
    {the parameters of both estimators}
    ordinal : bool or sequence of labels, default=False
        Whether the classes are ordered: one latent number with learnt thresholds between them (cumulative
        probit). True: ascending labels; a sequence gives their order, the lowest first.
    class_weight : dict or "balanced", default=None
        Weights of the classes in training and in the temperature, as in scikit-learn: probabilities are then
        those of the reweighted classes. Prediction sets keep their coverage for the rows as they are.

    Attributes
    ----------
    classes_ : ndarray of shape (classes,)
        The labels, in ascending order, or in that of `ordinal`.
    model_ : Model
        The fitted model, for standardised inputs.
    encoder_ : Encoder
        The encoding of the columns.
    temperature_ : TemperatureScaler
        The calibrated temperature of the probabilities.
    sets_ : ConformalSets or AdaptiveSets
        Calibration scores of held-out rows; after `recalibrate` those of the newest rows.
    group_calibrations_ : dict
        The same for each group that has enough rows.
    ood_detector_ : CombinedDetector
        Evidence that rows are out of distribution, with its threshold.
    history_ : History
        The learning curve.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X had any.
    n_calibration_ : float
        Effective number of held-out rows behind the sets.
    threshold_ : float
        Out-of-distribution score above which `is_ood` is true.

    See Also
    --------
    CompoundRegressor : The same for numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from compound import CompoundClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = np.where(X[:, 0] > 0, "high", "low")
    >>> model = CompoundClassifier("map", max_epochs=100, random_state=0).fit(X, y)
    >>> model.predict([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]])
    array(['high', 'low'], dtype='<U4')
    >>> model.predict_proba(X).shape
    (200, 2)
    >>> model.is_ood([[0.0, 0.0, 0.0], [50.0, 0.0, 0.0]])
    array([False,  True])
    """

    ordinal: bool | Sequence[Any] = False
    class_weight: dict[Any, float] | str | None = None

    @property
    def n_calibration_(self) -> float:
        """Effective number of held-out rows that calibrate the sets."""
        check_is_fitted(self)
        return self.sets_.effective_rows

    def _check_y(self, y: Any) -> Array:
        target = column_or_1d(y, warn=True)
        if pd.isna(target).any():
            raise ValueError("Input y contains NaN: drop or fill the rows without a label")
        assert_all_finite(target, input_name="y")
        check_classification_targets(target)
        return cast(Array, target)

    def _fit_target(self, table: TrainingTable) -> tuple[Task, Tensor]:
        """Labels as indices into `classes_`."""
        y = table.y
        classes, labels = np.unique(y, return_inverse=True)
        if not isinstance(self.ordinal, bool | np.bool_):
            classes, labels = in_order(list(self.ordinal), y)
        if len(classes) < 2:
            raise ValueError(
                f"y holds one class only, {classes.tolist()[0]!r}: "
                "a classifier needs rows of at least two classes"
            )
        if self.warm_start and hasattr(self, "classes_") and not np.array_equal(classes, self.classes_):
            raise ValueError(
                f"y holds the classes {list(classes)}, training began with {list(self.classes_)}: "
                "set warm_start=False"
            )
        self.classes_ = classes
        is_ordinal = self.ordinal is not False and len(classes) > 2  # the order of two classes says nothing
        task = Task("classification", len(classes), "ordinal" if is_ordinal else None)
        return task, torch.from_numpy(labels.astype(np.int64))

    def _training_weights(self, table: TrainingTable) -> Array:
        if self.class_weight is None:
            return table.weights
        return cast(Array, table.weights * compute_sample_weight(self.class_weight, table.y))

    def _drawn_rows(self, y: Tensor, newest: Tensor | None = None) -> Tensor:  # (rows,) bool
        """Draw the rows to hold out, stratified by the class indices y (rows,); the same at every call.

        If `newest` (rows,) marks some, these are held out.
        """
        if newest is not None:
            return newest
        count = held_out_count(len(y), self.validation_fraction)
        return stratified_sample(y, count, derive_seed(self.seed_, "hold out"))

    def _holdout_weights(self, y: Tensor, members: int, newest: Tensor | None = None) -> Tensor:  # (rows,)
        """1 for training rows, 0 for held-out ones, the same for all members: their mixture is calibrated.

        Classes have their proportions among the rows drawn. If all rows of a class are drawn, one of them is
        trained on nevertheless; `_calibrate` gives it the worst score.
        """
        drawn = self._drawn_rows(y, newest)
        return 1.0 - (drawn & ~last_of_class(y, drawn)).float()

    def _calibrate(
        self,
        x: Tensor,
        y: Tensor,
        held_out: Tensor,
        weights: Tensor,
        drawn: Tensor | None = None,
        table: TrainingTable | None = None,
    ) -> None:
        """Fit temperature and sets; a row drawn but trained on (see `last_of_class`) has the score 1.

        A model trained without that row would not know its class. Nor does the model know classes that are
        missing from the table; among new rows, these are about as frequent as such rows among those drawn.
        """
        rows = (held_out | (self._drawn_rows(y) if drawn is None else drawn)).nonzero().squeeze(1)
        order = torch.randperm(len(rows), generator=named_generator(self.seed_, "calibrate"))
        rows = rows[order[:MAX_ROWS]]
        is_held_out = held_out[rows]
        scored = rows[is_held_out]
        labels = y[scored]
        empty = torch.zeros(0, len(self.classes_), dtype=torch.float64)
        blocks = cast(Iterator[CategoricalPredictive], predictives(self.model_, x[scored], self.seed_))
        probs = torch.cat([empty, *(block.probs for block in blocks)])
        reweighted = weights if table is None else torch.from_numpy(self._training_weights(table))
        self.temperature_ = TemperatureScaler.fit(probs, labels, reweighted[scored])
        class_scores = aps_score(self.temperature_.scale_probs(probs))  # (rows, classes)
        scores = torch.ones(len(rows), dtype=torch.float64)
        scores[is_held_out] = class_scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1).double()
        self.sets_ = ConformalSets.fit(scores, weights[rows])
        groups = None if table is None or table.groups is None else table.groups[rows.numpy()]
        self._fit_groups(ConformalSets, scores, weights[rows], groups)

    @property
    def pooled_(self) -> Any:
        """The calibration of all rows."""
        return self.sets_

    def _set_pooled(self, calibration: Any) -> None:
        self.sets_ = calibration

    def _block_scores(self, predictive: Any, y: Tensor) -> Tensor:
        return aps_score(predictive.probs).gather(-1, y.unsqueeze(-1))

    def _truth(self, y: Any, event: Array | None) -> Tensor:
        return torch.from_numpy(in_order(self.classes_.tolist(), self._check_y(y))[1])


def in_order(classes: list[Any], y: Array) -> tuple[Array, Array]:
    """Labels y (rows,) as indices into these classes, and the classes as an array of the labels' type."""
    index = {label: i for i, label in enumerate(classes)}
    if len(index) < len(classes):
        raise ValueError(f"ordinal is {classes!r}: give every label once")
    for label in y.tolist():
        if label not in index:
            raise ValueError(f"y holds {label!r}, which is none of the classes {classes!r}")
    ordered = np.array(classes, dtype=y.dtype if y.dtype.kind != "U" else None)
    return ordered, np.array([index[label] for label in y.tolist()], dtype=np.int64)
