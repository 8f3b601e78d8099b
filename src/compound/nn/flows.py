"""Normalising flows: invertible maps of a vector z, with the log of how much they stretch volume.

A flow maps z (draws, d) to z' and log |det dz'/dz| (draws,) in a number of steps. `at` also returns what `backward`, the gradient
written out by hand, needs: few draws make small arrays, which would cost autograd more than the arithmetic.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from compound.compat import tanh_backward
from compound.ops import flow_loops as loops
from compound.ops.gaussian_noise import standard_normal
from compound.ops.jit import can_use_kernel, launch

Kept = tuple[Tensor, ...]


def init_normal(generator: Generator, *shape: int) -> Tensor:
    """Gaussian start values of variance 4 / (in + out); a vector has no out."""
    return math.sqrt(4 / sum(shape)) * standard_normal(generator, shape, torch.empty(0, dtype=torch.float32))


def flow(inputs: int, steps: int, hidden: int, generator: Generator) -> "Flow":
    """Masked steps; planar ones where z has a single entry and nothing could be masked."""
    if steps == 0:
        return Identity()
    return Planar(inputs, steps, generator) if inputs == 1 else MaskedNVP(inputs, steps, hidden, generator)


class Flow(nn.Module, ABC):
    """Steps one after the other."""

    def forward(self, z: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """z' and the log-determinant of its Jacobian."""
        out, log_det, _ = self.at(z, self.masks(len(z), generator))
        return out, log_det

    def masks(self, draws: int, generator: Generator) -> Tensor:  # (steps, draws, d)
        """What is random in the flow itself, for a number of draws; most have nothing."""
        return torch.empty(0, draws, 0, dtype=torch.float32)

    @abstractmethod
    def at(self, z: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Kept]: ...

    @abstractmethod
    def backward(self, kept: Kept, d_z: Tensor, d_log_det: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Gradients w.r.t. z and w.r.t. the parameters, in their order."""


class Identity(Flow):
    def at(self, z: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Kept]:
        return z, z.new_zeros(len(z)), ()

    def backward(self, kept: Kept, d_z: Tensor, d_log_det: Tensor) -> tuple[Tensor, list[Tensor]]:
        return d_z, []


class MaskedNVP(Flow):
    """In every step a random half m of z, drawn anew, stays and moves the other half, each entry by a gate g:

        h = tanh(A (m z) + a),  μ = B h + b,  g = sigmoid(C h + c),  z' = m z + (1 - m) (g z + (1 - g) μ)

    The Jacobian is triangular, kept entries first, with 1 and g on its diagonal: log det = sum (1 - m) log g. Louizos and Welling (2017),
    after Dinh et al. (2017).
    """

    def __init__(self, inputs: int, steps: int, hidden: int, generator: Generator):
        super().__init__()
        maps = [
            [
                init_normal(generator, *shape)
                for shape in ((inputs, hidden), (hidden, inputs), (hidden, inputs))
            ]
            for _ in range(steps)
        ]
        self.weight = nn.Parameter(torch.stack([a for a, _, _ in maps]))  # (steps, in, hidden): A
        self.heads = nn.Parameter(
            torch.stack([torch.cat([b, c], 1) for _, b, c in maps])
        )  # (steps, hidden, 2 in): B and C
        self.bias = nn.Parameter(torch.zeros(steps, hidden + 2 * inputs, dtype=torch.float32))  # a, b and c
        self.bias.data[:, hidden + inputs :] = 2.0  # gates start nearly open

    def masks(self, draws: int, generator: Generator) -> Tensor:  # (steps, draws, d)
        steps, inputs, _ = self.weight.shape
        return standard_normal(
            generator, (steps, draws, inputs), self.weight
        )  # positive: stays; signs are the fastest coins

    def at(self, z: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Kept]:
        if not can_use_kernel(z, self.weight):
            return self._plain(z, masks)
        steps, draws, d = masks.shape
        hidden = self.weight.shape[2]
        out, work = (
            z.clone(memory_format=torch.contiguous_format),
            z.new_empty((steps, draws, 3 * d + hidden)),
        )
        log_det = z.new_empty(draws)
        launch(
            loops.masked,
            (masks, self.weight, self.heads, self.bias, out, log_det, work),
            steps,
            draws,
            d,
            hidden,
        )
        return out, log_det, (masks, work, self.weight, self.heads)

    def _plain(self, z: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Kept]:
        log_det, work = z.new_zeros(len(z)), []
        biases = self.bias.split([self.weight.shape[2], self.heads.shape[2]], 1)
        for coins, weight, heads, bias, heads_bias in zip(
            masks, self.weight, self.heads, *biases, strict=True
        ):
            mask = (coins > 0).to(z.dtype)
            stays = mask * z
            h = torch.addmm(bias, stays, weight).tanh_()
            centre, gate = torch.addmm(heads_bias, h, heads).chunk(2, -1)
            closed, shift = (1 - mask) * torch.sigmoid(-gate), z - centre  # (1 - m) (1 - g) and z - μ
            z = torch.addcmul(z, closed, shift, value=-1)
            log_det = log_det + ((1 - mask) * functional.logsigmoid(gate)).sum(-1)
            work.append(torch.cat([stays, closed, shift, h], -1))
        return z, log_det, (masks, torch.stack(work), self.weight, self.heads)

    def backward(self, kept: Kept, d_z: Tensor, d_log_det: Tensor) -> tuple[Tensor, list[Tensor]]:
        masks, work, weight, heads = kept
        if can_use_kernel(weight, d_z):
            gradients = [torch.empty_like(weight), torch.empty_like(heads), torch.empty_like(self.bias)]
            d_z = d_z.clone(memory_format=torch.contiguous_format)
            launch(
                loops.masked_back,
                (*kept, d_z, d_log_det.contiguous(), *gradients),
                *masks.shape,
                weight.shape[2],
            )
            return d_z, gradients
        stays, closed, shift, h = work.split([*[masks.shape[2]] * 3, weight.shape[2]], -1)
        d_hs, d_outs = torch.empty_like(h), heads.new_empty((*masks.shape[:2], heads.shape[2]))
        for k in reversed(range(len(masks))):
            d_centre = d_z * closed[k]
            d_gate = torch.lerp(d_centre * shift[k], d_log_det.unsqueeze(-1), closed[k])
            d_outs[k] = torch.cat([d_centre, d_gate], -1)  # (draws, 2 in)
            d_hs[k] = tanh_backward(torch.mm(d_outs[k], heads[k].t()), h[k])
            d_z = (d_z - d_centre).addcmul_(torch.mm(d_hs[k], weight[k].t()), (masks[k] > 0).to(d_z.dtype))
        return d_z, [
            torch.bmm(stays.mT, d_hs),
            torch.bmm(h.mT, d_outs),
            torch.cat([d_hs.sum(1), d_outs.sum(1)], 1),
        ]


class Planar(Flow):
    """z' = z + u^ tanh(w z + b) in every step; u^ = u + (softplus(w u) - 1 - w u) w / |w|² has w u^ > -1: invertible.

    Rezende and Mohamed (2015).
    """

    def __init__(self, inputs: int, steps: int, generator: Generator):
        super().__init__()
        pairs = [[init_normal(generator, inputs) for _ in range(2)] for _ in range(steps)]
        self.weight = nn.Parameter(torch.stack([w for w, _ in pairs]))  # (steps, in)
        self.direction = nn.Parameter(torch.stack([u for _, u in pairs]))
        self.bias = nn.Parameter(torch.zeros(steps, dtype=torch.float32))

    def at(self, z: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Kept]:
        parameters = (self.weight, self.direction, self.bias)
        return *_planar(z, *parameters), (z, *parameters)

    @torch.enable_grad()
    def backward(self, kept: Kept, d_z: Tensor, d_log_det: Tensor) -> tuple[Tensor, list[Tensor]]:
        """By autograd: where z has one entry, little is to be gained."""
        inputs = [tensor.detach().requires_grad_() for tensor in kept]
        d_z, *gradients = torch.autograd.grad(_planar(*inputs), inputs, (d_z, d_log_det))
        return d_z, gradients


def _planar(z: Tensor, weight: Tensor, direction: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    log_det = z.new_zeros(len(z))
    for w, u, b in zip(weight, direction, bias, strict=True):
        inner = w @ u
        u = u + (functional.softplus(inner) - 1 - inner) / (w @ w).clamp_min(1e-12) * w
        h = (z @ w + b).tanh()  # (draws,)
        flat = h.square()
        log_det = log_det + (flat + (1 - flat) * (1 + w @ u)).log()  # 1 + (1 - h²) w u^, without cancellation
        z = z + h.unsqueeze(-1) * u
    return z, log_det
