"""How a model is trained: the configuration of `fit`, and defaults for a task."""

import math
from dataclasses import dataclass, replace

from compound.types import Task

MINIMA = {"steps": 1, "batch_size": 1, "n_evals": 0, "patience": 0, "eval_samples": 1, "eval_rows": 1}

SMALL_TABLE = 10_000  # rows of a table below which fits are shorter


@dataclass(frozen=True)
class TrainConfig:
    """The configuration of a fit; `default_train_config` chooses one for a task and a number of rows.

    Parameters
    ----------
    steps : int, default=2000
        Optimizer steps at most.
    batch_size : int, default=100
        Rows per step; all rows where there are fewer.
    lr : float, default=0.01
        Learning rate of the first step.
    final_lr_ratio : float, default=0.1
        The learning rate falls along a half cosine to this fraction of `lr`; 1 keeps it constant.
    clip_value : float or None, default=None
        Bound on the absolute value of each entry of the gradient.
    clip_norm : float or None, default=1.0
        Bound on the norm of each member's gradient.
    ema_decay : float, default=0.98
        Decay of the exponential moving average of the weights, min(ema_decay, (1 + t) / (10 + t)) at step t;
        0 turns the average off.
    n_evals : int, default=50
        Evaluations on the held-out rows during the fit; with 0 the weights of the last step are final.
    patience : int, default=15
        Evaluations without a better held-out NLL before training stops; 0 never stops early.
    eval_samples : int, default=20
        Predictive samples at an evaluation.
    eval_rows : int, default=1000
        Held-out rows per member at an evaluation, at most.

    Examples
    --------
    >>> from compound import TrainConfig
    >>> TrainConfig(steps=500, lr=3e-3).batch_size
    100
    """

    steps: int = 2000
    batch_size: int = 100
    lr: float = 1e-2
    final_lr_ratio: float = 0.1
    clip_value: float | None = None
    clip_norm: float | None = 1.0
    ema_decay: float = 0.98
    n_evals: int = 50
    patience: int = 15
    eval_samples: int = 20
    eval_rows: int = 1000

    def __post_init__(self) -> None:
        for name, low in MINIMA.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < low:
                raise ValueError(f"{name} is {value!r}: give a whole number of at least {low}")
        for name in ("clip_value", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value!r}: give a number above 0, or None for no clipping")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr is {self.lr!r}: give a number above 0, such as 0.01")
        if not 0 <= self.final_lr_ratio <= 1:
            raise ValueError(f"final_lr_ratio is {self.final_lr_ratio!r}: give a fraction between 0 and 1")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay is {self.ema_decay!r}: give a decay of at least 0 and below 1")

    def lr_at(self, progress: float) -> float:
        """The learning rate when a fraction `progress`, between 0 and 1, of the steps is done."""
        return self.lr * (
            self.final_lr_ratio + (1 - self.final_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress))
        )


def default_train_config(task: Task, rows: int) -> TrainConfig:
    """A configuration for a task and a number of rows.

    For classification it is that of the published experiments; for regression it was chosen on nine UCI
    tables.

    Parameters
    ----------
    task : Task
        What is predicted.
    rows : int
        Number of training rows.

    Returns
    -------
    TrainConfig
        About 40 epochs, but at least 2,000 and at most 10,000 steps.

    Examples
    --------
    >>> from compound import Task, default_train_config
    >>> default_train_config(Task("regression", 1), 500).steps
    2000
    """
    batch_size = 200 if task.kind == "classification" or rows >= 20_000 else 100
    steps = min(10_000, max(2000, 40 * rows // batch_size))
    if task.kind == "classification":
        return TrainConfig(
            steps, batch_size, lr=3e-3, final_lr_ratio=0.0, clip_value=5.0, clip_norm=None, ema_decay=0.0
        )
    return TrainConfig(steps, batch_size)


def table_train_config(task: Task, rows: int) -> TrainConfig:
    """A configuration for the encoded columns of a table, see results/tables-trials.md.

    Parameters
    ----------
    task : Task
        What is predicted.
    rows : int
        Number of training rows.

    Returns
    -------
    TrainConfig
        As many steps as `default_train_config`, but 1,500 for targets of fewer than 10,000 rows. Classes have
        averaged weights and frequent evaluations, since small tables are learnt within the first epochs.
    """
    config = default_train_config(task, rows)
    if task.kind == "regression":
        steps = 1500 if rows < SMALL_TABLE else config.steps
        return replace(config, steps=steps, n_evals=25, patience=8)
    patience = 12 if rows < SMALL_TABLE else 25
    return replace(config, clip_value=None, clip_norm=1.0, ema_decay=0.98, n_evals=100, patience=patience)
