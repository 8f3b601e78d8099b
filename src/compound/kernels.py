"""Loops over float32 arrays, compiled: what takes torch a dozen passes over a batch, each with its own start, takes one here.

Every formula stands in plain torch where it is used (`nn.moments.plain`, `nn.matrix_gaussian.plain`); that form serves other dtypes
and devices, and the tests hold these loops against it. numba compiles a loop when it is first called and keeps it on disk.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numba import carray, njit, types
from numba.extending import intrinsic
from torch import Tensor

F = np.float32
# sums may be taken in any order and products fused; infinities and NaN stay what they are
LOOSE = {"reassoc", "contract", "nsz"}


def suits(*tensors: Tensor) -> bool:
    """Whether the loops may work on these; not while a trace looks on, which sees only what torch does."""
    return all(t.dtype is torch.float32 and t.device.type == "cpu" for t in tensors) and torch._C._len_torch_dispatch_stack() == 0


def run(loop: Callable[..., None], tensors: Sequence[Tensor], *rest: Any) -> None:
    """A loop over tensors, which it is handed as addresses: making arrays of them takes longer than many a loop.

    Here they are kept alive until the loop is done, and each must fill its memory without gaps.
    """
    for values in tensors:
        if not values.is_contiguous():
            raise ValueError(f"a tensor of shape {tuple(values.shape)} has gaps (strides {values.stride()}): hand over values.contiguous()")
    loop(*[values.data_ptr() for values in tensors], *rest)


def _kernel(flags: set[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(loop: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return njit(fastmath=flags, error_model="numpy", cache=True)(loop)
        except RuntimeError:  # no place on disk may be written: compiled anew in every process
            return njit(fastmath=flags, error_model="numpy")(loop)

    return wrap


@intrinsic
def _as_float(_: Any, bits: Any) -> Any:
    """The float32 with these bits."""
    return types.float32(types.int32), lambda context, builder, _, args: builder.bitcast(args[0], context.get_value_type(types.float32))


@intrinsic
def _as_bits(_: Any, value: Any) -> Any:
    return types.int32(types.float32), lambda context, builder, _, args: builder.bitcast(args[0], context.get_value_type(types.int32))


@intrinsic
def _pointer(_: Any, address: Any) -> Any:
    pointer = types.CPointer(types.float32)
    return pointer(types.int64), lambda context, builder, _, args: builder.inttoptr(args[0], context.get_value_type(pointer))


ROUND = F(1.5 * 2**23)  # adding and taking it off rounds to a whole number; needs operations in the order written


@_kernel({"contract"})
def exp(x: Any) -> Any:
    """e^x to the last bit or two for |x| < 87, in operations that run for many numbers at once (a call of the C library would not)."""
    n = (x * F(1.4426950408889634) + ROUND) - ROUND
    f = (x - n * F(0.693359375)) - n * F(-2.12194440e-4)  # |f| <= ln 2 / 2; Cephes' polynomial
    p = F(1.9875691500e-4) * f + F(1.3981999507e-3)
    p = ((p * f + F(8.3334519073e-3)) * f + F(4.1665795894e-2)) * f + F(1.6666665459e-1)
    p = (p * f + F(5.0000001201e-1)) * f * f + f + F(1)
    return p * _as_float((np.int32(n) + np.int32(127)) << np.int32(23))


@_kernel(LOOSE)
def moments(
    wide_: int, heads_: int, basis_: int, scaled_: int, std_: int, sums_: int, norms_: int, kl_: int,
    members: int, rows: int, r: int, c: int, bound: float, scaled_form: bool, kl: bool,
) -> None:  # fmt: skip
    """`nn.moments.plain` but for the product with V. Heads become s, exp(lr), exp(lc); sums: q, and of row and of column variances."""
    wide, heads, basis = carray(_pointer(wide_), (rows, r)), carray(_pointer(heads_), (rows, 2 * r + c)), carray(_pointer(basis_), (members, r, c))
    scaled, std, sums = carray(_pointer(scaled_), (rows, r)), carray(_pointer(std_), (rows, c)), carray(_pointer(sums_), (rows, 3))
    norms, kls = carray(_pointer(norms_), (members, r)), carray(_pointer(kl_), (rows,))
    bound, fan = F(bound), F(r if scaled_form else 1)
    if kl:
        for m in range(members):
            for i in range(r):
                v, square = basis[m, i], F(0)
                for j in range(c):
                    square += v[j] * v[j]
                norms[m, i] = square
    for b in range(rows):
        x, s, row, col, out, norm = wide[b], heads[b, :r], heads[b, r : 2 * r], heads[b, 2 * r :], scaled[b], norms[b // (rows // members)]
        q_sum, row_sum, row_logs, squares = F(0), F(0), F(0), F(0)
        for i in range(r):
            log = min(max(row[i], -bound), bound)
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
            log = min(max(col[j], -bound), bound)
            variance = exp(log)
            col[j] = variance
            deviation[j] = math.sqrt(q_sum * variance)
            col_sum += variance
            col_logs += log
        sums[b, 0], sums[b, 1], sums[b, 2] = q_sum, row_sum, col_sum
        if kl:
            kls[b] = F(0.5) * (row_sum * col_sum + fan * squares - F(r * c) - F(c) * row_logs - F(r) * col_logs)


@_kernel(LOOSE)
def moments_back(
    wide_: int, heads_: int, norms_: int, std_: int, sums_: int, d_scaled_: int, d_std_: int, d_kl_: int, d_wide_: int, d_norms_: int,
    members: int, rows: int, r: int, c: int, bound: float, scaled_form: bool, kl: bool, inputs: bool,
) -> None:  # fmt: skip
    """Gradients of `moments` towards the heads, in their place, towards h~ (where `inputs`) and, added up, towards |V_i|²."""
    wide, heads, std = carray(_pointer(wide_), (rows, r)), carray(_pointer(heads_), (rows, 2 * r + c)), carray(_pointer(std_), (rows, c))
    sums, norms, d_norms = carray(_pointer(sums_), (rows, 3)), carray(_pointer(norms_), (members, r)), carray(_pointer(d_norms_), (members, r))
    d_scaled, d_std, d_kl = carray(_pointer(d_scaled_), (rows, r)), carray(_pointer(d_std_), (rows, c)), carray(_pointer(d_kl_), (rows,))
    d_wide = carray(_pointer(d_wide_), (rows, r))
    bound, fan = F(bound), F(r if scaled_form else 1)
    low, high = exp(-bound), exp(bound)  # a clamped log-variance has no gradient
    for b in range(rows):
        m = b // (rows // members)
        x, s, row, col, d, norm, towards = wide[b], heads[b, :r], heads[b, r : 2 * r], heads[b, 2 * r :], d_scaled[b], norms[m], d_norms[m]
        half = F(0.5) * d_kl[b] if kl else F(0)
        d_deviation, deviation, row_sum, d_q = d_std[b], std[b], sums[b, 1], F(0)
        for j in range(c):
            d_log = F(0.5) * d_deviation[j] * deviation[j]  # towards log q and lc alike
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
            towards[i] += half * fan * s[i] * s[i]
            s[i] = d[i] * x[i] + weight * s[i] * norm[i]


@_kernel(LOOSE)
def noisy(
    wide_: int, row_: int, col_: int, noise_: int, scale_: int, out_: int, starts: Any, members: int, rows: int, r: int
) -> None:  # fmt: skip
    """Adds noise * sqrt(sum_i h~_i² row_i) * col to out; outputs starts[k] to starts[k + 1] have the row variances row[:, k]."""
    blocks, c = len(starts) - 1, starts[-1]
    wide, row, col = carray(_pointer(wide_), (rows, r)), carray(_pointer(row_), (members, blocks, r)), carray(_pointer(col_), (members, c))
    noise, scale, out = carray(_pointer(noise_), (rows, c)), carray(_pointer(scale_), (rows, blocks)), carray(_pointer(out_), (rows, c))
    for b in range(rows):
        m, x = b // (rows // members), wide[b]
        for k in range(blocks):
            begin, end = starts[k], starts[k + 1]
            variance, deviation, draw, result = row[m, k], col[m, begin:end], noise[b, begin:end], out[b, begin:end]
            q = F(0)
            for i in range(r):
                q += x[i] * x[i] * variance[i]
            q = math.sqrt(q)
            scale[b, k] = q
            for j in range(end - begin):
                result[j] += q * draw[j] * deviation[j]


@_kernel(LOOSE)
def noisy_back(
    wide_: int, row_: int, col_: int, noise_: int, scale_: int, d_out_: int, d_wide_: int, d_row_: int, d_col_: int,
    starts: Any, members: int, rows: int, r: int, inputs: bool,
) -> None:  # fmt: skip
    """Gradients of `noisy`: towards h~ (where `inputs`), the row variances and the logarithms of the column variances, all added up."""
    blocks, c = len(starts) - 1, starts[-1]
    wide, row, col = carray(_pointer(wide_), (rows, r)), carray(_pointer(row_), (members, blocks, r)), carray(_pointer(col_), (members, c))
    noise, scale, d_out = carray(_pointer(noise_), (rows, c)), carray(_pointer(scale_), (rows, blocks)), carray(_pointer(d_out_), (rows, c))
    d_wide, d_row, d_col = carray(_pointer(d_wide_), (rows, r)), carray(_pointer(d_row_), (members, blocks, r)), carray(_pointer(d_col_), (members, c))
    for b in range(rows):
        m, x = b // (rows // members), wide[b]
        for k in range(blocks):
            begin, end = starts[k], starts[k + 1]
            variance, deviation, draw, d = row[m, k], col[m, begin:end], noise[b, begin:end], d_out[b, begin:end]
            towards_row, towards_col, half, d_scale = d_row[m, k], d_col[m, begin:end], F(0.5) * scale[b, k], F(0)
            for j in range(end - begin):
                product = d[j] * draw[j] * deviation[j]
                d_scale += product
                towards_col[j] += half * product
            d_q = F(0.5) * d_scale / scale[b, k]
            for i in range(r):
                towards_row[i] += d_q * x[i] * x[i]
            if inputs:
                towards = d_wide[b]
                for i in range(r):
                    towards[i] += F(2) * d_q * variance[i] * x[i]


@_kernel(LOOSE)
def units(mean_: int, std_: int, noise_: int, out_: int, members: int, given: int, samples: int, rows: int, width: int, limit: float) -> None:
    """[clamp(mean + std * noise, 0, limit); 1] for S draws from `given` Gaussians per row: one for each draw, or one for all."""
    mean, std = carray(_pointer(mean_), (members, given, rows, width)), carray(_pointer(std_), (members, given, rows, width))
    noise, out = carray(_pointer(noise_), (members, samples, rows, width)), carray(_pointer(out_), (members, samples, rows, width + 1))
    high = F(limit)
    for m in range(members):
        for s in range(samples):
            for b in range(rows):
                centre, spread, draw, result = mean[m, s % given, b], std[m, s % given, b], noise[m, s, b], out[m, s, b]
                for j in range(width):
                    result[j] = min(max(centre[j] + spread[j] * draw[j], F(0)), high)
                result[width] = F(1)


@_kernel(LOOSE)
def units_back(
    out_: int, noise_: int, d_out_: int, d_mean_: int, d_std_: int,
    members: int, given: int, samples: int, rows: int, width: int, limit: float,
) -> None:  # fmt: skip
    """Gradients of `units` towards mean and std, added up over the draws."""
    d_mean, d_std = carray(_pointer(d_mean_), (members, given, rows, width)), carray(_pointer(d_std_), (members, given, rows, width))
    out, noise = carray(_pointer(out_), (members, samples, rows, width + 1)), carray(_pointer(noise_), (members, samples, rows, width))
    d_out = carray(_pointer(d_out_), (members, samples, rows, width + 1))
    high = F(limit)
    for m in range(members):
        for s in range(samples):
            for b in range(rows):
                unit, draw, d, towards_mean, towards_std = out[m, s, b], noise[m, s, b], d_out[m, s, b], d_mean[m, s % given, b], d_std[m, s % given, b]
                for j in range(width):
                    slope = d[j] if F(0) < unit[j] < high else F(0)
                    towards_mean[j] += slope
                    towards_std[j] += slope * draw[j]


@_kernel(LOOSE)
def divergence(
    mean_: int, prior_: int, log_row_: int, log_col_: int, sums_: int, total_: int, starts: Any, precisions: Any, members: int, r: int
) -> None:  # fmt: skip
    """KL of matrix Gaussians side by side to their priors, and what its gradient needs: sums of row and of column variances."""
    blocks, c = len(starts) - 1, starts[-1]
    mean, prior, sums = carray(_pointer(mean_), (members, r, c)), carray(_pointer(prior_), (r, c)), carray(_pointer(sums_), (members, blocks, 2))
    log_row, log_col = carray(_pointer(log_row_), (members, blocks, r)), carray(_pointer(log_col_), (members, c))
    total = carray(_pointer(total_), (members,))
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


@_kernel(LOOSE)
def divergence_back(
    mean_: int, prior_: int, log_row_: int, log_col_: int, sums_: int, d_total_: int, d_mean_: int, d_row_: int, d_col_: int,
    starts: Any, precisions: Any, members: int, r: int,
) -> None:  # fmt: skip
    """Gradients of `divergence` towards the mean and both factors' log-variances."""
    blocks, c = len(starts) - 1, starts[-1]
    mean, prior, sums = carray(_pointer(mean_), (members, r, c)), carray(_pointer(prior_), (r, c)), carray(_pointer(sums_), (members, blocks, 2))
    log_row, log_col = carray(_pointer(log_row_), (members, blocks, r)), carray(_pointer(log_col_), (members, c))
    d_mean, d_row = carray(_pointer(d_mean_), (members, r, c)), carray(_pointer(d_row_), (members, blocks, r))
    d_col, d_total = carray(_pointer(d_col_), (members, c)), carray(_pointer(d_total_), (members,))
    for m in range(members):
        for k in range(blocks):
            begin, end, weight = starts[k], starts[k + 1], d_total[m] * F(precisions[k])
            half, row_sum, col_sum = F(0.5) * d_total[m], sums[m, k, 0], sums[m, k, 1]
            row, col, towards_row, towards_col = log_row[m, k], log_col[m, begin:end], d_row[m, k], d_col[m, begin:end]
            for i in range(r):
                towards_row[i] = F(0.5) * weight * col_sum * exp(row[i]) - half * F(end - begin)
            for j in range(end - begin):
                towards_col[j] = F(0.5) * weight * row_sum * exp(col[j]) - half * F(r)
            for i in range(r):
                a, b, towards = mean[m, i, begin:end], prior[i, begin:end], d_mean[m, i, begin:end]
                for j in range(end - begin):
                    towards[j] = weight * (a[j] - b[j])


