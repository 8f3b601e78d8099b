"""Compound layers written out: every weight of every example is drawn as a whole matrix."""

from typing import Any

import torch
from oracles import draw_map, matrix_normals
from torch import Generator, Tensor, nn
from torch.distributions import kl_divergence
from torch.nn import functional

from compound.distributions import MatrixNormal
from compound.nn import CompoundConv2d, CompoundLinear
from compound.nn.compound_cell import CompoundCell
from compound.nn.compound_layer import CompoundLayer
from compound.random import named_generator


def far_from_start(layer: nn.Module, seed: str) -> Any:
    """The layer in float64 with weights changed, so that heads depend on the context and noise is large."""
    layer.double()
    with torch.no_grad():
        for k, parameter in enumerate(layer.parameters()):
            noise = torch.randn(parameter.shape, generator=named_generator(1, seed, k), dtype=torch.float64)
            parameter += 0.3 * noise
    return layer


def rows_of(*shape: int) -> Tensor:
    return torch.randn(shape, generator=named_generator(2, "x"), dtype=torch.float64)


def draw_heads(layer: CompoundLayer, context: Tensor, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Scales, row and column standard deviations for contexts (rows, context): ψ as matrices, one per row."""
    *hidden, last = layer.hyper.maps
    z = context
    for step in hidden:
        z = getattr(torch, layer.hyper.activation)(draw_map(step, z, generator))
    scale, log_row, log_col = draw_map(last, z, generator).split(list(layer.hyper.heads), -1)
    return scale, (0.5 * log_row.clamp(-10, 10)).exp(), (0.5 * log_col.clamp(-10, 10)).exp()


def kernel_normals(layer: CompoundConv2d, heads: tuple[Tensor, ...]) -> list[MatrixNormal]:
    """The matrix normal of each group's kernel and bias, (in / groups * positions + 1) x (out / groups)."""
    scale, row, col = heads
    positions = layer.weight[0, 0].numel()
    weights = layer.weight.flatten(1).mT  # (in / groups * positions, out)
    bias = torch.zeros_like(weights[:1]) if layer.bias is None else layer.bias.unsqueeze(0)
    basis = torch.cat([weights, bias])
    normals = []
    for g, block in enumerate(basis.chunk(layer.groups, 1)):
        size = layer.weight.shape[1]

        def expand(v: Tensor, part: slice = slice(g * size, (g + 1) * size)) -> Tensor:
            return torch.cat([v[:, part].repeat_interleave(positions, 1), v[:, -1:]], 1)

        std = expand(row) / layer.fan_in**0.5
        mean = expand(scale).unsqueeze(-1) * block
        normals.append(MatrixNormal(mean, std, col.chunk(layer.groups, 1)[g]))
    return normals


def convolution(layer: CompoundConv2d, x: Tensor, generator: Generator) -> Tensor:
    """x (rows, in, ...) with a kernel drawn for every row."""
    context = x.flatten(2).mean(2)
    drawn = [
        q.rsample(generator=generator) for q in kernel_normals(layer, draw_heads(layer, context, generator))
    ]
    w = torch.cat(drawn, -1).mT  # (rows, out, r)
    convolve = functional.conv2d if x.ndim == 4 else functional.conv1d
    return torch.cat(
        [
            convolve(image[None], kernel[:, :-1].reshape(layer.weight.shape), kernel[:, -1], *layer.options)
            for image, kernel in zip(x, w, strict=True)
        ]
    )


def linear(layer: CompoundLinear, x: Tensor, generator: Generator) -> Tensor:
    """x (rows, in) with a matrix drawn for every row."""
    (q,) = linear_normals(layer, draw_heads(layer, x, generator))
    return torch.einsum("bi,bij->bj", with_one(x), q.rsample(generator=generator))


def linear_normals(layer: CompoundLinear, heads: tuple[Tensor, ...]) -> list[MatrixNormal]:
    scale, row, col = heads
    basis = torch.cat([layer.weight.mT, layer.bias[None]])
    return [MatrixNormal(scale.unsqueeze(-1) * basis, row / scale.shape[-1] ** 0.5, col)]


def cell_normals(cell: CompoundCell, heads: tuple[Tensor, ...]) -> list[MatrixNormal]:
    scale, row, col = heads
    basis = torch.cat([cell.weight_ih.mT, cell.bias_ih[None], cell.weight_hh.mT, cell.bias_hh[None]])
    return [MatrixNormal(scale.unsqueeze(-1) * basis, row / len(basis) ** 0.5, col)]


def recurrence(cell: CompoundCell, x: Tensor, generator: Generator) -> Tensor:
    """States (rows, steps, state) of x (rows, steps, in), weights and ψ as whole matrices for every row."""
    rows, steps, inputs = x.shape
    drawn = copy_with_drawn_psi(cell, rows, generator)
    h, c = x.new_zeros(2, rows, cell.hidden_size)
    states, w = [], None
    for t in range(steps):
        v = torch.cat([with_one(x[:, t]), with_one(h)], 1)
        if cell.draw == "step" or w is None:
            context = v[:, :-1] if cell.draw == "step" else x.mean(1)
            (q,) = cell_normals(cell, drawn(context))
            w = q.rsample(generator=generator)  # (rows, r, gates * state)
        a = torch.einsum("bi,bij->bj", v[:, : inputs + 1], w[:, : inputs + 1])
        b = torch.einsum("bi,bij->bj", v[:, inputs + 1 :], w[:, inputs + 1 :])
        h, c = equations(cell, a, b, h, c)
        states.append(h)
    return torch.stack(states, 1)


def copy_with_drawn_psi(cell: CompoundCell, rows: int, generator: Generator) -> Any:
    """The heads as a function of the context, with ψ drawn once for every row."""
    matrices = []
    for layer in cell.hyper.maps:
        if hasattr(layer, "weight"):
            matrices.append(layer.weight.expand(rows, -1, -1))
        else:
            parts = [q.rsample((rows,), generator=generator) for q in matrix_normals(layer)]
            matrices.append(torch.cat(parts, -1))

    def heads(context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = context
        for k, matrix in enumerate(matrices):
            z = z if k == 0 else getattr(torch, cell.hyper.activation)(z)
            z = torch.einsum("bi,bij->bj", with_one(z), matrix)
        scale, log_row, log_col = z.split(list(cell.hyper.heads), -1)
        return scale, (0.5 * log_row.clamp(-10, 10)).exp(), (0.5 * log_col.clamp(-10, 10)).exp()

    return heads


def equations(cell: CompoundCell, a: Tensor, b: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The equations of nn.GRUCell and nn.LSTMCell as torch's documentation has them."""
    if cell.gates == 3:
        (a_r, a_z, a_n), (b_r, b_z, b_n) = a.chunk(3, 1), b.chunk(3, 1)
        r, z = torch.sigmoid(a_r + b_r), torch.sigmoid(a_z + b_z)
        return (1 - z) * torch.tanh(a_n + r * b_n) + z * h, c
    i, f, g, o = (a + b).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def with_one(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)


def kl_to_prior(q: MatrixNormal) -> Tensor:
    """KL to MN(0, I / r, I), with r rows."""
    r, c = q.event_shape
    one = q.mean.new_ones
    return kl_divergence(q, MatrixNormal(q.mean.new_zeros(r, c), one(r) / r**0.5, one(c)))
