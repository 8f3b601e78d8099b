"""The estimator for classification: calibrated probabilities and prediction sets of two or more classes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
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
from compound.estimators.columns import Array
from compound.estimators.conformal_scores import aps_score
from compound.estimators.prediction import predictives
from compound.estimators.validation import TrainingTable
from compound.models import Method
from compound.predictive import CategoricalPredictive, Predictive
from compound.random import derive_seed, named_generator
from compound.train.holdout import held_out_count, last_of_class, stratified_sample
from compound.train.progress import FitCallback
from compound.types import Task


class CompoundClassifier(ClassifierMixin, Estimator):
    """Classification with calibrated probabilities and prediction sets.

    Classes are not reweighted by default: rare classes have small probabilities. Every class has its
    proportion of the held-out rows, rounded up or down at random.

    Parameters
    ----------
    method : str or Method, default="ml-cdn"
        The method: a name such as "ml-cdn", "vb-cdn" or "deep-ensemble", or `Method("ml-cdn", lam=1e-4)` with
        options.
    ordinal : bool or sequence of labels, default=False
        Whether the classes are ordered: one latent number with learnt thresholds between them (cumulative
        probit). True: ascending labels; a sequence gives their order, the lowest first.
    class_weight : dict or "balanced", default=None
        Weights of the classes in training and in the temperature, as in scikit-learn: probabilities are then
        those of the reweighted classes. Prediction sets keep their coverage for the rows as they are.
    max_epochs : int, default=None
        Passes over the training rows, at most. None: 2,000 to 10,000 steps, depending on the number of rows.
    batch_size : int, default=None
        Rows per optimizer step. None: 200.
    lr : float, default=None
        Learning rate. None: 0.003.
    early_stopping : bool, default=True
        Whether held-out rows choose the stopping step.
    validation_fraction : float, default=0.1
        Fraction of the rows that is held out, for early stopping and calibration.
    false_positive_rate : float, default=0.01
        Fraction of ordinary rows that `is_ood` marks.
    warm_start : bool, default=False
        Whether `fit` continues with the weights of the last fit.
    random_state : int, RandomState or None, default=None
        Seed of weights, batches and noise. Equal seeds give equal bits.
    device : {"auto", "cpu"}, default="auto"
        Where to compute; tables are fitted on the CPU.
    verbose : bool, default=False
        Whether to show a progress bar.
    callbacks : sequence of callable, default=None
        Functions that are called with a `FitProgress` during `fit`.
    checkpoint : str or Path, default=None
        A file to which `fit` saves its progress, and from which an interrupted one is resumed to the same
        bits.
    distributed : bool, default=False
        Whether the processes of torch.distributed fit one model together (see docs/scale.md).

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

    classes_: Array
    temperature_: TemperatureScaler
    sets_: Any  # ConformalSets or AdaptiveSets

    def __init__(
        self,
        method: str | Method = "ml-cdn",
        *,
        ordinal: bool | Sequence[Any] = False,
        class_weight: dict[Any, float] | str | None = None,
        max_epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        false_positive_rate: float = 0.01,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
        callbacks: Sequence[FitCallback] | None = None,
        checkpoint: str | Path | None = None,
        distributed: bool = False,
    ):
        super().__init__(
            method,
            max_epochs=max_epochs,
            batch_size=batch_size,
            lr=lr,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            false_positive_rate=false_positive_rate,
            warm_start=warm_start,
            random_state=random_state,
            device=device,
            verbose=verbose,
            callbacks=callbacks,
            checkpoint=checkpoint,
            distributed=distributed,
        )
        self.ordinal = ordinal
        self.class_weight = class_weight

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
