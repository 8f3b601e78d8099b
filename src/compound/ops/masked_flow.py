"""The masked flow: in every step a random half of z (mask m) is kept and determines how the other changes.

    h = tanh(A (m z) + a),  μ = B h + b,  g = sigmoid(C h + c),  z' = m z + (1 - m) (g z + (1 - g) μ)

The Jacobian is triangular, unmoved entries first, with 1 and g on its diagonal: log det = sum (1 - m) log g.
Louizos and Welling (2017), after Dinh et al. (2017).
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from compound.ops.flow import Flow, Saved
from compound.ops.jit import FASTMATH, F, array, can_use_kernel, exp, launch, log1p, loop
from compound.precision import once_differentiable


def masked_flow(
    z: Tensor,  # (draws, d)
    masks: Tensor,  # (steps, draws, d): an entry stays where this is positive
    weight: Tensor,  # (steps, d, hidden): A
    heads: Tensor,  # (steps, hidden, 2 d): B and C
    bias: Tensor,  # (steps, hidden + 2 d): a, b and c
) -> tuple[Tensor, Tensor]:  # (draws, d), (draws,)
    """z' and the log-determinant of the Jacobian: compiled where possible, differentiable."""
    if can_use_kernel(z, masks, weight):
        return _MaskedFlow.apply(z, masks, weight, heads, bias)  # type: ignore[no-any-return]
    return reference(z, masks, weight, heads, bias)


