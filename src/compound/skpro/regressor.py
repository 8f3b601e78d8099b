"""`CompoundRegressor` as skpro's probabilistic regressor: the mixture itself, and conformal intervals."""

from typing import Any, ClassVar

import numpy as np
import pandas as pd
from skpro.regression.base import BaseProbaRegressor

from compound.estimators import CompoundRegressor
from compound.models import Method
from compound.skpro.distribution import PredictiveDistribution


class CompoundProbaRegressor(BaseProbaRegressor):
    """Regression with the mixture as predictive distribution, and conformal intervals and quantiles.

    `predict_proba` gives the model's own distribution. `predict_interval` and `predict_quantiles` are
    calibrated on held-out rows, so that they differ a little from the quantiles of that distribution.

    Parameters
    ----------
    method : str or Method, default="ml-cdn"
        The method: a name such as "ml-cdn", or `Method("ml-cdn", lam=1e-4)` with options.
    max_epochs : int, default=None
        Passes over the training rows, at most. None: set by the number of rows.
    batch_size : int, default=None
        Rows per optimizer step. None: set by the number of rows.
    lr : float, default=None
        Learning rate. None: 0.01.
    early_stopping : bool, default=True
        Whether held-out rows choose the stopping step.
    validation_fraction : float, default=0.1
        Fraction of the rows that each member holds out, for early stopping and calibration.
    false_positive_rate : float, default=0.01
        Fraction of ordinary rows that `is_ood` marks.
    random_state : int, RandomState or None, default=None
        Seed of weights, batches and noise.

    Attributes
    ----------
    estimator_ : CompoundRegressor
        The fitted estimator, with `is_ood`, `decompose` and `save`.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from compound.skpro import CompoundProbaRegressor
    >>> X = pd.DataFrame({"x": np.linspace(-1, 1, 100)})
    >>> y = pd.DataFrame({"y": X["x"] ** 2})
    >>> model = CompoundProbaRegressor("map", max_epochs=20, random_state=0).fit(X, y)
    >>> model.predict_proba(X.head(3)).mean().shape
    (3, 1)
    >>> model.predict_interval(X.head(3), coverage=0.9).shape
    (3, 2)
    """

    _tags: ClassVar[dict[str, Any]] = {
        "authors": ["The compound developers"],
        "capability:multioutput": True,
        "capability:missing": True,
    }

    def __init__(
        self,
        method: str | Method = "ml-cdn",
        max_epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        false_positive_rate: float = 0.01,
        random_state: int | np.random.RandomState | None = None,
    ):
        self.method = method
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.lr = lr
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.false_positive_rate = false_positive_rate
        self.random_state = random_state
        super().__init__()

    def _fit(self, X: pd.DataFrame, y: pd.DataFrame, C: Any = None) -> "CompoundProbaRegressor":
        options = self.get_params(deep=False)
        self.estimator_ = CompoundRegressor(**options).fit(_named(X), y.to_numpy(np.float64))
        self.columns_ = y.columns
        return self

    def _predict(self, X: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(self.estimator_.predict(_named(X)), index=X.index, columns=self.columns_)

    def _predict_proba(self, X: pd.DataFrame) -> PredictiveDistribution:
        predictive: Any = self.estimator_.predict_dist(_named(X))  # Gaussian: the default kind of target
        return PredictiveDistribution(predictive, False, X.index, self.columns_)

    def _predict_quantiles(self, X: pd.DataFrame, alpha: list[float]) -> pd.DataFrame:
        values = self.estimator_.predict_quantiles(_named(X), alpha)  # (rows, targets, levels)
        columns = pd.MultiIndex.from_product([self.columns_, alpha])
        return pd.DataFrame(values.reshape(len(X), -1), index=X.index, columns=columns)

    def _predict_interval(self, X: pd.DataFrame, coverage: list[float]) -> pd.DataFrame:
        bounds = [np.stack(self.estimator_.predict_interval(_named(X), c), -1) for c in coverage]
        values = np.stack(bounds, 2)  # (rows, targets, coverages, 2)
        columns = pd.MultiIndex.from_product([self.columns_, coverage, ["lower", "upper"]])
        return pd.DataFrame(values.reshape(len(X), -1), index=X.index, columns=columns)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Arguments for skpro's own tests: small and fast ones."""
        return [
            {"method": "map", "max_epochs": 2, "random_state": 0},
            {
                "method": Method("ml-cdn", members=2, widths=(4,), hyper=(3,)),
                "max_epochs": 2,
                "batch_size": 16,
                "lr": 0.02,
                "early_stopping": False,
                "validation_fraction": 0.2,
                "false_positive_rate": 0.05,
                "random_state": 0,
            },
        ]


def _named(X: pd.DataFrame) -> pd.DataFrame:
    """The table with columns named by text, as scikit-learn demands."""
    return X.set_axis(X.columns.astype(str), axis=1)
