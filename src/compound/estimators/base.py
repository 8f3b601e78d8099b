"""What both estimators share: from a table to a fitted model, and from rows to answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)
from torch import Generator, Tensor

from compound.estimators import memory
from compound.estimators.encoder import Encoder, all_numbers, as_frame, refuse_times
from compound.estimators.prediction import BLOCK, blocks, first, padded, sound
from compound.models import Method, Model
from compound.models.base import train_mask
from compound.ood.detector import OODDetector
from compound.predictive import Predictive
from compound.random import named_generator
from compound.train.loop import FitProgress, History, TrainConfig, default_train_config, fit, progress_bar
from compound.types import Task, make_dataset

Array = NDArray[Any]
SMALL = 100  # rows below which fewer steps will do


class Decomposition(NamedTuple):
    """Doubt by its source, row by row: total = aleatoric + epistemic, aleatoric = component + mixing, epistemic = posterior.

    Targets: variances, in squared units of the target. Classes: entropies, in nats.
    """

    total: Array
    aleatoric: Array
    epistemic: Array
    component: Array
    mixing: Array
    posterior: Array


class Estimator(BaseEstimator, ABC):
    """A method behind scikit-learn's interface."""

    model_: Model
    encoder_: Encoder
    history_: History
    ood_detector_: OODDetector
    seed_: int
    n_features_in_: int

    def __init__(
        self,
        method: str | Method = "ml-cdn",
        *,
        max_epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        false_alarms: float = 0.01,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
        callbacks: Sequence[Callable[[FitProgress], None]] | None = None,
    ):
        self.method = method
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.lr = lr
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.false_alarms = false_alarms
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        self.callbacks = callbacks

    def set_params(self, **params: Any) -> Self:
        """As in scikit-learn; `method__lam` also works while the method is only a name."""
        if (
            isinstance(self.method, str)
            and "method" not in params
            and any(name.startswith("method__") for name in params)
        ):
            self.method = Method(self.method)
        return super().set_params(**params)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = False
        return tags

    @abstractmethod
    def _learn_y(self, y: Any) -> tuple[Task, Tensor]:
        """What is to be predicted, and y as a model takes it; keeps how to go back."""

    @abstractmethod
    def _check_y(self, y: Any) -> Array:
        """y as a clean array, or a sentence about what is wrong with it."""

    @abstractmethod
    def _hold_out(self, y: Tensor, members: int) -> Tensor:
        """Weights 1 and 0 (= held out), (rows,) or (members, rows)."""

    @abstractmethod
    def _calibrate(self, x: Tensor, y: Tensor, held: Tensor, weights: Tensor) -> None:
        """Learn from held-out rows, marked True in (rows,) or (members, rows), each as heavy as its entry of weights (rows,)."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from a table X (array or data frame; missing values and text columns are fine) and what to predict of it.

        A part of the rows (`validation_fraction`) is held out to stop in time and to calibrate. `sample_weight` says how much a row
        counts, in training and in calibration: coverage is then meant for the population that the weights describe.
        """
        method, warm = self._checked(), self.warm_start and hasattr(self, "model_")
        table = self._table(X, reset=not warm)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        target = self._check_y(y)
        check_consistent_length(table, target)
        weights = _check_sample_weight(sample_weight, target, dtype=np.float64, ensure_non_negative=True)
        kept = weights > 0  # weight 0 is as if the row were not there
        if not kept.any():
            raise ValueError("sample_weight is 0 for every row: give at least one row a weight")
        if not kept.all():
            table, target, weights = table[kept], target[kept], weights[kept]

        task, truth = self._learn_y(target)
        method = method.with_limits() if task.kind == "regression" else method
        names = [str(name) for name in getattr(self, "feature_names_in_", [])]
        settings, members = self._settings(task, len(truth)), memory.skeleton(method, 1, task).members
        memory.check(
            method, len(truth), table.shape[1], task, settings.batch_size, members
        )  # at least: encoding makes columns more
        encoder = self.encoder_ if warm else Encoder.fit(table, names)
        memory.check(method, len(truth), encoder.width, task, settings.batch_size, members)
        self.encoder_ = encoder
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        x = torch.from_numpy(encoder.transform(table))
        if not warm or self.model_.task != task:
            self.model_ = method.build(encoder.width, task, self.seed_)

        weight = self._hold_out(truth, members)
        held = weight == 0
        weight = weight * torch.from_numpy(weights / weights.mean()).float()
        outside = None
        if self.model_.needs_ood_rows:
            outside = synthetic_outliers(x, named_generator(self.seed_, "outside"))
        with ExitStack() as stack:
            watches = [
                *(self.callbacks or ()),
                *([stack.enter_context(progress_bar("fit"))] if self.verbose else []),
            ]
            data = make_dataset(x, truth, task, weight, outside)
            self.history_ = fit(self.model_, data, settings, self.seed_, callback=_to_all(watches))
        self.ood_detector_ = self._fit_detector(x, train_mask(data))
        distance = self.ood_detector_.distance
        for tensor in (*self.model_.parameters(), *self.model_.buffers(), *distance.buffers()):
            tensor.data = (
                tensor.data.contiguous()
            )  # as it will be loaded: products of another layout differ in the last bit
        self._calibrate(x, truth, held, torch.from_numpy(weights))
        return self

    def _fit_detector(self, x: Tensor, trained_on: Tensor) -> OODDetector:
        """The model's own distance with a threshold; a distance is fitted here where the model has none.

        The threshold comes from distances of rows as if they were new: cross-fitted ones of rows that the model was trained on,
        True in trained_on (rows,), and those of the others.
        """
        distance = self.model_.distance
        if distance is None or distance.cross_fitted is None:
            return OODDetector.fit(x, self.false_alarms, named_generator(self.seed_, "strange"))
        distances = torch.cat([distance.cross_fitted, distance(x[~trained_on])])
        return OODDetector.from_distances(distance, distances, self.false_alarms)

    def decompose(self, X: Any) -> Decomposition:
        """How much each row is in doubt, and why: aleatoric (noise in the data) and epistemic (what more data would settle)."""
        parts = self._each(
            X, lambda answer: torch.stack([getattr(answer, name) for name in Decomposition._fields], -1)
        )
        return Decomposition(*(self._shaped(part) for part in parts.unbind(-1)))

    def ood_score(self, X: Any) -> Array:  # (rows,)
        """How unlike the training rows each row is: whitened distance from the nearest centre, higher = stranger."""
        check_is_fitted(self)
        return self._ood_scores(self._encoded(X))

    def is_ood(self, X: Any) -> Array:  # (rows,)
        """Which rows are stranger than all but a share `false_alarms` of ordinary ones."""
        return self.ood_score(X) > self.threshold_

    @property
    @abstractmethod
    def n_calibration_(self) -> float:
        """How many held-out rows vouch for intervals or sets; weights that differ make them fewer (Kish's effective number)."""

    @property
    def threshold_(self) -> float:
        """The score beyond which a row counts as strange."""
        check_is_fitted(self)
        return self.ood_detector_.threshold

    def save(self, path: str | Path) -> None:
        """A directory with everything `load` needs: safetensors and JSON, with checksums."""
        from compound.estimators.files import save

        save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The estimator saved at `path`; it answers with the same bits. Nothing in the files is executed."""
        from compound.estimators.files import load

        found = load(path)
        if not isinstance(found, cls):
            raise ValueError(
                f"{path} holds a {type(found).__name__}, not a {cls.__name__}: use {type(found).__name__}.load"
            )
        return found

    def export(self, path: str | Path, rows: int = BLOCK) -> None:
        """A `torch.export` program at `path` that answers `rows` rows at a time without this library (see export.py)."""
        from compound.estimators.export import export

        export(self, path, rows)

    def _checked(self) -> Method:
        """Every parameter looked at before any work."""
        method = self.method if isinstance(self.method, Method) else Method(self.method)
        if self.device not in ("auto", "cpu"):
            raise ValueError(f"device is {self.device!r}: tables are fitted on the CPU, use 'auto' or 'cpu'")
        for name in ("max_epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, (int, np.integer)) or value < 1):
                raise ValueError(f"{name} is {value!r}: give a whole number of at least 1, or None")
        if self.lr is not None and not 0 < self.lr < np.inf:
            raise ValueError(f"lr is {self.lr!r}: give a number above 0, or None")
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(
                f"validation_fraction is {self.validation_fraction!r}: give a part of the rows, at least 0 and below 1"
            )
        if not 0 < self.false_alarms < 1:
            raise ValueError(
                f"false_alarms is {self.false_alarms!r}: give a rate between 0 and 1, such as 0.01"
            )
        return method

    def _settings(self, task: Task, rows: int) -> TrainConfig:
        usual = default_train_config(task, rows)
        batch, steps = self.batch_size or usual.batch_size, usual.steps
        if self.max_epochs is not None:
            steps = self.max_epochs * max(1, rows // batch)
        elif rows < SMALL:
            steps = max(steps // 5, steps * rows // SMALL)
        checks, patience = (
            (min(usual.n_evals, max(5, steps // 20)), usual.patience) if self.early_stopping else (0, 0)
        )
        return replace(
            usual,
            steps=int(steps),
            batch_size=int(batch),
            lr=self.lr or usual.lr,
            n_evals=checks,
            patience=patience,
        )

    def _table(self, X: Any, reset: bool) -> Any:
        """X as an array of numbers, or as a data frame where columns hold anything else; names and number of columns are checked."""
        frame = as_frame(X)
        if frame is None and not reset and not self.encoder_.plain:
            raise ValueError(
                "X is a bare array, but columns of words were learnt from: give a data frame with the same columns"
            )
        if frame is not None and reset:
            refuse_times(frame)
        if frame is not None and not (all_numbers(frame) and (reset or self.encoder_.plain)):
            validate_data(self, X, reset=reset, skip_check_array=True)
            if len(frame) < 1 + reset:
                raise ValueError(f"X has {len(frame)} sample(s): at least {1 + reset} are needed")
            return frame.reset_index(drop=True)
        least = 2 if reset else 1
        return validate_data(
            self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=least
        )

    def _encoded(self, X: Any) -> Tensor:  # (rows, width)
        return torch.from_numpy(self.encoder_.transform(self._table(X, reset=False)))

    def _answers(self, X: Any) -> Iterator[Predictive]:
        """Answers block by block, calibrated and in the units of y."""
        check_is_fitted(self)
        return (
            first(sound(self._postprocess(answer)), rows)
            for answer, rows in blocks(self.model_, self._encoded(X), self.seed_)
        )

    def _each(self, X: Any, what: Callable[[Any], Tensor]) -> Tensor:  # (rows, ...)
        """A function of each row's answer. It sees whole blocks, so that a row's numbers do not depend on its neighbours."""
        check_is_fitted(self)
        parts = blocks(self.model_, self._encoded(X), self.seed_)
        return torch.cat([what(sound(self._postprocess(answer)))[:rows] for answer, rows in parts])

    @abstractmethod
    def _postprocess(self, answer: Predictive) -> Predictive:
        """A model's answer as the user gets it."""

    def _shaped(self, values: Tensor) -> Array:
        """As many axes as y had."""
        return values.numpy()

    def _ood_scores(self, x: Tensor) -> Array:
        return (
            torch.cat([self.ood_detector_.scores(block)[:rows] for block, rows in padded(x)]).double().numpy()
        )


def synthetic_outliers(x: Tensor, generator: Generator, length: float = 5.0) -> Tensor:
    """Rows pushed a long way in random directions: outliers for methods that must see some in training."""
    step = torch.randn(x.shape, generator=generator, dtype=torch.float32)
    return x + length * step / step.norm(dim=1, keepdim=True)


def _to_all(watches: Sequence[Callable[[FitProgress], None]]) -> Callable[[FitProgress], None] | None:
    def watch(seen: FitProgress) -> None:
        for tell in watches:
            tell(seen)

    return watch if watches else None
