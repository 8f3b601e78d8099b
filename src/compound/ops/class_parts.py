"""The mean of drawn class probabilities with its entropy split, in one pass over the draws.

p = softmax(z) of each draw; neighbouring draws that depend on each other form a group; q is a group's mean, m
a member's mean, G the number of groups of a member.

    component = mean of H(p),    mean = mean of m
    conditional = mean of H(m) + (G - 1) mean of sum_k m_k ((1 + c) log(1 + c) - c)
    c = (m - q) / ((G - 1) m)

The sum is the jackknife of `compound.predictive.decomposition.entropy_parts`. `reference` says it in torch,
for float64 too. torch would pass over the draws some twenty times.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from compound.ops.jit import F, array, can_use_kernel, kernel, launch, log, loop
from compound.ops.lanes import address_of, lanes_exp, load, maximum, splat, store

LANES = 16
TINY = float(np.finfo(np.float32).tiny)


class ClassParts(NamedTuple):
    """Means over draws."""

    probs: Tensor  # (rows, classes)
    component: Tensor  # (rows,)
    conditional: Tensor  # (rows,)


def class_parts(logits: Tensor, paired: int) -> ClassParts:
    """Parts of the mixture of draws of logits (members, draws, rows, classes); without gradients.

    `paired` neighbouring draws are one group.
    """
    members, draws, rows, classes = logits.shape
    whole = rows % LANES == 0 and draws % paired == 0
    if not (whole and can_use_kernel(logits)) or torch.is_grad_enabled():
        return reference(logits, paired)
    probs = logits.new_empty(classes, rows)
    component, conditional = logits.new_empty((2, rows)).unbind()
    by_class = logits.movedim(3, 2).contiguous()
    launch(classes_loop, (by_class, probs, component, conditional), members, draws, rows, classes, paired)
    return ClassParts(probs.T.contiguous(), component, conditional)


def reference(logits: Tensor, paired: int) -> ClassParts:
    """The definition of `class_parts`, for any dtype and device."""
    logs = torch.log_softmax(logits, -1)
    probs = logs.exp()
    component = -(probs * logs).sum(-1).mean((0, 1))
    groups = probs.unflatten(1, (-1, paired)).mean(2)  # (members, G, rows, classes)
    count = groups.shape[1]
    of_members = groups.mean(1, keepdim=True)
    conditional = -torch.xlogy(of_members, of_members).sum(-1).mean((0, 1))
    if count > 1:
        tiny = torch.finfo(logits.dtype).tiny
        change = ((of_members - groups) / ((count - 1) * of_members.clamp_min(tiny))).clamp_min(-1)
        divergence = (of_members * (torch.special.xlog1py(1 + change, change) - change)).sum(-1)
        conditional = conditional + (count - 1) * divergence.mean((0, 1))
    return ClassParts(of_members.mean((0, 1)), component, conditional)


@loop({"contract"}, "probs component conditional")
def classes_loop(
    logits_: int, probs_: int, component_: int, conditional_: int,
    members: int, draws: int, rows: int, classes: int, paired: int,
) -> None:  # fmt: skip
    """`reference` for logits (members, draws, classes, rows), 16 rows at a time."""
    array(logits_, (members, draws, classes, rows))
    array(probs_, (classes, rows))
    array(component_, (rows,))
    array(conditional_, (rows,))
    if paired < 1 or draws < paired or members < 1 or classes < 1:
        raise ValueError("a mixture has no component")
    if draws % paired != 0 or rows % 16 != 0:
        raise ValueError("draws come in whole groups, rows in whole vectors")
    count = draws // paired
    each = np.empty((classes, 16), np.float32)  # of a draw
    groups = np.empty((count, classes, 16), np.float32)  # means
    mean, sums = np.empty((classes, 16), np.float32), np.empty((1, 16), np.float32)
    work = np.empty((1, 16), np.float32)
    each_, groups_, mean_ = address_of(each), address_of(groups), address_of(mean)
    sums_, work_ = address_of(sums), address_of(work)
    zero, one, tiny = splat(F(0)), splat(F(1)), splat(F(TINY))
    of_group, of_member, of_members = splat(F(1 / paired)), splat(F(1 / count)), splat(F(1 / members))
    jackknife = F(max(1, count - 1))
    for b in range(0, rows - 15, 16):
        mean[:] = F(0)
        entropies, conditional = zero, zero
        for m in range(members):
            groups[:] = F(0)
            for s in range(draws):
                start, group_ = ((m * draws + s) * classes) * rows + b, groups_ + 64 * (s // paired) * classes
                highest = load(logits_, start)
                for k in range(1, classes):
                    highest = maximum(load(logits_, start + k * rows), highest)
                total, product = zero, zero
                for k in range(classes):
                    z = load(logits_, start + k * rows) - highest
                    p = lanes_exp(z)
                    store(each_, 16 * k, p)
                    total = total + p
                    product = p * z + product
                store(work_, 0, total)
                for i in range(16):
                    sums[0, i] = F(1) / work[0, i]
                    work[0, i] = log(work[0, i])
                inverse = load(sums_, 0)
                entropies = entropies + (load(work_, 0) - product * inverse)
                for k in range(classes):
                    store(group_, 16 * k, load(each_, 16 * k) * inverse + load(group_, 16 * k))
            for k in range(classes):
                centre = zero
                for g in range(count):
                    q = load(groups_, 16 * (g * classes + k)) * of_group
                    store(groups_, 16 * (g * classes + k), q)
                    centre = centre + q
                centre = centre * of_member
                store(mean_, 16 * k, centre * of_members + load(mean_, 16 * k))
                store(work_, 0, maximum(tiny, centre))
                for i in range(16):
                    sums[0, i] = F(1) / (jackknife * work[0, i])
                    work[0, i] = log(work[0, i])
                conditional = conditional - centre * load(work_, 0)
                if count > 1:
                    inverse, divergence = load(sums_, 0), zero
                    for g in range(count):
                        q = load(groups_, 16 * (g * classes + k))
                        change = maximum(splat(F(-1)), (centre - q) * inverse)
                        store(work_, 0, change)
                        for i in range(16):
                            work[0, i] = x_log_x(work[0, i])
                        divergence = divergence + load(work_, 0)
                    conditional = conditional + centre * divergence * (splat(jackknife) * of_member)
        for k in range(classes):
            store(probs_, k * rows + b, load(mean_, 16 * k))
        store(component_, b, entropies * splat(F(1 / (members * draws))))
        store(conditional_, b, conditional * (of_members * one))


@kernel({"contract"})
def x_log_x(c: Any) -> Any:
    """(1 + c) log(1 + c) - c for c >= -1: by its series for small c, where the terms would cancel."""
    square = c * c
    series = square * (F(1 / 2) - c * (F(1 / 6) - c * (F(1 / 12) - c * (F(1 / 20) - c * F(1 / 30)))))
    u = F(1) + c
    u = u if u > F(TINY) else F(TINY)
    exact = u * log(u) - c
    return series if abs(c) < F(0.05) else exact
