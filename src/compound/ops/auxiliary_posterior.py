"""r(z | W): a Gaussian behind a flow guesses z from c^T W, itself Gaussian given z.

    flow_r(z) ~ N(s b_1, exp(-s b_2)),  s = mean_j tanh(c^T W)_j,  c^T W | z ~ N(c^T (z M), c²^T S²)

Compiled where that can be, forwards and backwards; in plain torch otherwise, which is what the loops are held against.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from compound.compat import hardtanh_backward, tanh_backward
from compound.ops import multiplicative_loops as loops
from compound.ops.jit import can_use_kernel, launch

BOUND = 15.0  # of r's log-precisions: beyond, their exponentials could overflow


class AuxiliaryPosterior(NamedTuple):
    """What the backward pass needs."""

    std: Tensor  # (out,) of c^T W
    noise: Tensor  # (groups, out) of c^T W
    bent: Tensor  # (groups, out) tanh(c^T W)
    level: Tensor  # (groups,) s
    distance: Tensor  # (groups, in)
    pull: Tensor  # (groups, in) distance times precision


class Back(NamedTuple):
    """Gradients of minus half the doubled log-density."""

    behind: Tensor  # (groups, in) w.r.t. flow_r(z)
    read: Tensor  # (groups, out) w.r.t. c^T W
    read_var: Tensor  # (out,) w.r.t. its variance, twice
    vectors: Tensor  # (2, in) w.r.t. b_1 and b_2


def auxiliary_posterior(
    z: Tensor, behind: Tensor, mean: Tensor, variance: Tensor, vectors: Tensor, noise: Tensor
) -> tuple[Tensor, AuxiliaryPosterior]:
    """2 log N(flow_r(z); ...) without its constant, (groups,); vectors are the layer's m_0, log v_0, c, b_1 and b_2."""
    if not can_use_kernel(z, mean):
        return reference(z, behind, mean, variance, vectors, noise)
    log, level, std, bent = (
        z.new_empty(len(z)),
        z.new_empty(len(z)),
        z.new_empty(mean.shape[1]),
        torch.empty_like(noise),
    )
    kept = AuxiliaryPosterior(std, noise, bent, level, torch.empty_like(z), torch.empty_like(z))
    after = (log, std, bent, level, kept.distance, kept.pull)
    launch(
        loops.guess,
        (z.contiguous(), behind, mean, variance, vectors, noise, *after),
        len(z),
        *mean.shape,
        BOUND,
    )
    return log, kept


def reference(
    z: Tensor, behind: Tensor, mean: Tensor, variance: Tensor, vectors: Tensor, noise: Tensor
) -> tuple[Tensor, AuxiliaryPosterior]:
    _, _, reader, centre, log_precision = vectors
    std = torch.mv(variance.t(), reader.square()).sqrt_()
    bent = torch.addcmul(torch.mm(reader * z, mean), std, noise).tanh_()  # (groups, out)
    level = bent.mean(-1, keepdim=True)
    log = functional.hardtanh(level * log_precision, -BOUND, BOUND)
    distance = torch.addcmul(behind, level, centre, value=-1)
    pull = log.exp() * distance
    return torch.addcmul(log, pull, distance, value=-1).sum(-1), AuxiliaryPosterior(
        std, noise, bent, level.squeeze(-1), distance, pull
    )


def auxiliary_posterior_backward(kept: AuxiliaryPosterior, vectors: Tensor, d_bound: Tensor) -> Back:
    if not can_use_kernel(vectors, d_bound):
        return reference_backward(kept, vectors, d_bound)
    back = Back(
        torch.empty_like(kept.pull),
        torch.empty_like(kept.bent),
        torch.empty_like(kept.std),
        torch.empty_like(vectors[:2]),
    )
    shape = (*kept.pull.shape, len(kept.std))
    launch(
        loops.guess_back,
        (d_bound.contiguous(), vectors, kept.noise, kept.std, *kept[2:], *back),
        *shape,
        BOUND,
    )
    return back


def reference_backward(kept: AuxiliaryPosterior, vectors: Tensor, d_bound: Tensor) -> Back:
    _, _, _, centre, log_precision = vectors
    each, level = d_bound.unsqueeze(-1), kept.level.unsqueeze(-1)  # (groups, 1)
    d_behind = each * kept.pull
    d_log = torch.addcmul(-0.5 * each, d_behind, kept.distance, value=0.5)
    d_log = hardtanh_backward(d_log, level * log_precision, -BOUND, BOUND)
    d_level = torch.addmv(torch.mv(d_log, log_precision), d_behind, centre, alpha=-1).unsqueeze(-1) / len(
        kept.std
    )
    d_read = tanh_backward(d_level.expand_as(kept.bent), kept.bent)
    d_vectors = torch.stack([-torch.mv(d_behind.t(), kept.level), torch.mv(d_log.t(), kept.level)])
    return Back(d_behind, d_read, (d_read * kept.noise).sum(0) / kept.std, d_vectors)