def reference(z: Tensor, masks: Tensor, weight: Tensor, heads: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The definition of `masked_flow`, for any dtype and device."""
    log_det = z.new_zeros(len(z))
    biases = bias.split([weight.shape[2], heads.shape[2]], 1)
    for signs, a, b_c, hidden_bias, heads_bias in zip(masks, weight, heads, *biases, strict=True):
        mask = (signs > 0).to(z.dtype)
        h = torch.addmm(hidden_bias, mask * z, a).tanh()
        mu, gate = torch.addmm(heads_bias, h, b_c).chunk(2, -1)
        z = torch.addcmul(z, (1 - mask) * torch.sigmoid(-gate), z - mu, value=-1)
        log_det = log_det + ((1 - mask) * functional.logsigmoid(gate)).sum(-1)
    return z, log_det


def forward(
    z: Tensor, masks: Tensor, weight: Tensor, heads: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Saved]:
    """`reference`, compiled, and what `backward` needs."""
    steps, draws, d = masks.shape
    hidden = weight.shape[2]
    out = z.clone(memory_format=torch.contiguous_format)
    log_det = z.new_empty(draws)
    work = z.new_empty((steps, draws, 3 * d + hidden))
    launch(flow_loop, (masks, weight, heads, bias, out, log_det, work), steps, draws, d, hidden)
    return out, log_det, (masks, work, weight, heads)


def backward(saved: Saved, d_z: Tensor, d_log_det: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Gradients with respect to z and to weight, heads and bias, compiled."""
    masks, _, weight, heads = saved
    hidden = weight.shape[2]
    d_bias = heads.new_empty((len(heads), hidden + heads.shape[2]))
    gradients = [torch.empty_like(weight), torch.empty_like(heads), d_bias]
    d_z = d_z.clone(memory_format=torch.contiguous_format)
    launch(flow_backward_loop, (*saved, d_z, d_log_det.contiguous(), *gradients), *masks.shape, hidden)
    return d_z, gradients


class _MaskedFlow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        out, log_det, saved = forward(z, *parameters)
        ctx.save_for_backward(*saved)
        return out, log_det

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_z: Tensor, d_log_det: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        d_z, gradients = backward(ctx.saved_tensors, d_z, d_log_det)
        return d_z, None, *gradients


MASKED = Flow(masked_flow, reference, forward, backward)


@loop(FASTMATH, "z log_det work")
def flow_loop(
    masks_: int, weight_: int, heads_: int, bias_: int, z_: int, log_det_: int, work_: int,
    steps: int, draws: int, d: int, hidden: int,
) -> None:  # fmt: skip
    """All steps on z (overwritten), the log-determinants and, in `work`, what the backward pass needs."""
    masks = array(masks_, (steps, draws, d))
    weight = array(weight_, (steps, d, hidden))
    heads = array(heads_, (steps, hidden, 2 * d))
    bias = array(bias_, (steps, hidden + 2 * d))
    z = array(z_, (draws, d))
    log_det = array(log_det_, (draws,))
    work = array(work_, (steps, draws, 3 * d + hidden))  # m z, (1 - m) (1 - g), z - μ, h
    out = np.empty(2 * d, np.float32)
    for n in range(draws):
        log_det[n] = F(0)
    for k in range(steps):
        for n in range(draws):
            x, signs, saved = z[n], masks[k, n], work[k, n]
            stay, closed = saved[:d], saved[d : 2 * d]
            shift, unit = saved[2 * d : 3 * d], saved[3 * d :]
            unit[:] = bias[k, :hidden]
            for i in range(d):
                stay[i] = F(0)
                if signs[i] > F(0):
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
            mu, gate, total = out[:d], out[d:], F(0)
            for i in range(d):
                small = exp(-abs(gate[i]))
                moves = F(0) if signs[i] > F(0) else F(1)
                closed[i] = moves * (small if gate[i] > F(0) else F(1)) / (F(1) + small)  # (1 - m) (1 - g)
                total += moves * (min(gate[i], F(0)) - log1p(small))
                shift[i] = x[i] - mu[i]
                x[i] -= closed[i] * shift[i]
            log_det[n] += total


@loop(FASTMATH, "d_z d_weight d_heads d_bias")
def flow_backward_loop(
    masks_: int, work_: int, weight_: int, heads_: int, d_z_: int, d_log_det_: int,
    d_weight_: int, d_heads_: int, d_bias_: int,
    steps: int, draws: int, d: int, hidden: int,
) -> None:  # fmt: skip
    """Gradients of `flow_loop` with respect to z (overwrites d_z) and to the parameters."""
    masks = array(masks_, (steps, draws, d))
    work = array(work_, (steps, draws, 3 * d + hidden))
    weight = array(weight_, (steps, d, hidden))
    heads = array(heads_, (steps, hidden, 2 * d))
    d_z = array(d_z_, (draws, d))
    d_log_det = array(d_log_det_, (draws,))
    d_weight = array(d_weight_, (steps, d, hidden))
    d_heads = array(d_heads_, (steps, hidden, 2 * d))
    d_bias = array(d_bias_, (steps, hidden + 2 * d))
    d_out, d_h = np.empty((draws, 2 * d), np.float32), np.empty((draws, hidden), np.float32)
    for step in range(steps):
        k = steps - 1 - step
        for n in range(draws):
            d_x, signs = d_z[n], masks[k, n]
            closed, shift = work[k, n, d : 2 * d], work[k, n, 2 * d : 3 * d]
            unit, d_unit, d_mu, d_gate = work[k, n, 3 * d :], d_h[n], d_out[n, :d], d_out[n, d:]
            for i in range(d):
                product = d_x[i] * closed[i]
                slope = product * shift[i]
                d_mu[i] = product
                d_gate[i] = slope + closed[i] * (d_log_det[n] - slope)
                d_x[i] -= product
            for j in range(hidden):
                row, d_heads_out, total = heads[k, j], d_out[n], F(0)
                for i in range(2 * d):
                    total += row[i] * d_heads_out[i]
                d_unit[j] = total * (F(1) - unit[j] * unit[j])
            for i in range(d):
                if signs[i] > F(0):
                    row, total = weight[k, i], F(0)
                    for j in range(hidden):
                        total += row[j] * d_unit[j]
                    d_x[i] += total
        for n in range(draws):  # one pass over the weights for all draws
            bias, d_heads_out, d_unit = d_bias[k], d_out[n], d_h[n]
            for j in range(hidden):
                bias[j] = d_unit[j] + (bias[j] if n > 0 else F(0))
            for i in range(2 * d):
                bias[hidden + i] = d_heads_out[i] + (bias[hidden + i] if n > 0 else F(0))
        for j in range(hidden):
            row = d_heads[k, j]
            for n in range(draws):
                d_heads_out, unit_j = d_out[n], work[k, n, 3 * d + j]
                if n == 0:
                    for i in range(2 * d):
                        row[i] = unit_j * d_heads_out[i]
                else:
                    for i in range(2 * d):
                        row[i] += unit_j * d_heads_out[i]
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
