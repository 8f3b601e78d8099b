"""The distance of a row from the training rows, whatever a model learnt from them.

    u = A (x - m),    d(x) = |u - c_k|_k

A whitens with a ridge, c_k is the nearest k-means centre of the whitened training rows; lengths are Euclidean
for few inputs and in the covariance of the centre's own rows for many (`clusters`). No outlier is needed.
Training rows are measured by cross-fitting: units, whitening and centres of a fold's distances are learnt
without it, since rows that took part in any of them seem too near.
"""

from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from compound.ood.clusters import Clusters
from compound.ood.whitening import FULL_RANK, Whitening
from compound.ops.jit import is_tracing
from compound.ops.prepared import Prepared

SAMPLE = 20_000  # rows that mean, covariance and centres are learnt from
MAX_CENTRES = (500, 200)  # for few and for many inputs
ROWS_PER_CENTRE = (3, 20)  # distinct ones, at least
FOLDS = (20, 5)  # at most (few rows: a fold takes away neighbours that new rows would have), and at least
FOLD_ROWS = 20_000  # folds times rows, at most
RECENT = 4  # blocks of rows whose distances are kept, and numbers of a block at most
RECENT_NUMBERS = 2**20
SIZED_BY_DATA = ("whiten", "centres", "precision_roots", "residual_precision")


