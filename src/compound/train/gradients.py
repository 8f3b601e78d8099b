"""What a step does besides the optimizer's update: gradient clipping, and flushing of denormal numbers."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from compound.compat import foreach_clamp_max_, foreach_clamp_min_, foreach_mul_

FLUSH_BELOW = 1e-30  # numbers of smaller absolute value become 0


def make_clipper(
    parameters: Sequence[Tensor], members: int, clip_value: float | None, clip_norm: float | None
) -> Callable[[], int]:
    """A function that clips the gradients of the parameters in place, as `clip_gradients` does.

    The gradients of parameters (members, ...) are clipped member by member; those of all other parameters,
    which members share, are clipped together. The function returns how many of these gradients were not
    finite.
    """
    stacked = [p for p in parameters if members > 1 and p.ndim > 0 and p.shape[0] == members]
    stacked_ids = {id(p) for p in stacked}
    groups = [(stacked, members), ([p for p in parameters if id(p) not in stacked_ids], 1)]

    def clip() -> int:
        gradients = [([p.grad for p in group if p.grad is not None], parts) for group, parts in groups]
        limits = clip_value, clip_norm
        return sum(clip_gradients(tensors, parts, *limits) for tensors, parts in gradients if tensors)

    return clip


def clip_gradients(
    gradients: list[Tensor], members: int, clip_value: float | None, clip_norm: float | None
) -> int:
    """Clip gradients (members, ...) in place, each member separately, first by norm, then by value.

    The gradient of a member with a non-finite entry becomes 0. Returns the number of such members.
    """
    # (members, numbers): one pass is cheaper
    flat = torch.cat([g.reshape(members, -1) for g in gradients], 1)
    norms = torch.linalg.vector_norm(flat, dim=1).tolist()
    if not all(map(math.isfinite, norms)):
        exact = torch.linalg.vector_norm(flat.double(), dim=1).tolist()  # squares may overflow float32
        norms = [a if math.isfinite(a) else b for a, b in zip(norms, exact, strict=True)]
    bad = [k for k, norm in enumerate(norms) if not math.isfinite(norm)]
    for g in gradients if bad else ():
        g[bad if members > 1 else ...] = 0  # not by a factor: 0 * inf is NaN
    if clip_norm is not None and any(clip_norm < norm < math.inf for norm in norms):
        factors = [clip_norm / norm if clip_norm < norm < math.inf else 1.0 for norm in norms]
        _scale_members(gradients, flat.new_tensor(factors))
    if clip_value is not None:
        foreach_clamp_min_(gradients, -clip_value)
        foreach_clamp_max_(gradients, clip_value)
    return len(bad)


def _scale_members(gradients: list[Tensor], factors: Tensor) -> None:
    """Multiply gradients (members, ...) by one factor per member, (members,), in place."""
    ndims = {g.ndim for g in gradients}
    shaped = {n: factors.reshape(-1, *[1] * (n - 1)) if n else factors.squeeze() for n in ndims}
    foreach_mul_(gradients, [shaped[g.ndim] for g in gradients])


@torch.no_grad()
def flush_denormals(
    parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer, averaged: Sequence[Tensor] = ()
) -> None:
    """Set tiny entries of parameters, optimizer moments and averaged parameters to 0, in place.

    Arithmetic on denormal numbers, below 1e-38, is slow. Weights that only a prior acts on decay to them,
    such as those of pixels that are always black: on MNIST steps were three times slower.
    """
    values = [value for parameter in parameters for value in optimizer.state.get(parameter, {}).values()]
    moments = [value for value in values if isinstance(value, Tensor) and value.ndim]
    for tensor in (*parameters, *averaged, *moments):
        tensor.copy_(functional.hardshrink(tensor, FLUSH_BELOW))
