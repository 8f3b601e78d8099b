"""Methods of both estimators that use a fitted model: uncertainty, out-of-distribution scores, files."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from compound.estimators.columns import Array
from compound.estimators.encoder import Encoder
from compound.estimators.prediction import block_rows, epistemic, estimator_blocks, map_rows, ood_scores
from compound.estimators.validation import encode_table
from compound.models import Model
from compound.ood import CombinedDetector
from compound.predictive import Predictive


class Decomposition(NamedTuple):
    """Uncertainty by source, each an array (rows,) or (rows, targets).

    total = aleatoric + epistemic, aleatoric = component + mixing, epistemic = posterior.
    Regression: variances, in squared units of the target. Classification: entropies, in nats.
    """

    total: Array
    aleatoric: Array
    epistemic: Array
    component: Array
    mixing: Array
    posterior: Array


class UncertaintyMixin:
    """Predictives, their decomposition, and out-of-distribution scores of the rows of a table."""

    model_: Model
    encoder_: Encoder
    ood_detector_: CombinedDetector
    seed_: int

    def decompose(self, X: Any) -> Decomposition:
        """Split each row's uncertainty into aleatoric (noise) and epistemic (what more data would reduce).

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.

        Returns
        -------
        Decomposition
            Arrays total, aleatoric, epistemic, component, mixing and posterior of shape (rows,) or (rows,
            targets): variances for regression, entropies in nats for classification.
        """
        parts = self._map_rows(
            X,
            lambda predictive: torch.stack([getattr(predictive, name) for name in Decomposition._fields], -1),
        )
        return Decomposition(*(self._shape_like_y(part) for part in parts.unbind(-1)))

    def ood_score(self, X: Any) -> Array:
        """How unusual each row is: -log10 of the fraction of ordinary rows that are as unusual.

        2 means about one ordinary row in a hundred, 3 one in a thousand. The score is the largest of what
        several witnesses say: the distance from the nearest training rows, the whitened distance from their
        clusters, the epistemic part of the prediction, and values that no training row had.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.

        Returns
        -------
        ndarray of shape (rows,)
            Out-of-distribution scores, at least 0; higher is more unusual, without an upper bound.
        """
        check_is_fitted(self)
        x = encode_table(self, X)
        return ood_scores(self.ood_detector_, x, epistemic(self, x), block_rows(self.model_)).numpy()

    def is_ood(self, X: Any) -> Array:
        """Which rows are out-of-distribution: their score exceeds `threshold_`.

        Parameters
        ----------
        X : array-like or data frame of shape (rows, columns)
            The inputs.

        Returns
        -------
        ndarray of bool of shape (rows,)
            True for a fraction of about `false_positive_rate` of rows like those of training.
        """
        return self.ood_score(X) > self.threshold_

    @property
    def threshold_(self) -> float:
        """The out-of-distribution score above which `is_ood` is true."""
        check_is_fitted(self)
        return self.ood_detector_.threshold

    def _shape_like_y(self, values: Tensor) -> Array:
        """Values (rows, ...) as an array; for regression the axis of targets is dropped if y was (rows,)."""
        return values.numpy()

    def _map_rows(self, X: Any, function: Callable[[Any], Tensor]) -> Tensor:  # (rows, ...)
        """`function` of the predictives of the rows of a table, which maps a block of them to (rows, ...)."""
        check_is_fitted(self)
        return map_rows(self, encode_table(self, X), function)

    def _predictives(self, X: Any) -> Iterator[Predictive]:
        """Predictives block by block, calibrated and in the units of y."""
        check_is_fitted(self)
        blocks = estimator_blocks(self, encode_table(self, X))
        return (predictive[:rows] for predictive, rows in blocks)


class FileMixin:
    """Saving, loading and exporting fitted estimators."""

    def save(self, path: str | Path) -> None:
        """Save the fitted estimator as a directory of safetensors and JSON, with checksums.

        Parameters
        ----------
        path : str or Path
            The directory to write; a model that is there is replaced.
        """
        from compound.estimators.files import save

        save(cast(Any, self), path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load an estimator that `save` has written; its predictions are equal to the last bit.

        Parameters
        ----------
        path : str or Path
            The model directory. Nothing in its files is executed.

        Returns
        -------
        Self
            The fitted estimator.
        """
        from compound.estimators.files import load

        estimator = load(path)
        if not isinstance(estimator, cls):
            kind = type(estimator).__name__
            raise ValueError(f"{path} holds a {kind}, not a {cls.__name__}: use {kind}.load")
        return estimator

    def export(self, path: str | Path, rows: int = 128) -> None:
        """Write a program that predicts without this library (see estimators/export.py).

        Parameters
        ----------
        path : str or Path
            The file to write: .pt2 for `torch.export`, .onnx for ONNX Runtime, .mar for TorchServe.
        rows : int, default=128
            How many rows the program takes at a time.
        """
        from compound.estimators.export import export

        export(cast(Any, self), path, rows)
