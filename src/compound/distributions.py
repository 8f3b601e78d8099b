"""Matrix normals with diagonal factors, and even mixtures of Gaussians."""

import math
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.distributions import Distribution, Normal, constraints, kl_divergence, register_kl

LOG_2PI = math.log(2 * math.pi)


class MatrixNormal(Distribution):
    """W with W_ij ~ N(mean_ij, row_i² col_j²), independent: MN(mean, diag(row)², diag(col)²).

    `row` and `col` are standard deviations; (t row, col / t) is the same law for every t > 0.
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
            raise ValueError(
                f"mean is {tuple(mean.shape[-2:])} but row has {row.shape[-1]} and col {col.shape[-1]} entries"
            )
        batch = torch.broadcast_shapes(mean.shape[:-2], row.shape[:-1], col.shape[:-1])
        self.loc = mean.expand(batch + mean.shape[-2:])
        self.row = row.expand(batch + row.shape[-1:])
        self.col = col.expand(batch + col.shape[-1:])
        super().__init__(batch, mean.shape[-2:], validate_args=False)
        if validate_args if validate_args is not None else Distribution._validate_args:
            for name, value in (("row", row), ("col", col)):
                if not bool((value > 0).all()):
                    raise ValueError(
                        f"{name} holds {value.min().item()}: standard deviations must be positive"
                    )

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return self.row.unsqueeze(-1) * self.col.unsqueeze(-2)

    @property
    def variance(self) -> Tensor:
        return self.stddev.square()

    def expand(self, batch_shape: Any, _instance: Any = None) -> "MatrixNormal":
        batch = torch.Size(batch_shape)
        rows, cols = self.event_shape
        return MatrixNormal(
            self.loc.expand((*batch, rows, cols)),
            self.row.expand((*batch, rows)),
            self.col.expand((*batch, cols)),
            validate_args=False,
        )

    def rsample(self, sample_shape: Any = (), generator: Generator | None = None) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        noise = torch.randn(shape, generator=generator, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + self.row.unsqueeze(-1) * noise * self.col.unsqueeze(-2)

    def sample(self, sample_shape: Any = (), generator: Generator | None = None) -> Tensor:
        with torch.no_grad():
            return self.rsample(sample_shape, generator)

    def log_prob(self, value: Tensor) -> Tensor:
        standard = (value - self.loc) / self.row.unsqueeze(-1) / self.col.unsqueeze(-2)
        return (
            -0.5 * standard.square().sum((-2, -1))
            - self._log_det()
            - 0.5 * math.prod(self.event_shape) * LOG_2PI
        )

    def entropy(self) -> Tensor:
        return self._log_det() + 0.5 * math.prod(self.event_shape) * (1 + LOG_2PI)

    def _log_det(self) -> Tensor:  # half the log-determinant of the Kronecker covariance
        rows, cols = self.event_shape
        return cols * self.row.log().sum(-1) + rows * self.col.log().sum(-1)


@register_kl(MatrixNormal, MatrixNormal)
def _kl_matrix_normal(p: MatrixNormal, q: MatrixNormal) -> Tensor:
    trace = (p.row / q.row).square().sum(-1) * (p.col / q.col).square().sum(-1)
    shift = ((p.loc - q.loc) / q.row.unsqueeze(-1) / q.col.unsqueeze(-2)).square().sum((-2, -1))
    return 0.5 * (trace + shift - math.prod(p.event_shape)) + q._log_det() - p._log_det()


@register_kl(MatrixNormal, Normal)
def _kl_matrix_normal_normal(p: MatrixNormal, q: Normal) -> Tensor:
    """To independent normals, one per entry (or one for all)."""
    return kl_divergence(Normal(p.loc, p.stddev, validate_args=False), q).sum((-2, -1))


# Mixtures of n Gaussians per row and target: means, variances (n, rows, targets); even, or with log_weights (n, rows, 1).


def log_mean_exp(values: Tensor, dim: int) -> Tensor:
    if values.shape[dim] == 1:
        return values.squeeze(dim)
    return torch.logsumexp(values, dim) - math.log(values.shape[dim])


def gaussian_log_prob(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * (LOG_2PI + variance.log() + (y - mean).square() / variance)


def weighted_log_sum(values: Tensor, log_weights: Tensor | None) -> Tensor:
    """log sum_k w_k exp(values_k) over the first axis."""
    return log_mean_exp(values, 0) if log_weights is None else torch.logsumexp(log_weights + values, 0)


def weighted_mean(values: Tensor, log_weights: Tensor | None) -> Tensor:
    return values.mean(0) if log_weights is None else (log_weights.exp() * values).sum(0)


def mixture_log_prob(
    y: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor | None = None
) -> Tensor:  # (rows,)
    """Joint over targets: all targets of a row come from the same component."""
    return weighted_log_sum(
        gaussian_log_prob(y, means, variances).sum(-1, keepdim=True), log_weights
    ).squeeze(-1)


def mixture_cdf(
    y: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor | None = None
) -> Tensor:  # (rows, targets)
    return weighted_mean(torch.special.ndtr((y - means) / variances.sqrt()), log_weights)


def mixture_quantile(
    q: float, means: Tensor, variances: Tensor, log_weights: Tensor | None = None
) -> Tensor:  # (rows, targets)
    """By bisection on the cdf, in float64: 60 halvings of a bracket that is sure to hold the answer."""
    if not 0 < q < 1:
        raise ValueError(f"q is {q}: a quantile level must lie between 0 and 1")
    m, v = means.double(), variances.double()
    w = None if log_weights is None else torch.log_softmax(log_weights.double(), 0)
    at = (
        v.sqrt() * torch.special.ndtri(torch.tensor(q, dtype=torch.float64)) + m
    )  # each component's own quantile
    low, high = at.amin(0), at.amax(0)
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = mixture_cdf(middle, m, v, w) < q
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (0.5 * (low + high)).to(means.dtype)


def mixture_entropy(
    means: Tensor, variances: Tensor, log_weights: Tensor | None = None, points: int = 24
) -> Tensor:  # (rows, targets)
    """-E log p with Gauss-Hermite nodes of every component: exact for one, close for any mixture."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    out = torch.zeros_like(means[0])
    shares = means.new_full((len(means), 1, 1), 1 / len(means)) if log_weights is None else log_weights.exp()
    for mean, std, share in zip(means, variances.sqrt(), shares, strict=True):
        for node, weight in zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True):
            density = weighted_log_sum(gaussian_log_prob(mean + node * std, means, variances), log_weights)
            out -= weight * share * density
    return out
