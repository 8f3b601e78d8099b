"""Loops of the masked flows: `nn.flows.MaskedNVP` says what they compute."""

import math

import numpy as np

from compound.ops.jit import LOOSE, F, array, exp, log1p, loop


@loop(LOOSE, "z log_det work")
def masked(
    masks_: int, weight_: int, heads_: int, bias_: int, z_: int, log_det_: int, work_: int, steps: int, draws: int, d: int, hidden: int
) -> None:  # fmt: skip
    """All steps of the flow on z, in its place, with the log-determinants and, in `work`, what `masked_back` needs."""
    masks, z, log_det = array(masks_, (steps, draws, d)), array(z_, (draws, d)), array(log_det_, (draws,))
    weight, heads, bias = (
        array(weight_, (steps, d, hidden)),
        array(heads_, (steps, hidden, 2 * d)),
        array(bias_, (steps, hidden + 2 * d)),
    )
    work = array(work_, (steps, draws, 3 * d + hidden))  # m z, (1 - m) (1 - g), z - μ, h
    out = np.empty(2 * d, np.float32)
    for n in range(draws):
        log_det[n] = F(0)
    for k in range(steps):
        for n in range(draws):
            x, coins, own = z[n], masks[k, n], work[k, n]
            stay, shut, away, unit = own[:d], own[d : 2 * d], own[2 * d : 3 * d], own[3 * d :]
            unit[:] = bias[k, :hidden]
            for i in range(d):
                stay[i] = F(0)
                if coins[i] > F(0):
                    row, value = weight[k, i], x[i]
                    stay[i] = value
                    for j in range(hidden):
                        unit[j] += value * row[j]
            out[:] = bias[k, hidden:]
            for j in range(hidden):
                row, value = heads[k, j], F(math.tanh(unit[j]))
                unit[j] = value
                for i in range(2 * d):
                    out[i] += value * row[i]
            centre, gate, total = out[:d], out[d:], F(0)
            for i in range(d):
                small = exp(-abs(gate[i]))
                moves = F(0) if coins[i] > F(0) else F(1)
                shut[i] = moves * (small if gate[i] > F(0) else F(1)) / (F(1) + small)  # (1 - m) (1 - g)
                total += moves * (min(gate[i], F(0)) - log1p(small))
                away[i] = x[i] - centre[i]
                x[i] -= shut[i] * away[i]
            log_det[n] += total


@loop(LOOSE, "d_z d_weight d_heads d_bias")
def masked_back(
    masks_: int, work_: int, weight_: int, heads_: int, d_z_: int, d_log_det_: int, d_weight_: int, d_heads_: int, d_bias_: int,
    steps: int, draws: int, d: int, hidden: int,
) -> None:  # fmt: skip
    """Gradients w.r.t. z, in the place of d_z, and w.r.t. the parameters."""
    masks, work = array(masks_, (steps, draws, d)), array(work_, (steps, draws, 3 * d + hidden))
    d_z, d_log_det = array(d_z_, (draws, d)), array(d_log_det_, (draws,))
    weight, heads = array(weight_, (steps, d, hidden)), array(heads_, (steps, hidden, 2 * d))
    d_weight, d_heads, d_bias = (
        array(d_weight_, (steps, d, hidden)),
        array(d_heads_, (steps, hidden, 2 * d)),
        array(d_bias_, (steps, hidden + 2 * d)),
    )
    d_out, d_h = np.empty((draws, 2 * d), np.float32), np.empty((draws, hidden), np.float32)
    for back in range(steps):
        k = steps - 1 - back
        for n in range(draws):
            d_x, coins, shut, away = d_z[n], masks[k, n], work[k, n, d : 2 * d], work[k, n, 2 * d : 3 * d]
            unit, d_unit, d_centre, d_gate = work[k, n, 3 * d :], d_h[n], d_out[n, :d], d_out[n, d:]
            for i in range(d):
                moved = d_x[i] * shut[i]
                slope = moved * away[i]
                d_centre[i] = moved
                d_gate[i] = slope + shut[i] * (d_log_det[n] - slope)
                d_x[i] -= moved
            for j in range(hidden):
                row, both, total = heads[k, j], d_out[n], F(0)
                for i in range(2 * d):
                    total += row[i] * both[i]
                d_unit[j] = total * (F(1) - unit[j] * unit[j])
            for i in range(d):
                if coins[i] > F(0):
                    row, total = weight[k, i], F(0)
                    for j in range(hidden):
                        total += row[j] * d_unit[j]
                    d_x[i] += total
        for n in range(draws):  # weights are walked over once, all draws together
            bias, both, d_unit = d_bias[k], d_out[n], d_h[n]
            for j in range(hidden):
                bias[j] = d_unit[j] + (bias[j] if n > 0 else F(0))
            for i in range(2 * d):
                bias[hidden + i] = both[i] + (bias[hidden + i] if n > 0 else F(0))
        for j in range(hidden):
            row = d_heads[k, j]
            for n in range(draws):
                both, unit_j = d_out[n], work[k, n, 3 * d + j]
                if n == 0:
                    for i in range(2 * d):
                        row[i] = unit_j * both[i]
                else:
                    for i in range(2 * d):
                        row[i] += unit_j * both[i]
        for i in range(d):
            row = d_weight[k, i]
            for n in range(draws):
                d_unit, stay = d_h[n], work[k, n, i]
                if n == 0:
                    for j in range(hidden):
                        row[j] = stay * d_unit[j]
                else:
                    for j in range(hidden):
                        row[j] += stay * d_unit[j]
