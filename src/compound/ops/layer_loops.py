"""Loops of compound layers: `nn.moments`, `nn.matrix_gaussian` and `nn.hidden_samples` say what they compute, and check it in the tests."""

import math

from compound.ops.guard import Doubles, Ints
from compound.ops.jit import LOOSE, F, array, each_of, exp, loop


@loop(LOOSE, "heads scaled std sums norms kl")
def moments(
    wide_: int, heads_: int, basis_: int, scaled_: int, std_: int, sums_: int, norms_: int, kl_: int,
    members: int, rows: int, r: int, c: int, bound: float, scaled_form: bool, kl: bool,
) -> None:  # fmt: skip
    """`nn.moments.reference` but for the product with V. Heads become s, exp(lr), exp(lc); sums: q, and of row and of column variances."""
    wide, heads, basis = (
        array(wide_, (rows, r)),
        array(heads_, (rows, 2 * r + c)),
        array(basis_, (members, r, c)),
    )
    scaled, std, sums = array(scaled_, (rows, r)), array(std_, (rows, c)), array(sums_, (rows, 3))
    norms, kls = array(norms_, (members, r)), array(kl_, (rows if kl else 0,))
    high, fan, each = F(bound), F(r if scaled_form else 1), each_of(members, rows)
    if kl:
        for m in range(members):
            for i in range(r):
                v, square = basis[m, i], F(0)
                for j in range(c):
                    square += v[j] * v[j]
                norms[m, i] = square
    for b in range(rows):
        x, s, row, col, out, norm = (
            wide[b],
            heads[b, :r],
            heads[b, r : 2 * r],
            heads[b, 2 * r :],
            scaled[b],
            norms[b // each],
        )
        q_sum, row_sum, row_logs, squares = F(0), F(0), F(0), F(0)
        for i in range(r):
            log = min(max(row[i], -high), high)
            variance = exp(log)
            row[i] = variance
            out[i] = s[i] * x[i]
            q_sum += x[i] * x[i] * variance
            row_sum += variance
            row_logs += log
            squares += s[i] * s[i] * norm[i]
        q_sum /= fan
        deviation, col_sum, col_logs = std[b], F(0), F(0)
        for j in range(c):
            log = min(max(col[j], -high), high)
            variance = exp(log)
            col[j] = variance
            deviation[j] = math.sqrt(q_sum * variance)
            col_sum += variance
            col_logs += log
        sums[b, 0], sums[b, 1], sums[b, 2] = q_sum, row_sum, col_sum
        if kl:
            kls[b] = F(0.5) * (
                row_sum * col_sum + fan * squares - F(r * c) - F(c) * row_logs - F(r) * col_logs
            )


@loop(LOOSE, "heads d_wide d_norms")
def moments_back(
    wide_: int, heads_: int, norms_: int, std_: int, sums_: int, d_scaled_: int, d_std_: int, d_kl_: int, d_wide_: int, d_norms_: int,
    members: int, rows: int, r: int, c: int, bound: float, scaled_form: bool, kl: bool, inputs: bool,
) -> None:  # fmt: skip
    """Gradients of `moments` w.r.t. the heads, in their place, w.r.t. h~ (where `inputs`) and, added up, w.r.t. |V_i|²."""
    wide, heads, std = array(wide_, (rows, r)), array(heads_, (rows, 2 * r + c)), array(std_, (rows, c))
    sums, norms, d_norms = array(sums_, (rows, 3)), array(norms_, (members, r)), array(d_norms_, (members, r))
    d_scaled, d_std, d_kl = (
        array(d_scaled_, (rows, r)),
        array(d_std_, (rows, c)),
        array(d_kl_, (rows if kl else 0,)),
    )
    d_wide = array(d_wide_, (rows if inputs else 0, r))
    fan, each = F(r if scaled_form else 1), each_of(members, rows)
    low, high = exp(-F(bound)), exp(F(bound))  # a clamped log-variance has no gradient
    for b in range(rows):
        m = b // each
        x, s, row, col, d, norm, grad = (
            wide[b],
            heads[b, :r],
            heads[b, r : 2 * r],
            heads[b, 2 * r :],
            d_scaled[b],
            norms[m],
            d_norms[m],
        )
        half = F(0.5) * d_kl[b] if kl else F(0)
        d_deviation, deviation, row_sum, d_q = d_std[b], std[b], sums[b, 1], F(0)
        for j in range(c):
            d_log = F(0.5) * d_deviation[j] * deviation[j]  # w.r.t. log q and lc alike
            d_q += d_log
            variance = col[j]
            col[j] = d_log + half * (row_sum * variance - F(r)) if low < variance < high else F(0)
        d_q /= sums[b, 0] * fan
        if inputs:
            out = d_wide[b]
            for i in range(r):
                out[i] = F(2) * d_q * row[i] * x[i] + d[i] * s[i]
        trace, weight = half * sums[b, 2], F(2) * half * fan
        for i in range(r):
            variance = row[i]
            row[i] = variance * (x[i] * x[i] * d_q + trace) - half * F(c) if low < variance < high else F(0)
        for i in range(r):
            grad[i] += half * fan * s[i] * s[i]
            s[i] = d[i] * x[i] + weight * s[i] * norm[i]


@loop(LOOSE, "scale out")
def noisy(
    wide_: int, row_: int, col_: int, noise_: int, scale_: int, out_: int, starts: Ints, members: int, rows: int, r: int
) -> None:  # fmt: skip
    """Adds noise * sqrt(sum_i h~_i² row_i) * col to out; outputs starts[k] to starts[k + 1] have the row variances row[:, k]."""
    blocks, c, each = len(starts) - 1, starts[-1], each_of(members, rows)
    wide, row, col = array(wide_, (rows, r)), array(row_, (members, blocks, r)), array(col_, (members, c))
    noise, scale, out = array(noise_, (rows, c)), array(scale_, (rows, blocks)), array(out_, (rows, c))
    for b in range(rows):
        m, x = b // each, wide[b]
        for k in range(blocks):
            begin, end = starts[k], starts[k + 1]
            variance, deviation, draw, result = (
                row[m, k],
                col[m, begin:end],
                noise[b, begin:end],
                out[b, begin:end],
            )
            q = F(0)
            for i in range(r):
                q += x[i] * x[i] * variance[i]
            q = F(math.sqrt(q))
            scale[b, k] = q
            for j in range(end - begin):
                result[j] += q * draw[j] * deviation[j]


@loop(LOOSE, "d_wide d_row d_col")
def noisy_back(
    wide_: int, row_: int, col_: int, noise_: int, scale_: int, d_out_: int, d_wide_: int, d_row_: int, d_col_: int,
    starts: Ints, members: int, rows: int, r: int, inputs: bool,
) -> None:  # fmt: skip
    """Gradients of `noisy`: w.r.t. h~ (where `inputs`), the row variances and the logarithms of the column variances, all added up."""
    blocks, c, each = len(starts) - 1, starts[-1], each_of(members, rows)
    wide, row, col = array(wide_, (rows, r)), array(row_, (members, blocks, r)), array(col_, (members, c))
    noise, scale, d_out = array(noise_, (rows, c)), array(scale_, (rows, blocks)), array(d_out_, (rows, c))
    d_wide, d_row, d_col = (
        array(d_wide_, (rows if inputs else 0, r)),
        array(d_row_, (members, blocks, r)),
        array(d_col_, (members, c)),
    )
    for b in range(rows):
        m, x = b // each, wide[b]
        for k in range(blocks):
            begin, end = starts[k], starts[k + 1]
            variance, deviation, draw, d = (
                row[m, k],
                col[m, begin:end],
                noise[b, begin:end],
                d_out[b, begin:end],
            )
            grad_row, grad_col, half, d_scale = d_row[m, k], d_col[m, begin:end], F(0.5) * scale[b, k], F(0)
            for j in range(end - begin):
                product = d[j] * draw[j] * deviation[j]
                d_scale += product
                grad_col[j] += half * product
            d_q = F(0.5) * d_scale / scale[b, k]
            for i in range(r):
                grad_row[i] += d_q * x[i] * x[i]
            if inputs:
                grad = d_wide[b]
                for i in range(r):
                    grad[i] += F(2) * d_q * variance[i] * x[i]


@loop(LOOSE, "out")
def units(
    mean_: int,
    std_: int,
    noise_: int,
    out_: int,
    members: int,
    given: int,
    samples: int,
    rows: int,
    width: int,
    limit: float,
) -> None:
    """[clamp(mean + std * noise, 0, limit); 1] for S draws from `given` Gaussians per row: one for each draw, or one for all."""
    mean, std = array(mean_, (members, given, rows, width)), array(std_, (members, given, rows, width))
    noise, out = (
        array(noise_, (members, samples, rows, width)),
        array(out_, (members, samples, rows, width + 1)),
    )
    high = F(limit)
    if given < 1:
        raise ValueError("no Gaussian to draw units from")
    for m in range(members):
        for s in range(samples):
            for b in range(rows):
                centre, spread, draw, result = (
                    mean[m, s % given, b],
                    std[m, s % given, b],
                    noise[m, s, b],
                    out[m, s, b],
                )
                for j in range(width):
                    result[j] = min(max(centre[j] + spread[j] * draw[j], F(0)), high)
                result[width] = F(1)


@loop(LOOSE, "d_mean d_std")
def units_back(
    out_: int, noise_: int, d_out_: int, d_mean_: int, d_std_: int,
    members: int, given: int, samples: int, rows: int, width: int, limit: float,
) -> None:  # fmt: skip
    """Gradients of `sample_hidden` w.r.t. mean and std, added up over the draws."""
    d_mean, d_std = (
        array(d_mean_, (members, given, rows, width)),
        array(d_std_, (members, given, rows, width)),
    )
    out, noise = (
        array(out_, (members, samples, rows, width + 1)),
        array(noise_, (members, samples, rows, width)),
    )
    d_out = array(d_out_, (members, samples, rows, width + 1))
    high = F(limit)
    if given < 1:
        raise ValueError("no Gaussian to draw units from")
    for m in range(members):
        for s in range(samples):
            for b in range(rows):
                unit, draw, d, grad_mean, grad_std = (
                    out[m, s, b],
                    noise[m, s, b],
                    d_out[m, s, b],
                    d_mean[m, s % given, b],
                    d_std[m, s % given, b],
                )
                for j in range(width):
                    slope = d[j] if F(0) < unit[j] < high else F(0)
                    grad_mean[j] += slope
                    grad_std[j] += slope * draw[j]


@loop(LOOSE, "sums total")
def divergence(
    mean_: int, prior_: int, log_row_: int, log_col_: int, sums_: int, total_: int, starts: Ints, precisions: Doubles, members: int, r: int
) -> None:  # fmt: skip
    """KL of matrix Gaussians side by side to their priors, and what its gradient needs: sums of row and of column variances."""
    blocks, c = len(starts) - 1, starts[-1]
    if len(precisions) != blocks:
        raise ValueError("precisions and parts are not of one number")
    mean, prior, sums = (
        array(mean_, (members, r, c)),
        array(prior_, (r, c)),
        array(sums_, (members, blocks, 2)),
    )
    log_row, log_col = array(log_row_, (members, blocks, r)), array(log_col_, (members, c))
    total = array(total_, (members,))
    for m in range(members):
        kl = 0.0  # double precision: large terms of either sign
        for k in range(blocks):
            begin, end, precision = starts[k], starts[k + 1], precisions[k]
            row, col = log_row[m, k], log_col[m, begin:end]
            row_sum, row_logs, col_sum, col_logs, squares = F(0), F(0), F(0), F(0), F(0)
            for i in range(r):
                row_sum += exp(row[i])
                row_logs += row[i]
            for j in range(end - begin):
                col_sum += exp(col[j])
                col_logs += col[j]
            for i in range(r):
                a, b = mean[m, i, begin:end], prior[i, begin:end]
                for j in range(end - begin):
                    squares += (a[j] - b[j]) * (a[j] - b[j])
            sums[m, k, 0], sums[m, k, 1] = row_sum, col_sum
            trace = precision * (row_sum * col_sum + squares)
            kl += 0.5 * (trace - (end - begin) * (r * (1.0 + math.log(precision)) + row_logs) - r * col_logs)
        total[m] = kl


@loop(LOOSE, "d_mean d_row d_col")
def divergence_back(
    mean_: int, prior_: int, log_row_: int, log_col_: int, sums_: int, d_total_: int, d_mean_: int, d_row_: int, d_col_: int,
    starts: Ints, precisions: Doubles, members: int, r: int,
) -> None:  # fmt: skip
    """Gradients of `divergence` w.r.t. the mean and both factors' log-variances."""
    blocks, c = len(starts) - 1, starts[-1]
    if len(precisions) != blocks:
        raise ValueError("precisions and parts are not of one number")
    mean, prior, sums = (
        array(mean_, (members, r, c)),
        array(prior_, (r, c)),
        array(sums_, (members, blocks, 2)),
    )
    log_row, log_col = array(log_row_, (members, blocks, r)), array(log_col_, (members, c))
    d_mean, d_row = array(d_mean_, (members, r, c)), array(d_row_, (members, blocks, r))
    d_col, d_total = array(d_col_, (members, c)), array(d_total_, (members,))
    for m in range(members):
        for k in range(blocks):
            begin, end, weight = starts[k], starts[k + 1], d_total[m] * F(precisions[k])
            half, row_sum, col_sum = F(0.5) * d_total[m], sums[m, k, 0], sums[m, k, 1]
            row, col, grad_row, grad_col = (
                log_row[m, k],
                log_col[m, begin:end],
                d_row[m, k],
                d_col[m, begin:end],
            )
            for i in range(r):
                grad_row[i] = F(0.5) * weight * col_sum * exp(row[i]) - half * F(end - begin)
            for j in range(end - begin):
                grad_col[j] = F(0.5) * weight * row_sum * exp(col[j]) - half * F(r)
            for i in range(r):
                a, b, grad = mean[m, i, begin:end], prior[i, begin:end], d_mean[m, i, begin:end]
                for j in range(end - begin):
                    grad[j] = weight * (a[j] - b[j])


@loop(LOOSE, "variance squares sums")
def spread(
    mean_: int, log_std_: int, variance_: int, squares_: int, sums_: int, rows: int, width: int
) -> None:
    """exp(2 log S), sums of mean² along the rows, and the sums of S² and of log S."""
    mean, log_std, variance = (
        array(mean_, (rows, width)),
        array(log_std_, (rows, width)),
        array(variance_, (rows, width)),
    )
    squares, sums = array(squares_, (rows,)), array(sums_, (2,))
    trace, logs = 0.0, 0.0
    for i in range(rows):
        centre, deviation, out = mean[i], log_std[i], variance[i]
        square, own, own_logs = F(0), F(0), F(0)
        for j in range(width):
            value = exp(F(2) * deviation[j])
            out[j] = value
            own += value
            own_logs += deviation[j]
            square += centre[j] * centre[j]
        squares[i] = square
        trace += float(own)
        logs += float(own_logs)
    sums[0], sums[1] = trace, logs


@loop(LOOSE, "d_mean d_log")
def spread_back(
    mean_: int, variance_: int, d_mean_: int, d_log_: int, size: int, decay: float, whole: float
) -> None:
    """Gradients of products with means and variances, joined in their place by those of a divergence; the second becomes that of log S."""
    mean, variance, d_mean, d_log = (
        array(mean_, (size,)),
        array(variance_, (size,)),
        array(d_mean_, (size,)),
        array(d_log_, (size,)),
    )
    shrink, rest = F(decay), F(whole)
    for i in range(size):
        d_mean[i] += shrink * mean[i]
        d_log[i] = (d_log[i] + shrink) * variance[i] - rest