class Distance(nn.Module):
    """Whitened distance from the nearest cluster of the training rows.

    Parameters
    ----------
    features : int
        Columns of x.

    Attributes
    ----------
    quantiles : Tensor of shape (3,)
        Quantiles of the training rows' cross-fitted distances: d50 (50%), d99 (99%), and the largest
        distance, at most 2 d99.
    reach : Tensor of shape ()
        Root mean square of the whitened training rows, for few inputs; 0 for many, where even neighbours are
        farther apart.
    cross_fitted : Tensor of shape (rows,) or None
        Cross-fitted distances of the rows that `fit` has seen; not saved.

    Examples
    --------
    >>> import torch
    >>> from compound import named_generator
    >>> from compound.ood import Distance
    >>> x = torch.randn(200, 2, generator=named_generator(0, "x"))
    >>> distance = Distance(2)
    >>> distances = distance.fit(x, named_generator(0, "fit"))
    >>> bool(distance(10 * torch.ones(1, 2)) > distances.max())
    True
    """

    shift: Tensor  # (features,)
    whiten: Tensor  # (features, rank)
    residual_scale: Tensor  # ()
    centres: Tensor  # (centres, rank)
    precision_roots: Tensor  # (centres, rank, rank), or empty
    residual_precision: Tensor  # (centres,), or empty
    quantiles: Tensor
    reach: Tensor

    def __init__(self, features: int):
        super().__init__()
        self.register_buffer("shift", torch.zeros(features, dtype=torch.float32))
        self.register_buffer("whiten", torch.zeros(features, 0, dtype=torch.float32))
        self.register_buffer("residual_scale", torch.zeros((), dtype=torch.float32))
        self.register_buffer("centres", torch.zeros(0, 0, dtype=torch.float32))
        self.register_buffer("precision_roots", torch.zeros(0, 0, 0, dtype=torch.float32))
        self.register_buffer("residual_precision", torch.zeros(0, dtype=torch.float32))
        self.register_buffer("quantiles", torch.zeros(3, dtype=torch.float32))
        self.register_buffer("reach", torch.zeros((), dtype=torch.float32))
        self.cross_fitted: Tensor | None = None
        self.recent: Prepared[Tensor] = Prepared(RECENT)

    @property
    def fitted(self) -> bool:
        return len(self.centres) > 0

    @property
    def whitening(self) -> Whitening:
        return Whitening(self.shift, self.whiten, self.residual_scale)

    @property
    def clusters(self) -> Clusters:
        return Clusters(self.centres, self.precision_roots, self.residual_precision)

    def forward(self, x: Tensor) -> Tensor:  # (rows,)
        """Distance of rows x (rows, features) from the training rows; ValueError before `fit`."""
        if not self.fitted:
            raise ValueError("the distance is not fitted: call fit with the training rows first")
        if x.numel() > RECENT_NUMBERS or torch.is_grad_enabled() or is_tracing():
            return self.clusters.distance(*self.whitening(x))
        # far noise and out-of-distribution scores ask for the same rows; new weights are new tensors
        return self.recent.get([x], lambda: self.clusters.distance(*self.whitening(x)))

    def fit(self, x: Tensor, generator: Generator) -> Tensor:  # (rows,)
        """Learn the distance from training rows (rows, features); returns their cross-fitted distances.

        Of more than SAMPLE rows a random sample is used. Rows outside it have no part in the fit: for them
        the fitted distance is returned.
        """
        sample, seed = _sample(x, generator)
        out = torch.full((len(x),), torch.inf, dtype=x.dtype)
        many_inputs = x.shape[1] > FULL_RANK
        count = _n_centres(x[sample], many_inputs)  # in folds too: with fewer centres rows would seem farther
        folds = min(FOLDS[0], max(FOLDS[1], FOLD_ROWS // len(sample)), len(sample))
        for k in range(folds if len(sample) > 1 else 0):
            test = sample[k::folds]
            train = x[torch.cat([sample[other::folds] for other in range(folds) if other != k])]
            unit = _unit(x[sample], train)
            whitening = Whitening.fit(unit * train)
            clusters = Clusters.fit(whitening(unit * train)[0], count, many_inputs, seed, symmetric=False)
            out[test] = clusters.distance(*whitening(unit * x[test]))
        self._set(x[sample], count, seed)
        unsampled = torch.isinf(out)
        out[unsampled] = self(x[unsampled])
        self.fit_quantiles(out[sample])
        self.cross_fitted = out
        return out

    def fit_without_quantiles(self, x: Tensor, generator: Generator) -> None:
        """Learn the distance from training rows; `fit_quantiles` goes on with rows that took no part."""
        sample, seed = _sample(x, generator)
        self._set(x[sample], _n_centres(x[sample], x.shape[1] > FULL_RANK), seed)

    def _set(self, x: Tensor, count: int, seed: int) -> None:
        """Whitening and at most `count` clusters of rows x."""
        whitening = Whitening.fit(x)
        clusters = Clusters.fit(whitening(x)[0], count, x.shape[1] > FULL_RANK, seed)
        self.shift, self.whiten, self.residual_scale = whitening
        self.centres, self.precision_roots, self.residual_precision = clusters
        if x.shape[1] <= FULL_RANK:
            self.reach = whitening(x)[0].square().sum(1).mean().sqrt()
        self.recent.clear()

    def fit_quantiles(self, distances: Tensor) -> None:
        """Take the quantiles of distances (rows,), such as those of rows that no network was trained on."""
        self.quantiles = _quantiles(distances).to(self.centres.dtype)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Before loading, give the buffers of SIZED_BY_DATA the shapes of the saved ones."""
        for name in SIZED_BY_DATA:
            if prefix + name in state_dict:
                setattr(self, name, getattr(self, name).new_empty(state_dict[prefix + name].shape))
        state_dict.setdefault(prefix + "reach", torch.zeros_like(self.reach))  # older files have none
        self.recent.clear()
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _sample(x: Tensor, generator: Generator) -> tuple[Tensor, int]:
    """Indices of at most SAMPLE random rows, and a seed for k-means."""
    sample = torch.randperm(len(x), generator=generator)[:SAMPLE]
    return sample, int(torch.randint(2**31 - 1, (), generator=generator))


def _quantiles(distances: Tensor) -> Tensor:  # (3,)
    """d50, d99 and the edge (the largest distance, at least d99 and at most 2 d99) of distances (rows,)."""
    levels = torch.tensor([0.5, 0.99], dtype=torch.float64)
    d50, d99 = torch.quantile(distances.double(), levels).tolist()
    d99 = max(d99, d50 + 1e-6 * d50 + 1e-12)  # rows all alike: any other row is far
    edge = min(max(d99, float(distances.max())), 2 * d99)
    return torch.tensor([d50, d99, edge], dtype=torch.float64)


def _n_centres(x: Tensor, many_inputs: bool) -> int:
    """Number of k-means centres for rows x: one per ROWS_PER_CENTRE distinct rows, at most MAX_CENTRES."""
    distinct = len(np.unique(x.numpy(), axis=0))
    return max(1, min(MAX_CENTRES[many_inputs], distinct // ROWS_PER_CENTRE[many_inputs]))


def _unit(x: Tensor, train: Tensor) -> Tensor:  # (features,)
    """Factors that give the columns of `train`, some rows of `x`, the standard deviations of those of `x`.

    With them the units of the columns do not depend on the held-out rows. The factor is 1 for indicators and
    pixels, which are not standardised: the standard deviation of numbers from 0 to 1 is at most 1/2.
    """
    std, train_std = (rows.double().std(0, correction=0) for rows in (x, train))
    return torch.where((std > 0.5) & (train_std > 1e-6 * std), std / train_std, 1.0).to(x.dtype)
