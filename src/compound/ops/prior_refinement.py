"""Expectation propagation of a Gaussian prior with an unknown precision, over all weights in turn.

    p(w_i | λ) = N(0, 1 / λ),   λ ~ Gamma(α, β);   for each i, with its factor taken out of q:
    log Z_k = log N(m; 0, v + β / (α - 1 + k)),  k = 0, 1, 2
    m <- m + v ∂log Z_0/∂m,  v <- v - v² ((∂log Z_0/∂m)² - 2 ∂log Z_0/∂v)
    α <- 1 / (Z_2 Z_0 / Z_1² (α + 1) / α - 1),   β <- 1 / (Z_2 / Z_1 (α + 1) / β - Z_1 / Z_0 α / β)

Hernández-Lobato and Adams (2015). The factors are kept in natural parameters, so that they can be taken out
again.
"""

import math
from typing import Any

import numpy as np
from torch import Tensor

from compound.ops.jit import kernel

MAX_VARIANCE = 1e6  # of a weight without its prior factor: beyond, the factor stays as it is


def refine_prior(mean: Tensor, variance: Tensor, sites: Tensor, gamma: Tensor) -> None:
    """One pass over the weights, in float64; mean, variance (P,), sites (4, P), gamma (2,) change in place.

    `sites` are the natural parameters of each factor: m / v, 1 / v, α - 1 and -β; `gamma` is (α, β) of q(λ).
    """
    _refine(*(each.numpy() for each in (mean, variance, sites, gamma)))


@kernel({"contract"})
def _refine(mean: Any, variance: Any, sites: Any, gamma: Any) -> None:
    for i in range(len(mean)):
        v = 1 / (1 / variance[i] - sites[1, i])
        m = v * (mean[i] / variance[i] - sites[0, i])
        a, b = gamma[0] - sites[2, i], gamma[1] + sites[3, i]
        if not (0 < v < MAX_VARIANCE and a > 1 and b > 0):
            continue
        s = v + b / (a - 1)
        d_m, d_v = -m / s, 0.5 * (m * m / s - 1) / s
        logs = [-0.5 * (math.log(t) + m * m / t) for t in (s, v + b / a, v + b / (a + 1))]
        new_m, new_v = m + v * d_m, v - v * v * (d_m * d_m - 2 * d_v)
        new_a = 1 / (math.exp(logs[2] - 2 * logs[1] + logs[0]) * (a + 1) / a - 1)
        new_b = 1 / (math.exp(logs[2] - logs[1]) * (a + 1) / b - math.exp(logs[1] - logs[0]) * a / b)
        if not (0 < new_v < np.inf and 1 < new_a < np.inf and 0 < new_b < np.inf):
            continue
        sites[0, i], sites[1, i] = new_m / new_v - m / v, 1 / new_v - 1 / v
        sites[2, i], sites[3, i] = new_a - a, b - new_b
        mean[i], variance[i], gamma[0], gamma[1] = new_m, new_v, new_a, new_b
