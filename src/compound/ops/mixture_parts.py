"""A mixture of all members' draws with its variance split, in one pass for targets.

    m' = c + τ (m - c),    v' = τ² v + noise,    c = a member's mean of its draws' means m

    u      variance of the means of independent groups of draws; their number is G
    mixing = mean τ² v + u + variance within groups + between - posterior
    posterior = max(0, between),    between = variance of the members' means - (1 - 1 / members) u / G

`reference` says it in torch, for float64 too. torch would pass over the draws a dozen times.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from compound.ops.jit import F, array, can_use_kernel, launch, loop
from compound.ops.lanes import LANES, address_of, load, maximum, splat, store


class MixtureParts(NamedTuple):
    """Draws of the mixture, and parts of its variance."""

    means: Tensor  # (members, draws, columns)
    variances: Tensor  # (members, draws, columns)
    mixing: Tensor  # (columns,)
    posterior: Tensor  # (columns,)


def mixture_parts(means: Tensor, variances: Tensor, noise: Tensor, tau: float, paired: int) -> MixtureParts:
    """Scale the draws of members, and split the variance of their mixture; without gradients.

    Shapes: means and variances (members, draws, columns), noise (members, columns). `paired` neighbouring
    draws depend on each other; they are one group.
    """
    members, draws, columns = means.shape
    whole = columns % LANES == 0 and draws % paired == 0
    if not (whole and can_use_kernel(means, variances, noise)) or torch.is_grad_enabled():
        return reference(means, variances, noise, tau, paired)
    out = MixtureParts(
        torch.empty_like(means, memory_format=torch.contiguous_format),
        torch.empty_like(means, memory_format=torch.contiguous_format),
        *means.new_empty((2, columns)).unbind(),
    )
    arrays = means.contiguous(), variances.contiguous(), noise.contiguous(), *out
    launch(parts_loop, arrays, members, draws, columns, paired, tau)
    return out


def reference(means: Tensor, variances: Tensor, noise: Tensor, tau: float, paired: int) -> MixtureParts:
    """The definition of `mixture_parts`, for any dtype and device."""
    members, draws, _ = means.shape
    count = draws // paired
    centre = means.mean(1, keepdim=True)
    scaled = centre + tau * (means - centre)
    groups = scaled.unflatten(1, (count, paired))
    u = groups.mean(2).var(1).mean(0) if count > 1 else torch.zeros_like(means[0, 0])
    within = groups.var(2, correction=0).mean((0, 1))
    between = centre[:, 0].var(0, correction=0) - (1 - 1 / members) * u / count
    posterior = between.clamp_min(0)
    integrated = tau**2 * variances
    mixing = integrated.mean((0, 1)) + (u + within + between) - posterior
    return MixtureParts(scaled, integrated + noise.unsqueeze(1), mixing, posterior)


@loop({"contract"}, "out_means out_variances mixing posterior")
def parts_loop(
    means_: int, variances_: int, noise_: int,
    out_means_: int, out_variances_: int, mixing_: int, posterior_: int,
    members: int, draws: int, columns: int, paired: int, tau: float,
) -> None:  # fmt: skip
    """`reference`, for 16 columns at a time."""
    array(means_, (members, draws, columns))
    array(variances_, (members, draws, columns))
    array(noise_, (members, columns))
    array(out_means_, (members, draws, columns))
    array(out_variances_, (members, draws, columns))
    array(mixing_, (columns,))
    array(posterior_, (columns,))
    if paired < 1 or draws < paired or members < 1:
        raise ValueError("a mixture has no component")
    count = draws // paired
    groups, centres = np.empty((count, 16), np.float32), np.empty((members, 16), np.float32)
    groups_, centres_ = address_of(groups), address_of(centres)
    zero, scale, square = splat(F(0)), splat(F(tau)), splat(F(tau * tau))
    each, whole = splat(F(1 / paired)), splat(F(1 / draws))
    for j in range(0, columns - 15, 16):
        apart, within, integrated, grand = zero, zero, zero, zero
        for m in range(members):
            start = m * draws * columns + j
            centre = zero
            for g in range(count):
                total = zero
                for d in range(g * paired, (g + 1) * paired):
                    total = total + load(means_, start + d * columns)
                store(groups_, 16 * g, total * each)
                centre = centre + total
            centre = centre * whole
            store(centres_, 16 * m, centre)
            grand = grand + centre
            noise = load(noise_, m * columns + j)
            for g in range(count):
                middle = load(groups_, 16 * g)
                gap = middle - centre
                apart = gap * gap + apart
                for d in range(g * paired, (g + 1) * paired):
                    mean, inner = (
                        load(means_, start + d * columns),
                        square * load(variances_, start + d * columns),
                    )
                    gap = mean - middle
                    within = gap * gap + within
                    integrated = integrated + inner
                    store(out_means_, start + d * columns, (mean - centre) * scale + centre)
                    store(out_variances_, start + d * columns, inner + noise)
        u = apart * square * splat(F(1 / (members * max(1, count - 1)) if count > 1 else 0))
        within, integrated = (
            within * square * splat(F(1 / (members * draws))),
            integrated * splat(F(1 / (members * draws))),
        )
        grand, between = grand * splat(F(1 / members)), zero
        for m in range(members):
            gap = load(centres_, 16 * m) - grand
            between = gap * gap + between
        between = between * splat(F(1 / members)) - u * splat(F((1 - 1 / members) / count))
        posterior = maximum(zero, between)
        store(posterior_, j, posterior)
        store(mixing_, j, integrated + ((u + within + between) - posterior))
