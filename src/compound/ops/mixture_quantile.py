"""Quantiles of mixtures of Gaussians: all levels and rows in one pass.

The quantile of level Φ(z), z < 0, solves h(y) = log F(y) - log Φ(z) = 0, with

    F(y) = Σ_k w_k Φ(t_k),    t_k = (y - m_k) / s_k,    h' = F' / F,    h'' = F'' / F - h'²

Upper quantiles are lower ones of -y: near 1 the log of the cdf loses its digits. The quantile lies between
the smallest and the largest m_k + z s_k. `reference` is the definition, by bracketed Newton steps in float64.
The compiled loop solves in float32 for (y - mean) / std of each mixture, by Halley's steps from the quantile
of the Gaussian with these moments: two or three evaluations of F, and an error below 1e-6 std. Where the cdf
is nearly flat, which float32 cannot resolve, the loop leaves the quantile to `reference`.
"""

import math

import numpy as np
import torch
from torch import Tensor

from compound.ops.jit import FASTMATH, F, array, exp, is_tracing, launch, log, loop

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
MAX_ITERATIONS = 100
MAX_Z = 6.0  # of the compiled loop: Φ(-6) is 1e-9
LANES = 16  # numbers in a vector of the processor, or a multiple
LEAST_SLOPE = 0.5  # F' / F: where it is smaller, rounding errors of F in float32 move the quantile too far
ERROR = 1e-7  # of the compiled loop's last step, in standard deviations
PLAIN = (torch.float32, torch.float64)

# (1 + 2 a) exp(a²) erfc(a) as a polynomial in (a - 2) / (a + 2), for a >= 0: its Chebyshev series, cut off
ERFCX = tuple(
    map(
        F,
        (1.2769783913176493, -0.09276308204826558, -0.16603109565094995, 0.16403583960735352)
        + (-0.054211958494439015, -0.007942721699044843, 0.008689159658169632, 0.00104314458159966)
        + (-0.0013957069461051357, -0.00018365443730414878, 0.00016080358171662067),
    )
)  # fmt: skip
C0, C1, C2, C3, C4, C5, C6, C7, C8, C9, C10 = ERFCX


def mixture_quantiles(z: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor | None) -> Tensor:
    """Quantiles of levels Φ(z) of mixtures of Gaussians: compiled where possible, with an error of 1e-6 std.

    Shapes: z (levels, 1 or targets) float64, means and variances (draws, rows, targets), log_weights (draws,
    rows, 1) or None for equal weights; the result is (levels, rows, targets).
    """
    tensors = (means, variances) if log_weights is None else (means, variances, log_weights)
    compiled = all(t.is_cpu and t.dtype in PLAIN for t in tensors) and not is_tracing()
    if not compiled or bool(z.abs().max() > MAX_Z):
        return torch.stack([reference(level, means, variances, log_weights) for level in z])
    draws, *shape = means.shape
    weights = means.new_zeros(0, dtype=torch.float32)
    if log_weights is None:
        centre = means.mean(0)
        std = (variances + (means - centre).square()).mean(0).sqrt()  # (rows, targets)
    else:
        relative = torch.softmax(log_weights, 0)
        centre = (relative * means).sum(0)
        std = (relative * (variances + (means - centre).square())).sum(0).sqrt()
        weights = relative.expand_as(means).float().contiguous()
    columns = centre.numel()
    levels = z.expand(len(z), shape[1]).double()
    out = weights.new_empty((len(z), *shape))
    arrays = (
        ((means - centre) / std).float().contiguous(),
        (std / variances.sqrt()).float().contiguous(),
        weights,
        levels.float().contiguous(),
        torch.special.ndtr(-levels.abs()).float().contiguous(),
        out,
    )
    launch(quantile_loop, arrays, draws, columns, shape[1], len(z), log_weights is not None)
    quantiles = centre + std * out.to(means.dtype)
    if bool((hard := out.isnan().any(2).any(0)).any()):
        given = None if log_weights is None else log_weights[:, hard]
        exact = [reference(level, means[:, hard], variances[:, hard], given) for level in z]
        quantiles[:, hard] = torch.where(out[:, hard].isnan(), torch.stack(exact), quantiles[:, hard])
    return quantiles


