"""Normalising flows as operations: z (draws, d) -> z' and log |det dz'/dz| (draws,), in a number of steps.

A flow is used in two ways: by itself, differentiable (`apply`), and inside the autograd function of a layer,
which calls `forward` and `backward`. The identity and the planar flow are here; `masked_flow` has a file of
its own.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

Saved = tuple[Tensor, ...]


class Flow(NamedTuple):
    """The functions of one kind of flow; parameters are in the order of its module."""

    apply: Callable[..., tuple[Tensor, Tensor]]
    """(z, masks, *parameters) -> z', log_det; compiled where possible, differentiable."""
    reference: Callable[..., tuple[Tensor, Tensor]]
    """The definition of `apply`, for any dtype and device."""
    forward: Callable[..., tuple[Tensor, Tensor, Saved]]
    """`apply` without autograd, and what `backward` needs."""
    backward: Callable[[Saved, Tensor, Tensor], tuple[Tensor, list[Tensor]]]
    """(saved, d_z', d_log_det) -> gradients with respect to z and to the parameters."""


def identity(z: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """z (draws, d) itself and log-determinants 0 (draws,); masks are not used."""
    return z, z.new_zeros(len(z))


def _identity_forward(z: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Saved]:
    return *identity(z, masks), ()


def _identity_backward(saved: Saved, d_z: Tensor, d_log_det: Tensor) -> tuple[Tensor, list[Tensor]]:
    return d_z, []


def planar(
    z: Tensor, masks: Tensor, weight: Tensor, direction: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """z' = z + û tanh(w z + b) in every step, û = u + (softplus(w u) - 1 - w u) w / |w|².

    Returns z' and the log-determinants (draws,). Shapes: z (draws, d), weight w and direction u (steps, d),
    bias b (steps,); masks are not used. w û > -1 makes the flow invertible. Rezende and Mohamed (2015).
    """
    log_det = z.new_zeros(len(z))
    for w, u, b in zip(weight, direction, bias, strict=True):
        inner = w @ u
        u = u + (functional.softplus(inner) - 1 - inner) / (w @ w).clamp_min(1e-12) * w
        h = (z @ w + b).tanh()  # (draws,)
        squared = h.square()
        log_det = log_det + (squared + (1 - squared) * (1 + w @ u)).log()  # 1 + (1 - h²) w û, no cancellation
        z = z + h.unsqueeze(-1) * u
    return z, log_det


def _planar_forward(z: Tensor, masks: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor, Saved]:
    return *planar(z, masks, *parameters), (z, *parameters)


@torch.enable_grad()
def _planar_backward(saved: Saved, d_z: Tensor, d_log_det: Tensor) -> tuple[Tensor, list[Tensor]]:
    """By autograd: planar flows are for layers with one input, where a compiled loop would gain little."""
    z, *parameters = (tensor.detach().requires_grad_() for tensor in saved)
    out = planar(z, z, *parameters)
    d_z, *gradients = torch.autograd.grad(out, [z, *parameters], (d_z, d_log_det))
    return d_z, gradients


IDENTITY = Flow(identity, identity, _identity_forward, _identity_backward)
PLANAR = Flow(planar, planar, _planar_forward, _planar_backward)
