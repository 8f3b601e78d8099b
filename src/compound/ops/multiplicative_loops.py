"""Loops of layers with random scales: `nn.auxiliary_posterior` and `nn.multiplicative` say what they compute."""

import math

import numpy as np

from compound.ops.jit import LOOSE, F, array, exp, loop


@loop(LOOSE, "log std bent level distance pull")
def guess(
    z_: int, behind_: int, mean_: int, variance_: int, vectors_: int, noise_: int,
    log_: int, std_: int, bent_: int, level_: int, distance_: int, pull_: int, groups: int, d: int, c: int, bound: float,
) -> None:  # fmt: skip
    """c^T W and from it r's log-density of each z, doubled, with what `auxiliary_posterior_backward` needs."""
    z, behind, mean, variance = (
        array(z_, (groups, d)),
        array(behind_, (groups, d)),
        array(mean_, (d, c)),
        array(variance_, (d, c)),
    )
    vectors, noise, log, std = (
        array(vectors_, (5, d)),
        array(noise_, (groups, c)),
        array(log_, (groups,)),
        array(std_, (c,)),
    )
    bent, level, distance, pull = (
        array(bent_, (groups, c)),
        array(level_, (groups,)),
        array(distance_, (groups, d)),
        array(pull_, (groups, d)),
    )
    reader, centre, log_precision, high = vectors[2], vectors[3], vectors[4], F(bound)
    std[:] = F(0)
    bent[:] = F(0)
    for i in range(d):
        square, row, spread = reader[i] * reader[i], mean[i], variance[i]
        for j in range(c):
            std[j] += square * spread[j]
        for k in range(groups):
            own, factor = bent[k], reader[i] * z[k, i]
            for j in range(c):
                own[j] += factor * row[j]
    for j in range(c):
        std[j] = F(math.sqrt(std[j]))
    for k in range(groups):
        total = F(0)
        for j in range(c):
            bent[k, j] = F(math.tanh(bent[k, j] + std[j] * noise[k, j]))
            total += bent[k, j]
        share, total = total / F(c), F(0)
        level[k] = share
        x, away, tug = behind[k], distance[k], pull[k]
        for i in range(d):
            precision = min(max(share * log_precision[i], -high), high)
            gap = x[i] - share * centre[i]
            force = exp(precision) * gap
            total += precision - force * gap
            away[i], tug[i] = gap, force
        log[k] = total


@loop(LOOSE, "d_behind d_read d_read_var d_vectors")
def guess_back(
    d_bound_: int, vectors_: int, noise_: int, std_: int, bent_: int, level_: int, distance_: int, pull_: int,
    d_behind_: int, d_read_: int, d_read_var_: int, d_vectors_: int, groups: int, d: int, c: int, bound: float,
) -> None:  # fmt: skip
    """Gradients of minus half of `auxiliary_posterior` w.r.t. the flow's output, c^T W, twice its variance, and b_1 and b_2."""
    d_bound, vectors, noise, std = (
        array(d_bound_, (groups,)),
        array(vectors_, (5, d)),
        array(noise_, (groups, c)),
        array(std_, (c,)),
    )
    bent, level, distance, pull = (
        array(bent_, (groups, c)),
        array(level_, (groups,)),
        array(distance_, (groups, d)),
        array(pull_, (groups, d)),
    )
    d_behind, d_read, d_read_var, d_vectors = (
        array(d_behind_, (groups, d)),
        array(d_read_, (groups, c)),
        array(d_read_var_, (c,)),
        array(d_vectors_, (2, d)),
    )
    centre, log_precision, high = vectors[3], vectors[4], F(bound)
    d_centre, d_log_precision = d_vectors[0], d_vectors[1]
    d_vectors[:] = F(0)
    d_read_var[:] = F(0)
    for k in range(groups):
        share, half, total = level[k], F(0.5) * d_bound[k], F(0)
        away, tug, out = distance[k], pull[k], d_behind[k]
        for i in range(d):
            push = F(2) * half * tug[i]
            inside = abs(share * log_precision[i]) < high
            lean = half * (tug[i] * away[i] - F(1)) if inside else F(0)
            out[i] = push
            total += lean * log_precision[i] - push * centre[i]
            d_centre[i] -= share * push
            d_log_precision[i] += share * lean
        for j in range(c):
            slope = total / F(c) * (F(1) - bent[k, j] * bent[k, j])
            d_read[k, j] = slope
            d_read_var[j] += slope * noise[k, j]
    for j in range(c):
        d_read_var[j] /= std[j]


@loop(LOOSE, "product d_z d_mean d_reader")
def weights_back(
    parts_: int, product_: int, mean_: int, variance_: int, z_: int, sizes_: int, reader_: int, d_bound_: int, d_read_: int,
    d_read_var_: int, d_z_: int, d_mean_: int, d_reader_: int, groups: int, d: int, c: int, precision: float,
) -> None:  # fmt: skip
    """Gradients w.r.t. M and, in the place of `product`, w.r.t. log S; those w.r.t. z are added up."""
    parts, product, mean, variance = (
        array(parts_, (groups, d, c)),
        array(product_, (d, c)),
        array(mean_, (d, c)),
        array(variance_, (d, c)),
    )
    z, sizes, reader = array(z_, (groups, d)), array(sizes_, (d,)), array(reader_, (d,))
    d_bound, d_read, d_read_var = (
        array(d_bound_, (groups,)),
        array(d_read_, (groups, c)),
        array(d_read_var_, (c,)),
    )
    d_z, d_mean, d_reader = array(d_z_, (groups, d)), array(d_mean_, (d, c)), array(d_reader_, (d,))
    whole = F(np.sum(d_bound))
    decay = whole * F(precision)
    for i in range(d):
        row, spread, grad_mean, grad_log = mean[i], variance[i], d_mean[i], product[i]
        read, square, shrink, seen = reader[i], reader[i] * reader[i], F(0), F(0)
        for j in range(c):
            seen += spread[j] * d_read_var[j]
            grad_log[j] = (grad_log[j] + decay + square * d_read_var[j]) * spread[j] - whole
        for k in range(groups):
            shrink += d_bound[k] * z[k, i] * z[k, i]
        shrink *= F(precision)
        for j in range(c):
            grad_mean[j] = shrink * row[j]
        total = F(0)
        for k in range(groups):
            part, slope, scale, along, both = parts[k, i], d_read[k], z[k, i], F(0), F(0)
            for j in range(c):
                along += part[j] * row[j]
                both += slope[j] * row[j]
                grad_mean[j] += scale * (part[j] + read * slope[j])
            d_z[k, i] += along + read * both + d_bound[k] * scale * sizes[i] * F(precision)
            total += scale * both
        d_reader[i] = total + read * seen
