"""The parameters that both estimators have: defaults and documentation, each in one place."""

import textwrap
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator

from compound.models import Method
from compound.train.progress import FitCallback

EstimatorClass = TypeVar("EstimatorClass", bound=type)

PLACE = "    {the parameters of both estimators}\n"  # in the docstring of a class
TEXT = """
method : str or Method, default="ml-cdn"
    The method: a name such as "ml-cdn", "vb-cdn" or "deep-ensemble", or `Method("ml-cdn", lam=1e-4)` with
    options.
max_epochs : int, default=None
    Passes over the training rows, at most. None: 1,000 to 10,000 steps for numbers, 2,000 to 10,000 for
    classes, depending on the number of rows.
batch_size : int, default=None
    Rows per optimizer step. None: 200, but 100 for numbers where there are fewer than 20,000 rows.
lr : float, default=None
    Learning rate. None: 0.01 for numbers, 0.003 for classes.
early_stopping : bool, default=True
    Whether held-out rows choose the stopping step.
validation_fraction : float, default=0.1
    Fraction of the rows that is held out, for early stopping and calibration; of numbers by each member.
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
"""


@dataclass(eq=False, repr=False)
class Parameters(BaseEstimator):
    """Parameters of an estimator, as attributes that `fit` leaves as they are."""

    method: str | Method = "ml-cdn"
    _: KW_ONLY
    max_epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    early_stopping: bool = True
    validation_fraction: float = 0.1
    false_positive_rate: float = 0.01
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    device: str = "auto"
    verbose: bool = False
    callbacks: Sequence[FitCallback] | None = None
    checkpoint: str | Path | None = None
    distributed: bool = False

    def set_params(self, **params: Any) -> Self:
        """Set parameters, as in scikit-learn; options of the method as `method__lam`.

        Parameters
        ----------
        **params : dict
            Parameters by name.

        Returns
        -------
        Self
            The estimator itself.
        """
        sets_option = any(name.startswith("method__") for name in params)
        if isinstance(self.method, str) and "method" not in params and sets_option:
            self.method = Method(self.method)
        return super().set_params(**params)


def documented(cls: EstimatorClass) -> EstimatorClass:
    """The class, with the parameters of both estimators written into its docstring at PLACE."""
    if cls.__doc__:  # None under python -OO
        cls.__doc__ = cls.__doc__.replace(PLACE, textwrap.indent(TEXT.lstrip("\n"), "    "))
    return cls
