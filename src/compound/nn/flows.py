"""Normalising flows as modules: parameters, initial values and random masks; `ops` has the maps."""

import math

import torch
from torch import Generator, Tensor, nn

from compound.ops import flow
from compound.ops.gaussian_noise import standard_normal
from compound.ops.masked_flow import MASKED


def init_normal(generator: Generator, *shape: int) -> Tensor:
    """Gaussian initial values of a matrix (in, out), variance 4 / (in + out), or a vector (in,), 4 / in."""
    return math.sqrt(4 / sum(shape)) * standard_normal(generator, shape, torch.empty(0, dtype=torch.float32))


def make_flow(inputs: int, steps: int, hidden: int, generator: Generator) -> "Flow":
    """A masked flow; a planar flow if z has one entry, which cannot be masked; the identity for 0 steps."""
    if steps == 0:
        return Identity()
    return Planar(inputs, steps, generator) if inputs == 1 else MaskedNVP(inputs, steps, hidden, generator)


class Flow(nn.Module):
    """An invertible map of z (draws, d) and its log-determinant (draws,), in a number of steps."""

    op: flow.Flow

    def forward(self, z: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """The transformed z (draws, d), and the log-determinants of its Jacobians (draws,)."""
        return self.forward_given(z, self.masks(len(z), generator))

    def forward_given(self, z: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        """`forward` with masks that `masks` has drawn."""
        return self.op.apply(z, masks, *self.parameters())

    def masks(self, draws: int, generator: Generator) -> Tensor:  # (steps, draws, d)
        """Draw the random masks of every step; empty for a flow without masks."""
        return torch.empty(0, draws, 0, dtype=torch.float32)


class Identity(Flow):
    """z' = z with log-determinant 0."""

    op = flow.IDENTITY


class MaskedNVP(Flow):
    """`ops.masked_flow`, with masks drawn anew for every draw and step. Louizos and Welling (2017)."""

    op = MASKED

    def __init__(self, inputs: int, steps: int, hidden: int, generator: Generator):
        super().__init__()
        shapes = ((inputs, hidden), (hidden, inputs), (hidden, inputs))
        maps = [[init_normal(generator, *shape) for shape in shapes] for _ in range(steps)]
        heads = [torch.cat([b, c], 1) for _, b, c in maps]
        self.weight = nn.Parameter(torch.stack([a for a, _, _ in maps]))  # (steps, in, hidden): A
        self.heads = nn.Parameter(torch.stack(heads))  # (steps, hidden, 2 in): B and C
        self.bias = nn.Parameter(torch.zeros(steps, hidden + 2 * inputs, dtype=torch.float32))  # a, b and c
        self.bias.data[:, hidden + inputs :] = 2.0  # gates start nearly open

    def masks(self, draws: int, generator: Generator) -> Tensor:  # (steps, draws, d)
        """Standard normal numbers, whose signs are the masks: an entry stays where its number is positive."""
        steps, inputs, _ = self.weight.shape
        return standard_normal(generator, (steps, draws, inputs), self.weight)


class Planar(Flow):
    """`ops.flow.planar`. Rezende and Mohamed (2015)."""

    op = flow.PLANAR

    def __init__(self, inputs: int, steps: int, generator: Generator):
        super().__init__()
        pairs = [[init_normal(generator, inputs) for _ in range(2)] for _ in range(steps)]
        self.weight = nn.Parameter(torch.stack([w for w, _ in pairs]))  # (steps, in)
        self.direction = nn.Parameter(torch.stack([u for _, u in pairs]))
        self.bias = nn.Parameter(torch.zeros(steps, dtype=torch.float32))
