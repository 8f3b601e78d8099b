"""What a step does besides the optimizer's arithmetic: gradients brought within bounds, and faded weights put to rest."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from compound.compat import foreach_clamp_max_, foreach_clamp_min_, foreach_mul_

FADED = 1e-30  # smaller numbers are taken for 0


def clipper(
    parameters: Sequence[Tensor], members: int, clip_value: float | None, clip_norm: float | None
) -> Callable[[], int]:
    """Brings the gradients within bounds and tells how many members' were not finite (they become 0).

    Parameters whose first axis counts the members are clipped member by member, others (shared by all) as one more.
    """
    stacked = [p for p in parameters if members > 1 and p.ndim > 0 and p.shape[0] == members]
    own = {id(p) for p in stacked}
    groups = [(stacked, members), ([p for p in parameters if id(p) not in own], 1)]

    def clip() -> int:
        gradients = [([p.grad for p in group if p.grad is not None], parts) for group, parts in groups]
        return sum(
            clip_gradients(tensors, parts, clip_value, clip_norm) for tensors, parts in gradients if tensors
        )

    return clip


def clip_gradients(
    gradients: list[Tensor], members: int, clip_value: float | None, clip_norm: float | None
) -> int:
    """Clip in place, each member by itself; a member with a non-finite entry gets zeros. Returns how many such members."""
    flat = torch.cat(
        [g.reshape(members, -1) for g in gradients], 1
    )  # (members, numbers); one pass is cheaper than many small ones
    norms = torch.linalg.vector_norm(flat, dim=1).tolist()
    if not all(map(math.isfinite, norms)):
        exact = torch.linalg.vector_norm(
            flat.double(), dim=1
        ).tolist()  # squares of large finite entries overflow float32
        norms = [
            norm if math.isfinite(norm) else other for norm, other in zip(norms, exact, strict=True)
        ]  # others keep their bits
    bad = [k for k, norm in enumerate(norms) if not math.isfinite(norm)]
    for g in gradients if bad else ():
        g[bad if members > 1 else ...] = 0  # not by a factor: 0 * inf is NaN
    if clip_norm is not None and any(clip_norm < norm < math.inf for norm in norms):
        factors = flat.new_tensor(
            [clip_norm / norm if clip_norm < norm < math.inf else 1.0 for norm in norms]
        )
        shaped = {
            n: factors.reshape(-1, *[1] * (n - 1)) if n else factors.squeeze()
            for n in {g.ndim for g in gradients}
        }
        foreach_mul_(gradients, [shaped[g.ndim] for g in gradients])
    if clip_value is not None:
        foreach_clamp_min_(gradients, -clip_value)
        foreach_clamp_max_(gradients, clip_value)
    return len(bad)


@torch.no_grad()
def flush_denormals(
    parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer, averaged: Sequence[Tensor] = ()
) -> None:
    """Weights and moments that have faded to next to nothing become 0.

    Arithmetic on denormal numbers, below 1e-38, is slow. Weights that only a prior pulls end there, such as those of pixels that are
    always dark: on MNIST steps were three times slower.
    """
    states = [value for parameter in parameters for value in optimizer.state.get(parameter, {}).values()]
    for tensor in (
        *parameters,
        *averaged,
        *(value for value in states if isinstance(value, Tensor) and value.ndim),
    ):
        tensor.copy_(functional.hardshrink(tensor, FADED))
