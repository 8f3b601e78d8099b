"""The expected softmax of independent Gaussian logits and its expected entropy, by one-dimensional integrals.

Gumbel-max: softmax_k(z) = P(z_k + G_k is the largest). With F_j, f_j the cdf and density of z_j + G_j,

    E softmax_k = ∫ f_k(u) prod_{j != k} F_j(u) du
    F_j(u) = E exp(-exp(z_j - u)),   f_j(u) = E exp((z_j - u) - exp(z_j - u))
"""

import math

import numpy as np
import torch
from torch import Tensor

EULER = 0.5772156649015329
MAX_ELEMENTS = 2**22  # of the (rows, classes, u, nodes) array held in memory at once


def expected_softmax(mean: Tensor, std: Tensor) -> Tensor:  # (..., classes)
    """E softmax(z) for independent z_j ~ N(mean_j, std_j²), mean and std (..., classes).

    Errors are below 1e-8 for std up to 30 in float64.
    """
    return _integrals(mean, std)[0].reshape(mean.shape)


def expected_entropy(mean: Tensor, std: Tensor) -> Tensor:  # (...)
    """E of the entropy of softmax(z), z as for `expected_softmax`: E log-sum-exp(z) - Σ_k E z_k softmax_k(z).

    By Gumbel-max, E log-sum-exp(z) is the mean of the largest z_j + G_j minus Euler's constant.
    """
    return _integrals(mean, std)[1].reshape(mean.shape[:-1])


def _integrals(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:  # (rows, classes), (rows,)
    """Expected softmax and expected entropy, with leading axes flattened; computed in chunks of rows."""
    largest = float(std.detach().max())
    nodes, weights = _quadrature(largest)
    nodes, weights = nodes.to(mean), weights.to(mean)
    flat_mean, flat_std = mean.reshape(-1, mean.shape[-1]), std.reshape(-1, std.shape[-1])
    low = (flat_mean - 8 * flat_std).detach().amin(-1) - 4  # (rows,)
    high = (flat_mean + 8 * flat_std).detach().amax(-1) + 30
    points = math.ceil(float((high - low).max()) / 0.25) + 1
    chunk = max(1, MAX_ELEMENTS // (mean.shape[-1] * points * len(nodes)))
    arrays = (flat_mean, flat_std, low, high)
    pieces = zip(*(array.split(chunk) for array in arrays), strict=True)
    parts = [_integrate_rows(m, s, a, b, points, nodes, weights) for m, s, a, b in pieces]
    probs, entropies = zip(*parts, strict=True)
    return torch.cat(probs), torch.cat(entropies)


def _quadrature(largest: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights of expectations under N(0, 1), for standard deviations of logits up to `largest`.

    Gauss-Hermite if that is accurate, else a trapezoid rule.
    """
    if largest <= 3:
        nodes, weights = np.polynomial.hermite_e.hermegauss(20 if largest <= 1 else 64)
    else:
        nodes = np.linspace(-8.5, 8.5, 128 if largest <= 10 else 256)
        weights = np.exp(-0.5 * nodes**2)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())


def _integrate_rows(
    mean: Tensor, std: Tensor, low: Tensor, high: Tensor, points: int, nodes: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:  # (rows, classes), (rows,)
    """Expected softmax and entropy for mean and std (rows, classes) of the logits.

    u runs over `points` values from low to high, (rows,) each; nodes and weights are from `_quadrature`.
    """
    step = (high - low) / (points - 1)  # (rows,)
    u = low.unsqueeze(-1) + step.unsqueeze(-1) * torch.arange(points, dtype=mean.dtype)  # (rows, points)
    z = mean.unsqueeze(-1) + std.unsqueeze(-1) * nodes  # (rows, classes, nodes)
    gap = (z.unsqueeze(-2) - u[:, None, :, None]).clamp_max(50)  # (rows, classes, points, nodes)
    tail = gap.exp()
    cdf = (-tail).exp() @ weights  # (rows, classes, points)
    density = (gap - tail).exp()
    log_cdf = cdf.clamp_min(torch.finfo(cdf.dtype).tiny).log()
    others = (log_cdf.sum(-2, keepdim=True) - log_cdf).exp()
    inner = (density @ weights) * others

    def integral(values: Tensor) -> Tensor:  # (rows, ..., points) -> (rows, ...), by the trapezoid rule
        return (values.sum(-1) - 0.5 * (values[..., 0] + values[..., -1])) * step.reshape(
            -1, *[1] * (values.ndim - 2)
        )

    weighted = ((density * z.unsqueeze(-2)) @ weights) * others  # of E z_k softmax_k(z)
    largest = (inner * u.unsqueeze(1)).sum(1)
    return integral(inner), integral(largest) - EULER - integral(weighted).sum(-1)
