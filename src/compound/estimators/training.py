"""Training an estimator's model on encoded rows, and the detector that is fitted to them afterwards."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from compound.estimators.prediction import epistemic
from compound.ood import CombinedDetector, Distance
from compound.random import named_generator
from compound.train.config import TrainConfig, table_train_config
from compound.train.loop import fit
from compound.train.progress import FitCallback, FitProgress, progress_bar
from compound.types import Batch, Task, make_dataset

FEW_ROWS = 100  # below, a fit takes fewer steps


def train_config(estimator: Any, task: Task, rows: int) -> TrainConfig:
    """The default for the task and the number of rows, changed by the estimator's parameters."""
    default = table_train_config(task, rows)
    batch_size = int(estimator.batch_size or default.batch_size)
    steps = default.steps
    if estimator.max_epochs is not None:
        steps = int(estimator.max_epochs * max(1, rows // batch_size))
    elif rows < FEW_ROWS:
        steps = max(steps // 5, steps * rows // FEW_ROWS)
    return replace(
        default,
        steps=steps,
        batch_size=batch_size,
        lr=estimator.lr or default.lr,
        n_evals=min(default.n_evals, max(5, steps // 20)) if estimator.early_stopping else 0,
        patience=default.patience if estimator.early_stopping else 0,
    )


def train(
    estimator: Any,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    config: TrainConfig,
    batches: Callable[[int], Batch] | None = None,
    importance: Tensor | None = None,
) -> Batch:
    """Train the model on encoded rows x (rows, width); returns the data set that it was trained on.

    y is that of `_fit_target`; weight, (rows,) or (members, rows), is 0 for held-out rows. `batches` maps
    steps to batches where x is only a sample; `importance` are weights of held-out rows, (rows,). The
    learning curve is in `history_`.
    """
    x_ood = None
    if estimator.model_.needs_ood_rows:
        x_ood = synthetic_outliers(x, named_generator(estimator.seed_, "outside"))
    data = replace(make_dataset(x, y, estimator.model_.task, weight, x_ood), importance=importance)
    with ExitStack() as stack:
        callbacks = list(estimator.callbacks or ())
        if estimator.verbose:
            callbacks.append(stack.enter_context(progress_bar("fit")))
        estimator.history_ = fit(
            estimator.model_,
            data,
            config,
            estimator.seed_,
            estimator.checkpoint,
            callback=_call_all(callbacks),
            distributed=estimator.distributed,
            batches=batches,
        )
    return data


def fit_detector(estimator: Any, x: Tensor, trained_on: Tensor) -> CombinedDetector:
    """An out-of-distribution detector that uses the model's distance, or fits one if the model has none.

    Its distances are those that new rows would have: cross-fitted distances of the rows that the model
    was trained on, True in trained_on (rows,), and plain distances of the others.
    """
    distance = estimator.model_.distance
    if distance is None or distance.cross_fitted is None:
        distance = Distance(x.shape[1])
        distances = distance.fit(x, named_generator(estimator.seed_, "strange"))
        for tensor in distance.buffers():
            tensor.data = tensor.data.contiguous()
    else:
        distances = x.new_empty(len(x))
        distances[trained_on] = distance.cross_fitted
        distances[~trained_on] = distance(x[~trained_on])
    generator = named_generator(estimator.seed_, "evidence")
    return CombinedDetector(distance).fit(
        x, distances, lambda rows: epistemic(estimator, rows), estimator.false_positive_rate, generator
    )


def synthetic_outliers(x: Tensor, generator: Generator, distance: float = 5.0) -> Tensor:  # (rows, features)
    """The rows of x (rows, features), each moved by `distance` in a random direction.

    They are the outliers for methods that need some in training.
    """
    step = torch.randn(x.shape, generator=generator, dtype=torch.float32)
    return x + distance * step / step.norm(dim=1, keepdim=True)


def _call_all(callbacks: Sequence[FitCallback]) -> Callable[[FitProgress], None] | None:
    """One callback for all of them; None where there are none."""

    def callback(progress: FitProgress) -> None:
        for each in callbacks:
            each(progress)

    return callback if callbacks else None