def reference(z: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor | None = None) -> Tensor:
    """The definition of `mixture_quantiles` for one level of each target, z (1 or targets,): (rows, targets).

    By bracketed Newton steps on the log of the cdf.
    """
    sign = torch.where(z > 0, -1.0, 1.0).double()
    m = sign * means  # (draws, rows, targets)
    std = variances.double().sqrt()
    w = None if log_weights is None else torch.log_softmax(log_weights.double(), 0)

    def log_sum(values: Tensor) -> Tensor:  # of the mixture
        return torch.logsumexp(values - math.log(len(m)) if w is None else values + w, 0)

    log_level = torch.special.log_ndtr(-z.abs().double())
    component_quantiles = m - z.abs() * std
    low, high = component_quantiles.amin(0), component_quantiles.amax(0)
    y = 0.5 * (low + high)
    converged = torch.zeros_like(y, dtype=torch.bool)
    for _ in range(MAX_ITERATIONS):
        t = (y - m) / std
        excess = log_sum(torch.special.log_ndtr(t)) - log_level
        low, high = torch.where(excess < 0, y, low), torch.where(excess < 0, high, y)
        log_density = log_sum(-0.5 * t.square() - std.log() - LOG_SQRT_2PI)
        newton = y - excess * (excess + log_level - log_density).exp()  # F / f = exp(log F - log f)
        # a small step ends it even where rounding leads out of the bracket: bisection would start all over
        converged = converged | ((newton - y).abs() <= 1e-12 * (y.abs() + std.amax(0)))
        step = torch.where((newton > low) & (newton < high), newton, 0.5 * (low + high))
        y = torch.where(converged, y, step)  # a converged row does not depend on the others
        if bool(converged.all()):
            break
    return (sign * y).to(means.dtype)


@loop(FASTMATH, "out")
def quantile_loop(
    means_: int, inverse_stds_: int, weights_: int, z_: int, level_: int, out_: int,
    draws: int, columns: int, targets: int, levels: int, weighted: bool,
) -> None:  # fmt: skip
    """Quantiles of mixtures with mean 0 and variance 1, one per column; `level` is Φ(-|z|).

    NaN where float32 is not enough: where the cdf is nearly flat beside its value.
    """
    means = array(means_, (draws, columns))
    inverse_stds = array(inverse_stds_, (draws, columns))
    weights = array(weights_, (draws if weighted else 0, columns))
    zs = array(z_, (levels, targets))
    level = array(level_, (levels, targets))
    out = array(out_, (levels, columns))
    if draws < 1 or targets < 1:
        raise ValueError("a mixture has no component")
    lanes = (draws + LANES - 1) // LANES * LANES  # components of weight 0 fill the last vector
    m, inverse, w = np.zeros(lanes, np.float32), np.ones(lanes, np.float32), np.zeros(lanes, np.float32)
    w[:draws] = F(1) / F(draws)
    for b in range(columns):
        narrowest = F(1)
        for k in range(draws):
            m[k], inverse[k] = means[k, b], inverse_stds[k, b]
            narrowest = min(narrowest, F(1) / inverse[k])
            if weighted:
                w[k] = weights[k, b]
        for j in range(levels):
            p, reach = level[j, b % targets], abs(zs[j, b % targets])
            sign = F(-1) if zs[j, b % targets] > F(0) else F(1)
            low, high = F(math.inf), F(-math.inf)
            for k in range(draws):
                quantile = sign * m[k] - reach / inverse[k]
                low, high = min(low, quantile), max(high, quantile)
            y = min(max(-reach, low), high)
            result = F(math.nan)
            for _ in range(MAX_ITERATIONS):
                cdf, density, slope = F(0), F(0), F(0)  # F, F' and F''; the latter times sqrt(2 pi)
                for k in range(lanes):
                    t = (y - sign * m[k]) * inverse[k]
                    e = exp(F(-0.5) * t * t)
                    a = abs(t) * F(math.sqrt(0.5))
                    r = F(1) / ((a + F(2)) * (F(1) + F(2) * a))
                    q = (a - F(2)) * (F(1) + F(2) * a) * r
                    s = ((((C10 * q + C9) * q + C8) * q + C7) * q + C6) * q + C5
                    s = ((((s * q + C4) * q + C3) * q + C2) * q + C1) * q + C0
                    tail = F(0.5) * e * s * (a + F(2)) * r
                    d = w[k] * e * inverse[k]
                    cdf += w[k] * (tail if t < F(0) else F(1) - tail)
                    density += d
                    slope -= d * t * inverse[k]
                f = max(cdf, F(1e-37))
                excess = log(f / p)
                low, high = (y, high) if excess < F(0) else (low, y)
                h1 = F(1 / math.sqrt(2 * math.pi)) * density / f
                h2 = F(1 / math.sqrt(2 * math.pi)) * slope / f - h1 * h1
                halley = F(1) - F(0.5) * excess * h2 / (h1 * h1)
                step = -excess / (h1 * (halley if F(0.5) < halley < F(2) else F(1)))
                size, inside = abs(step), low <= y + step <= high
                y = y + step if inside else F(0.5) * (low + high)
                # after Halley's step the error is of third order, in units of the narrowest component
                third = size * (size / narrowest) * (size / narrowest)
                if (inside and third <= F(ERROR)) or size <= F(ERROR):
                    if h1 >= F(LEAST_SLOPE):
                        result = sign * y
                    break
                if high - low <= F(ERROR):
                    break
            out[j, b] = result