@_kernel({"contract"})
def gaussians(out_: int, quarter: int, key: int) -> None:
    """4 quarter standard normal numbers: Philox 4x32 with 7 rounds (Salmon et al., 2011), then Box and Muller."""
    out = carray(_pointer(out_), (4 * quarter,))
    for i in range(quarter):
        c0, c1, c2, c3 = np.uint32(i), np.uint32(0), np.uint32(0), np.uint32(0)
        k0, k1 = np.uint32(key), np.uint32(key >> 32)
        for _ in range(7):
            p0, p1 = np.uint64(c0) * np.uint64(0xD2511F53), np.uint64(c2) * np.uint64(0xCD9E8D57)
            c0, c1 = np.uint32(np.uint32(p1 >> np.uint64(32)) ^ c1 ^ k0), np.uint32(p1)
            c2, c3 = np.uint32(np.uint32(p0 >> np.uint64(32)) ^ c3 ^ k1), np.uint32(p0)
            k0, k1 = np.uint32(k0 + np.uint32(0x9E3779B9)), np.uint32(k1 + np.uint32(0xBB67AE85))
        out[i], out[quarter + i] = polar(c0, c1)
        out[2 * quarter + i], out[3 * quarter + i] = polar(c2, c3)


@_kernel({"contract"})
def polar(u: Any, v: Any) -> Any:
    """sqrt(-2 ln U) times the sine and cosine of a random angle, from 24 bits each of u and v."""
    bits = _as_bits((F(np.int32(u >> np.uint32(8))) + F(1)) * F(2.0**-24))  # of U in (0, 1]
    power = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    f = _as_float(bits - (power << np.int32(23))) - F(1)  # U = 2^power (1 + f), sqrt(1/2) <= 1 + f < sqrt(2); Cephes' polynomials
    p = ((F(7.0376836292e-2) * f - F(1.1514610310e-1)) * f + F(1.1676998740e-1)) * f - F(1.2420140846e-1)
    p = ((p * f + F(1.4249322787e-1)) * f - F(1.6668057665e-1)) * f + F(2.0000714765e-1)
    p = (p * f - F(2.4999993993e-1)) * f + F(3.3333331174e-1)
    radius = math.sqrt(F(-2) * (F(np.float32(power)) * F(math.log(2)) + (f + f * f * (f * p - F(0.5)))))
    turn = F(np.int32(v) >> np.int32(8)) * F(2.0**-23)  # [-1, 1): half turns
    n = (F(2) * turn + ROUND) - ROUND
    a = (turn - F(0.5) * n) * F(math.pi)  # within an eighth of a turn
    z = a * a
    sine = a + a * z * (F(-1.6666654611e-1) + z * (F(8.3321608736e-3) - z * F(1.9515295891e-4)))
    cosine = F(1) - F(0.5) * z + z * z * (F(4.166664568e-2) + z * (F(-1.388731625e-3) + z * F(2.443315712e-5)))
    quadrant = np.int32(n)
    odd = (quadrant & np.int32(1)) != 0
    first, second = (cosine, sine) if odd else (sine, cosine)
    first = -first if (quadrant & np.int32(2)) != 0 else first
    second = -second if ((quadrant + np.int32(1)) & np.int32(2)) != 0 else second
    return radius * first, radius * second
