"""Matrix normals with diagonal factors, and mixtures of Gaussians."""

import math
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.distributions import Distribution, Normal, constraints, kl_divergence, register_kl

from compound.ops import matrix_normal

LOG_2PI = math.log(2 * math.pi)


class MatrixNormal(Distribution):
    """The matrix normal MN(mean, diag(row)², diag(col)²): W_ij ~ N(mean_ij, row_i² col_j²), independent.

    (t row, col / t) is the same distribution for every t > 0. `kl_divergence` knows the KL to another matrix
    normal, and to independent normals.

    Parameters
    ----------
    mean : Tensor of shape (*batch, rows, cols)
        Mean of W.
    row : Tensor of shape (*batch, rows)
        Standard deviations of the rows.
    col : Tensor of shape (*batch, cols)
        Standard deviations of the columns.
    validate_args : bool, optional
        Whether to check that `row` and `col` are positive; by default as set for torch.distributions.

    Raises
    ------
    ValueError
        If shapes do not fit, or if a standard deviation is not positive.

    Examples
    --------
    >>> import torch
    >>> from torch.distributions import kl_divergence
    >>> from compound import MatrixNormal
    >>> w = MatrixNormal(torch.zeros(3, 2), torch.ones(3), 2 * torch.ones(2))
    >>> w.sample((5,), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([5, 3, 2])
    >>> kl_divergence(w, MatrixNormal(torch.zeros(3, 2), torch.ones(3), torch.ones(2)))
    tensor(4.8411)
    """

    arg_constraints = {  # noqa: RUF012  (torch's own convention)
        "mean": constraints.independent(constraints.real, 2),
        "row": constraints.independent(constraints.positive, 1),
        "col": constraints.independent(constraints.positive, 1),
    }
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(self, mean: Tensor, row: Tensor, col: Tensor, validate_args: bool | None = None):
        if mean.ndim < 2 or row.ndim < 1 or col.ndim < 1:
            raise ValueError("mean must have two axes, row and col one, besides batch axes")
        if mean.shape[-2:] != (row.shape[-1], col.shape[-1]):
            shape = tuple(mean.shape[-2:])
            raise ValueError(f"mean is {shape} but row has {row.shape[-1]} and col {col.shape[-1]} entries")
        batch = torch.broadcast_shapes(mean.shape[:-2], row.shape[:-1], col.shape[:-1])
        self.loc = mean.expand(batch + mean.shape[-2:])
        self.row = row.expand(batch + row.shape[-1:])
        self.col = col.expand(batch + col.shape[-1:])
        super().__init__(batch, mean.shape[-2:], validate_args=False)
        if validate_args if validate_args is not None else Distribution._validate_args:
            for name, value in (("row", row), ("col", col)):
                if not bool((value > 0).all()):
                    low = value.min().item()
                    raise ValueError(f"{name} holds {low}: standard deviations must be positive")

    @property
    def mean(self) -> Tensor:
        """Mean of W, (*batch, rows, cols)."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """Mode of W, equal to its mean."""
        return self.loc

    @property
    def stddev(self) -> Tensor:
        """Standard deviations of the entries of W, (*batch, rows, cols)."""
        return self.row.unsqueeze(-1) * self.col.unsqueeze(-2)

    @property
    def variance(self) -> Tensor:
        """Variances of the entries of W, (*batch, rows, cols)."""
        return self.stddev.square()

    def expand(self, batch_shape: Any, _instance: Any = None) -> "MatrixNormal":
        """The same distribution with another batch shape."""
        batch = torch.Size(batch_shape)
        rows, cols = self.event_shape
        return MatrixNormal(
            self.loc.expand((*batch, rows, cols)),
            self.row.expand((*batch, rows)),
            self.col.expand((*batch, cols)),
            validate_args=False,
        )

    def rsample(self, sample_shape: Any = (), generator: Generator | None = None) -> Tensor:
        """Differentiable draws of W.

        Parameters
        ----------
        sample_shape : sequence of int, default ()
            Shape of the sample.
        generator : torch.Generator, optional
            Source of the noise; torch's global generator by default.

        Returns
        -------
        Tensor of shape (*sample_shape, *batch, rows, cols)
        """
        shape = self._extended_shape(torch.Size(sample_shape))
        noise = torch.randn(shape, generator=generator, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + self.row.unsqueeze(-1) * noise * self.col.unsqueeze(-2)

    def sample(self, sample_shape: Any = (), generator: Generator | None = None) -> Tensor:
        """`rsample` without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density (*batch,) of matrices (*batch, rows, cols)."""
        standardized = (value - self.loc) / self.row.unsqueeze(-1) / self.col.unsqueeze(-2)
        constant = 0.5 * math.prod(self.event_shape) * LOG_2PI
        return -0.5 * standardized.square().sum((-2, -1)) - self._half_log_det() - constant

    def entropy(self) -> Tensor:
        """Differential entropy, (*batch,)."""
        return self._half_log_det() + 0.5 * math.prod(self.event_shape) * (1 + LOG_2PI)

    def _half_log_det(self) -> Tensor:  # of the Kronecker covariance
        rows, cols = self.event_shape
        return cols * self.row.log().sum(-1) + rows * self.col.log().sum(-1)


@register_kl(MatrixNormal, MatrixNormal)
def _kl_matrix_normal(p: MatrixNormal, q: MatrixNormal) -> Tensor:
    """KL of p to q, (*batch,): that of p, standardised by q, to the standard matrix normal."""
    mean = (p.loc - q.loc) / q.row.unsqueeze(-1) / q.col.unsqueeze(-2)
    return matrix_normal.reference(mean, 2 * (p.row / q.row).log(), 2 * (p.col / q.col).log())


@register_kl(MatrixNormal, Normal)
def _kl_matrix_normal_normal(p: MatrixNormal, q: Normal) -> Tensor:
    """KL of p to independent normals q, one per entry (or one for all), (*batch,)."""
    return kl_divergence(Normal(p.loc, p.stddev, validate_args=False), q).sum((-2, -1))


def log_mean_exp(values: Tensor, dim: int) -> Tensor:
    """log of the mean of exp(values) over an axis."""
    if values.shape[dim] == 1:
        return values.squeeze(dim)
    return torch.logsumexp(values, dim) - math.log(values.shape[dim])


def gaussian_log_prob(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(y; mean, variance), elementwise."""
    return -0.5 * (LOG_2PI + variance.log() + (y - mean).square() / variance)


