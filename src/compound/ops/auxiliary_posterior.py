"""The auxiliary posterior r(z | W) of a multiplicative layer: z is Gaussian after a flow.

    flow_r(z) ~ N(s b_1, exp(-s b_2)),  s = mean_j t_j,  t = tanh(c^T W),  c^T W | z ~ N(c^T (z M), c²^T S²)

Louizos and Welling (2017). `forward` and `backward` are the compiled form, called by `multiplicative_linear`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from compound.ops.jit import FASTMATH, F, array, exp, launch, loop

BOUND = 15.0  # of r's log-precisions: beyond it their exponentials could overflow


def sample_activations(z: Tensor, mean: Tensor, variance: Tensor, c: Tensor, noise: Tensor) -> Tensor:
    """t = tanh(c^T W) (groups, out), for z (groups, in), M and S² (in, out), c (in,), noise (groups, out)."""
    std = (c.square() @ variance).sqrt()
    return ((c * z) @ mean + std * noise).tanh()


def reference(
    z: Tensor,  # (groups, in)
    z_flowed: Tensor,  # (groups, in): flow_r(z)
    mean: Tensor,  # (in, out): M
    variance: Tensor,  # (in, out): S²
    vectors: Tensor,  # (5, in): m_0, log v_0, c, b_1, b_2 of the layer
    noise: Tensor,  # (groups, out): of c^T W
) -> Tensor:  # (groups,)
    """The definition: 2 log N(flow_r(z); s b_1, exp(-s b_2)), without its constant."""
    _, _, c, b_1, b_2 = vectors
    s = sample_activations(z, mean, variance, c, noise).mean(-1, keepdim=True)
    log_precision = (s * b_2).clamp(-BOUND, BOUND)
    residual = z_flowed - s * b_1
    return (log_precision - log_precision.exp() * residual.square()).sum(-1)


class Saved(NamedTuple):
    """What `backward` needs."""

    std: Tensor  # (out,): of c^T W
    noise: Tensor  # (groups, out): of c^T W
    t: Tensor  # (groups, out)
    s: Tensor  # (groups,)
    residual: Tensor  # (groups, in): flow_r(z) - s b_1
    weighted_residual: Tensor  # (groups, in): residual times precision


class Gradients(NamedTuple):
    """Gradients of minus the log-density, that is -1/2 times the value of `forward`."""

    z_flowed: Tensor  # (groups, in)
    projection: Tensor  # (groups, out): with respect to c^T W
    projection_var: Tensor  # (out,): twice that with respect to the variance of c^T W
    vectors: Tensor  # (2, in): with respect to b_1 and b_2


def forward(
    z: Tensor, z_flowed: Tensor, mean: Tensor, variance: Tensor, vectors: Tensor, noise: Tensor
) -> tuple[Tensor, Saved]:
    """`reference`, compiled, and what `backward` needs."""
    log_density = z.new_empty(len(z))
    saved = Saved(
        std=z.new_empty(mean.shape[1]),
        noise=noise,
        t=torch.empty_like(noise),
        s=z.new_empty(len(z)),
        residual=torch.empty_like(z),
        weighted_residual=torch.empty_like(z),
    )
    results = log_density, saved.std, saved.t, saved.s, saved.residual, saved.weighted_residual
    arrays = (z.contiguous(), z_flowed, mean, variance, vectors, noise, *results)
    launch(density_loop, arrays, len(z), *mean.shape, BOUND)
    return log_density, saved


def backward(saved: Saved, vectors: Tensor, d_bound: Tensor) -> Gradients:
    """Gradients of -1/2 times the value of `forward`, weighted by d_bound (groups,)."""
    results = saved.weighted_residual, saved.t, saved.std, vectors[:2]
    gradients = Gradients(*map(torch.empty_like, results))
    arrays = (d_bound.contiguous(), vectors, saved.noise, saved.std, *saved[2:], *gradients)
    launch(density_backward_loop, arrays, *saved.weighted_residual.shape, len(saved.std), BOUND)
    return gradients


@loop(FASTMATH, "log_density std t s residual weighted")
def density_loop(
    z_: int, z_flowed_: int, mean_: int, variance_: int, vectors_: int, noise_: int,
    log_density_: int, std_: int, t_: int, s_: int, residual_: int, weighted_: int,
    groups: int, d: int, c: int, bound: float,
) -> None:  # fmt: skip
    """`reference`, and what `Saved` holds."""
    z = array(z_, (groups, d))
    z_flowed = array(z_flowed_, (groups, d))
    mean = array(mean_, (d, c))
    variance = array(variance_, (d, c))
    vectors = array(vectors_, (5, d))
    noise = array(noise_, (groups, c))
    log_density = array(log_density_, (groups,))
    std = array(std_, (c,))
    t = array(t_, (groups, c))
    s = array(s_, (groups,))
    residual = array(residual_, (groups, d))
    weighted = array(weighted_, (groups, d))
    projector, b_1, b_2, high = vectors[2], vectors[3], vectors[4], F(bound)
    std[:] = F(0)
    t[:] = F(0)
    for i in range(d):
        square, row, row_var = projector[i] * projector[i], mean[i], variance[i]
        for j in range(c):
            std[j] += square * row_var[j]
        for k in range(groups):
            projection, factor = t[k], projector[i] * z[k, i]
            for j in range(c):
                projection[j] += factor * row[j]
    for j in range(c):
        std[j] = F(math.sqrt(std[j]))
    for k in range(groups):
        total = F(0)
        for j in range(c):
            t[k, j] = F(math.tanh(t[k, j] + std[j] * noise[k, j]))
            total += t[k, j]
        s_k, total = total / F(c), F(0)
        s[k] = s_k
        x, difference, scaled = z_flowed[k], residual[k], weighted[k]
        for i in range(d):
            log_precision = min(max(s_k * b_2[i], -high), high)
            gap = x[i] - s_k * b_1[i]
            product = exp(log_precision) * gap
            total += log_precision - product * gap
            difference[i], scaled[i] = gap, product
        log_density[k] = total


@loop(FASTMATH, "d_z_flowed d_projection d_projection_var d_vectors")
def density_backward_loop(
    d_bound_: int, vectors_: int, noise_: int, std_: int, t_: int, s_: int, residual_: int, weighted_: int,
    d_z_flowed_: int, d_projection_: int, d_projection_var_: int, d_vectors_: int,
    groups: int, d: int, c: int, bound: float,
) -> None:  # fmt: skip
    """Gradients of -1/2 times the value of `density_loop`; see `Gradients`."""
    d_bound = array(d_bound_, (groups,))
    vectors = array(vectors_, (5, d))
    noise = array(noise_, (groups, c))
    std = array(std_, (c,))
    t = array(t_, (groups, c))
    s = array(s_, (groups,))
    residual = array(residual_, (groups, d))
    weighted = array(weighted_, (groups, d))
    d_z_flowed = array(d_z_flowed_, (groups, d))
    d_projection = array(d_projection_, (groups, c))
    d_projection_var = array(d_projection_var_, (c,))
    d_vectors = array(d_vectors_, (2, d))
    b_1, b_2, high = vectors[3], vectors[4], F(bound)
    d_b_1, d_b_2 = d_vectors[0], d_vectors[1]
    d_vectors[:] = F(0)
    d_projection_var[:] = F(0)
    for k in range(groups):
        s_k, half, total = s[k], F(0.5) * d_bound[k], F(0)
        gap, product, out = residual[k], weighted[k], d_z_flowed[k]
        for i in range(d):
            d_residual = F(2) * half * product[i]
            inside = abs(s_k * b_2[i]) < high
            d_log = half * (product[i] * gap[i] - F(1)) if inside else F(0)
            out[i] = d_residual
            total += d_log * b_2[i] - d_residual * b_1[i]
            d_b_1[i] -= s_k * d_residual
            d_b_2[i] += s_k * d_log
        for j in range(c):
            slope = total / F(c) * (F(1) - t[k, j] * t[k, j])
            d_projection[k, j] = slope
            d_projection_var[j] += slope * noise[k, j]
    for j in range(c):
        d_projection_var[j] /= std[j]
