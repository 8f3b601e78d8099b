"""Moments through a network with independent Gaussian weights, and the updates of assumed-density filtering.

    a = W^T z~ / sqrt(n):   E a = M^T E z~ / sqrt(n),   var a = ((M²)^T var z~ + V^T (E² z~ + var z~)) / n
    relu(a):  E = m Φ + s φ,  var = (m² + s²) Φ + m s φ - E²,  with Φ, φ at m / s
    log Z = sum_t log N(y_t; E a_t, β_t / (α_t - 1) + var a_t)
    m <- m + v ∂log Z/∂m,   v <- v - v² ((∂log Z/∂m)² - 2 ∂log Z/∂v)

z~ = [z; 1] has n entries; weights are N(M_ij, V_ij). Hernández-Lobato and Adams (2015). Rows are visited one
after another, each with the weights that the row before it left. `moments` and `log_evidence` are the
definition; the loop computes them with their derivatives for one row at a time, in float64.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compound.ops.jit import kernel

MIN_VARIANCE = 1e-100  # an update to a smaller variance is not made
STANDARD = {"contract"}


def layer_shapes(widths: Sequence[int]) -> list[tuple[int, int]]:
    """Shapes (in + 1, out) of the weights of all layers."""
    return [(a + 1, b) for a, b in zip(widths, widths[1:], strict=False)]


def unflatten(weights: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Weights (P,) of a network as one matrix (in + 1, out) per layer."""
    shapes = layer_shapes(widths)
    parts = weights.split([a * b for a, b in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def moments(x: Tensor, mean: Tensor, variance: Tensor, widths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Means and variances (rows, out) of the outputs for x (rows, in); those of the weights are (P,)."""
    z, zv = x, torch.zeros_like(x)
    layers = list(zip(unflatten(mean, widths), unflatten(variance, widths), strict=True))
    for k, (m, v) in enumerate(layers):
        n = len(m)
        one, zero = z.new_ones(len(z), 1), z.new_zeros(len(z), 1)
        z, zv = torch.cat([z, one], 1), torch.cat([zv, zero], 1)
        z, zv = z @ m / math.sqrt(n), (zv @ m.square() + (z.square() + zv) @ v) / n
        z, zv = relu_moments(z, zv) if k < len(layers) - 1 else (z, zv)
    return z, zv


def relu_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of max(a, 0) for a ~ N(mean, variance)."""
    std = variance.clamp_min(MIN_VARIANCE).sqrt()
    ratio = mean / std
    cdf, density = torch.special.ndtr(ratio), (-0.5 * ratio.square()).exp() / math.sqrt(2 * math.pi)
    first = mean * cdf + std * density
    second = (mean.square() + variance) * cdf + mean * std * density
    return first, (second - first.square()).clamp_min(0.0)


def log_evidence(mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor) -> Tensor:  # (rows,)
    """log Z for outputs' moments (rows, targets), y (rows, targets) and the noise's variance (targets,)."""
    total = variance + noise
    return -0.5 * ((2 * math.pi * total).log() + (y - mean).square() / total).sum(-1)


def filter_rows(
    x: Tensor, y: Tensor, mean: Tensor, variance: Tensor, gammas: Tensor, widths: Sequence[int]
) -> float:
    """Visit rows x (rows, in), y (rows, targets), in float64: update mean, variance (P,) and gammas in place.

    `gammas` (targets, 2) are α and β of each target's precision. Returns the sum of log Z.
    """
    sizes = np.array(widths, np.int64)
    arrays = (each.numpy() for each in (x, y, mean, variance, gammas))
    return float(_filter_rows(*arrays, sizes))


@kernel(STANDARD)
def _filter_rows(x: Any, y: Any, mean: Any, variance: Any, gammas: Any, sizes: Any) -> float:
    """`filter_rows` on arrays, by the formulas above and their derivatives."""
    layers, widest = len(sizes) - 1, sizes.max() + 1
    z, zv = np.empty((layers, widest)), np.empty((layers, widest))  # inputs of the layers
    am, av = np.empty((layers, widest)), np.empty((layers, widest))  # their pre-activations
    gm, gv = np.empty(widest), np.empty(widest)  # derivatives with respect to pre-activations
    hm, hv = np.empty(widest), np.empty(widest)  # with respect to inputs
    dm, dv = np.empty(len(mean)), np.empty(len(mean))
    total = 0.0
    for row in range(len(x)):
        for i in range(sizes[0]):
            z[0, i], zv[0, i] = x[row, i], 0.0
        start = 0
        for k in range(layers):
            n, c = sizes[k] + 1, sizes[k + 1]
            z[k, n - 1], zv[k, n - 1] = 1.0, 0.0
            for j in range(c):
                am[k, j], av[k, j] = 0.0, 0.0
            for i in range(n):
                square = z[k, i] * z[k, i] + zv[k, i]
                for j in range(c):
                    m = mean[start + i * c + j]
                    am[k, j] += m * z[k, i]
                    av[k, j] += m * m * zv[k, i] + variance[start + i * c + j] * square
            for j in range(c):
                am[k, j] /= math.sqrt(n)
                av[k, j] /= n
                if k < layers - 1:
                    std = math.sqrt(max(av[k, j], MIN_VARIANCE))
                    cdf, density = _normal(am[k, j] / std)
                    first = am[k, j] * cdf + std * density
                    second = (am[k, j] * am[k, j] + av[k, j]) * cdf + am[k, j] * std * density
                    z[k + 1, j], zv[k + 1, j] = first, max(second - first * first, 0.0)
            start += n * c
        for t in range(sizes[-1]):
            a, b = gammas[t, 0], gammas[t, 1]
            error, spread = y[row, t] - am[layers - 1, t], av[layers - 1, t]
            s = spread + b / (a - 1)
            gm[t], gv[t] = error / s, 0.5 * (error * error / s - 1) / s
            log_z = _log_normal(error, s)
            total += log_z
            log_1, log_2 = _log_normal(error, spread + b / a), _log_normal(error, spread + b / (a + 1))
            new_a = 1 / (math.exp(log_2 - 2 * log_1 + log_z) * (a + 1) / a - 1)
            new_b = 1 / (math.exp(log_2 - log_1) * (a + 1) / b - math.exp(log_1 - log_z) * a / b)
            if new_a > 1 and new_b > 0 and new_a < np.inf and new_b < np.inf:
                gammas[t, 0], gammas[t, 1] = new_a, new_b
        for k in range(layers - 1, -1, -1):
            n, c = sizes[k] + 1, sizes[k + 1]
            start -= n * c
            root = math.sqrt(n)
            for i in range(n):
                hm[i], hv[i] = 0.0, 0.0
                square = z[k, i] * z[k, i] + zv[k, i]
                for j in range(c):
                    w = start + i * c + j
                    dm[w] = gm[j] * z[k, i] / root + 2 * gv[j] * mean[w] * zv[k, i] / n
                    dv[w] = gv[j] * square / n
                    hm[i] += gm[j] * mean[w] / root + 2 * gv[j] * variance[w] * z[k, i] / n
                    hv[i] += gv[j] * (mean[w] * mean[w] + variance[w]) / n
            if k > 0:
                for i in range(n - 1):
                    std = math.sqrt(max(av[k - 1, i], MIN_VARIANCE))
                    cdf, density = _normal(am[k - 1, i] / std)
                    first = z[k, i]
                    gm[i] = hm[i] * cdf + hv[i] * 2 * first * (1 - cdf)
                    gv[i] = 0.5 * hm[i] * density / std + hv[i] * (cdf - first * density / std)
        for w in range(len(mean)):
            v = variance[w]
            new_v, new_m = v - v * v * (dm[w] * dm[w] - 2 * dv[w]), mean[w] + v * dm[w]
            if new_v > MIN_VARIANCE and new_v < np.inf and abs(new_m) < np.inf:
                mean[w], variance[w] = new_m, new_v
    return total


@kernel(STANDARD)
def _normal(x: float) -> Any:
    """Φ(x) and φ(x)."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0)), math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


@kernel(STANDARD)
def _log_normal(error: float, variance: float) -> float:
    return -0.5 * (math.log(2 * math.pi * variance) + error * error / variance)