def weighted_log_sum(values: Tensor, log_weights: Tensor | None) -> Tensor:
    """log sum_k w_k exp(values_k) over the first axis; equal weights w if log_weights is None."""
    return log_mean_exp(values, 0) if log_weights is None else torch.logsumexp(log_weights + values, 0)


def weighted_mean(values: Tensor, log_weights: Tensor | None) -> Tensor:
    """sum_k w_k values_k over the first axis; equal weights w if log_weights is None."""
    return values.mean(0) if log_weights is None else (log_weights.exp() * values).sum(0)


def mixture_log_prob(
    y: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor | None = None
) -> Tensor:  # (rows,)
    """Joint log-density of the targets of each row of y (rows, targets) under a mixture of n Gaussians.

    means and variances are (n, rows, targets), log_weights (n, rows, 1); weights are equal by default. All
    targets of a row come from the same component.
    """
    joint = gaussian_log_prob(y, means, variances).sum(-1, keepdim=True)
    return weighted_log_sum(joint, log_weights).squeeze(-1)


def mixture_cdf(
    y: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor | None = None
) -> Tensor:  # (rows, targets)
    """Cumulative distribution function of each target at y; arguments as for `mixture_log_prob`."""
    return weighted_mean(torch.special.ndtr((y - means) / variances.sqrt()), log_weights)


def mixture_entropy(
    means: Tensor, variances: Tensor, log_weights: Tensor | None = None, points: int = 24
) -> Tensor:  # (rows, targets)
    """Entropy of each target, in nats; means, variances and log_weights as for `mixture_log_prob`.

    By Gauss-Hermite quadrature with `points` nodes in every component: exact for a single component.
    """
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(points)
    node_weights /= node_weights.sum()
    equal = means.new_full((len(means), 1, 1), 1 / len(means))
    weights = equal if log_weights is None else log_weights.exp()
    out = torch.zeros_like(means[0])
    for mean, std, weight in zip(means, variances.sqrt(), weights, strict=True):
        for node, node_weight in zip(nodes.tolist(), node_weights.tolist(), strict=True):
            density = weighted_log_sum(gaussian_log_prob(mean + node * std, means, variances), log_weights)
            out -= node_weight * weight * density
    return out
