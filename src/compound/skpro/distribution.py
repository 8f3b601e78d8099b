"""A predictive as a distribution object of skpro: density, cdf, quantiles and moments of the mixture."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from skpro.distributions.base import BaseDistribution
from torch import Tensor

from compound.predictive import GaussianPredictive

Array = NDArray[Any]
NEWTON_STEPS = 2  # that refine quantiles, which are exact to 1e-6 std, to double precision


class PredictiveDistribution(BaseDistribution):
    """The marginal distributions of the rows and targets of a predictive.

    Parameters
    ----------
    predictive : GaussianPredictive
        Of `len(index)` rows and `len(columns)` targets.
    scalar : bool, default=False
        Whether this is one number, of one row and one target, without names.
    index : pd.Index, optional
        Names of the rows; 0, 1, ... by default.
    columns : pd.Index, optional
        Names of the targets; 0, 1, ... by default.

    Examples
    --------
    >>> import torch
    >>> from compound import GaussianPredictive
    >>> from compound.skpro import PredictiveDistribution
    >>> means = torch.tensor([[[0.0]], [[2.0]]], dtype=torch.float64).unsqueeze(1)
    >>> p = GaussianPredictive.from_draws(means, torch.ones(2, 1, 1, 1), torch.zeros(2, 1, 1, 1))
    >>> distribution = PredictiveDistribution(p)
    >>> float(distribution.mean().iloc[0, 0]), float(distribution.var().iloc[0, 0])
    (1.0, 2.0)
    """

    _tags: ClassVar[dict[str, Any]] = {
        "authors": ["The compound developers"],
        "capabilities:approx": ["pdfnorm", "energy"],
        "capabilities:exact": ["mean", "var", "pdf", "log_pdf", "cdf", "ppf"],
        "distr:measuretype": "continuous",
        "distr:paramtype": "nonparametric",
    }

    def __init__(
        self,
        predictive: GaussianPredictive,
        scalar: bool = False,
        index: Any = None,
        columns: Any = None,
    ):
        self.predictive = predictive
        self.scalar = scalar
        if not scalar:
            rows, targets = predictive.means.shape[1:]
            index = pd.RangeIndex(rows) if index is None else index
            columns = pd.RangeIndex(targets) if columns is None else columns
        super().__init__(index=index, columns=columns)

    def _iloc(self, rowidx: Any = None, colidx: Any = None) -> "PredictiveDistribution":
        rows = np.atleast_1d(
            np.arange(len(self.index)) if rowidx is None else np.arange(len(self.index))[rowidx]
        )
        count = len(self.columns)
        columns = np.atleast_1d(np.arange(count) if colidx is None else np.arange(count)[colidx])
        part = _targets(self.predictive[rows.tolist()], columns)
        return PredictiveDistribution(part, False, self.index.take(rows), self.columns.take(columns))

    def _iat(self, rowidx: Any = None, colidx: Any = None) -> "PredictiveDistribution":
        if rowidx is None or colidx is None:
            raise ValueError("iat takes the numbers of a row and of a column")
        part = _targets(self.predictive[[int(rowidx)]], np.array([int(colidx)]))
        return PredictiveDistribution(part, scalar=True)

    def _mean(self) -> Array:
        return self._shaped(self.predictive.mean)

    def _var(self) -> Array:
        """The variance of the mixture itself."""
        p = self.predictive
        square = p.variances + p.means.square()
        mean = square.mean(0) if p.log_weights is None else (p.log_weights.exp() * square).sum(0)
        return self._shaped(mean - p.mean.square())

    def _log_pdf(self, x: Any) -> Array:
        return self._shaped(self._log_densities(self._tensor(x)))

    def _log_densities(self, y: Tensor) -> Tensor:  # (rows, targets)
        """Marginal log-densities of y (rows, targets)."""
        columns = range(y.shape[1])
        logs = [_targets(self.predictive, np.array([k])).log_prob(y[:, k : k + 1]) for k in columns]
        return torch.stack(logs, -1)

    def _pdf(self, x: Any) -> Array:
        return np.exp(self._log_pdf(x))

    def _cdf(self, x: Any) -> Array:
        return self._shaped(self.predictive.cdf(self._tensor(x)))

    def _ppf(self, p: Any) -> Array:
        levels = self._tensor(p)
        out = torch.full_like(levels, torch.nan)
        out[levels == 0], out[levels == 1] = -torch.inf, torch.inf
        for level in levels[(levels > 0) & (levels < 1)].unique().tolist():
            here = levels == level
            rows = here.any(1).nonzero().squeeze(1)
            quantiles = self.predictive[rows].quantile(level)
            out[rows] = torch.where(here[rows], quantiles, out[rows])
        inside = out.isfinite()
        for _ in range(NEWTON_STEPS):
            excess = self.predictive.cdf(out) - levels
            slope = self._log_densities(out).exp()
            step = torch.where(inside & (slope > 0), excess / slope, 0.0)
            out = torch.where(inside, out - step, out)
        return self._shaped(out)

    def _sample(self, n_samples: int | None = None) -> Any:
        """Rows of draws; all targets of a row come from the same component."""
        generator = torch.Generator().manual_seed(int(np.random.randint(2**31 - 1)))
        draws = self.predictive.sample(n_samples or 1, generator).numpy()  # (n, rows, targets)
        if self.scalar:
            return float(draws[0, 0, 0]) if n_samples is None else pd.DataFrame(draws[:, 0])
        if n_samples is None:
            return pd.DataFrame(draws[0], index=self.index, columns=self.columns)
        index = pd.MultiIndex.from_product([range(n_samples), self.index])
        return pd.DataFrame(draws.reshape(len(index), -1), index=index, columns=self.columns)

    def _tensor(self, x: Any) -> Tensor:  # (rows, targets)
        values = np.broadcast_to(np.asarray(x, dtype=np.float64), self.predictive.means.shape[1:])
        return torch.from_numpy(values.copy())

    def _shaped(self, values: Tensor) -> Any:
        """Values (rows, targets) as an array, or as a number."""
        array = values.double().numpy()
        return array[0, 0] if self.scalar else array

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Arguments for skpro's own tests."""
        means = torch.tensor([[[0.0, 1.0]], [[2.0, 3.0]]], dtype=torch.float64).unsqueeze(1)
        means = means.expand(2, 1, 3, 2)
        ones, zeros = (
            torch.ones(2, 1, 1, 1, dtype=torch.float64),
            torch.zeros(2, 1, 1, 1, dtype=torch.float64),
        )
        predictive = GaussianPredictive.from_draws(means, ones, zeros)
        index, columns = pd.Index([1, 2, 5]), pd.Index(["a", "b"])
        one = _targets(predictive[[0]], np.array([0]))
        return [
            {"predictive": predictive, "index": index, "columns": columns},
            {"predictive": one, "scalar": True},
        ]


def _targets(predictive: GaussianPredictive, columns: Array) -> GaussianPredictive:
    """The predictive of some targets."""
    chosen = torch.from_numpy(columns)
    names = ("component", "mixing", "posterior", "means", "variances")
    parts = {name: getattr(predictive, name).index_select(-1, chosen) for name in names}
    return replace(predictive, **parts, conformal=None)
