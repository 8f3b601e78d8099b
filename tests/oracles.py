"""Slow, obvious versions of what the library does fast: every weight matrix is built."""

from typing import TypeVar

import torch
from torch import Generator, Tensor, nn
from torch.distributions import MultivariateNormal

from compound.distributions import MatrixNormal
from compound.models.observation import HeteroscedasticGaussian
from compound.models.observation.noise_floor import NoiseFloor
from compound.nn import Affine, BatchedCompoundLinear, MatrixGaussianLinear

M = TypeVar("M", bound=nn.Module)


def floored(module: M) -> M:
    """With a noise floor as if fitted on no rows: 0, or next to 0 where every row has its own variance."""
    for part in module.modules():
        if isinstance(part, NoiseFloor):
            part.set_floor(
                torch.full_like(part.floor, 1e-6 if isinstance(part, HeteroscedasticGaussian) else 0.0)
            )
    return module


def dense(q: MatrixNormal) -> MultivariateNormal:
    """The matrix normal over vec(W), columns stacked, with its Kronecker covariance written out."""
    covariance = torch.kron(torch.diag(q.col.square()), torch.diag(q.row.square()))
    return MultivariateNormal(q.mean.mT.reshape(-1), covariance)


def vec(w: Tensor) -> Tensor:
    """Columns stacked."""
    return w.mT.flatten(-2)


def wide(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)


def law(layer: BatchedCompoundLinear, x: Tensor, heads: Tensor) -> list[MatrixNormal]:
    """The matrix normal of every row, from its heads."""
    r, c = layer.inputs + 1, layer.outputs
    bound = layer.config.bound
    laws = []
    for row in heads:
        s, lr, lc = row.split([r, r, c])
        lr, lc = lr.clamp(-bound, bound), lc.clamp(-bound, bound)
        laws.append(
            MatrixNormal(
                s.unsqueeze(-1) * layer.basis,
                ((0.5 * lr).exp() / (r**0.5 if layer.config.scaled else 1)),
                (0.5 * lc).exp(),
            )
        )
    return laws


def prior(layer: BatchedCompoundLinear) -> MatrixNormal:
    r, c = layer.inputs + 1, layer.outputs
    one = layer.basis.new_ones
    return MatrixNormal(layer.basis.new_zeros(r, c), one(r) / (r**0.5 if layer.config.scaled else 1), one(c))


def matrix_normals(layer: MatrixGaussianLinear) -> list[MatrixNormal]:
    """The posterior of each block."""
    columns = zip(
        layer.log_row, layer.log_col.split(layer.blocks), layer.mean.split(layer.blocks, -1), strict=True
    )
    return [MatrixNormal(m, (0.5 * row).exp(), (0.5 * col).exp()) for row, col, m in columns]


def draw_map(layer: Affine | MatrixGaussianLinear, x: Tensor, generator: Generator) -> Tensor:
    """x (rows, in) through a map with a whole weight matrix drawn for every row."""
    if isinstance(layer, Affine):
        return wide(x) @ layer.weight
    blocks = matrix_normals(layer)
    return torch.stack([torch.cat([row @ q.rsample(generator=generator) for q in blocks]) for row in wide(x)])


def pre_activations(layer: BatchedCompoundLinear, x: Tensor, generator: Generator) -> Tensor:
    """x (rows, in) through a compound layer: ψ and then W drawn as whole matrices, anew for every row."""
    *hidden, last = layer.hyper.maps
    z = x
    for step in hidden:
        z = getattr(torch, layer.hyper.activation)(draw_map(step, z, generator))
    heads = draw_map(last, z, generator)
    return torch.stack(
        [h @ q.rsample(generator=generator) for h, q in zip(wide(x), law(layer, x, heads), strict=True)]
    )


class LinearGaussian:
    """Bayesian linear regression y = [x; 1] w + noise in closed form; w ~ N(0, prior I), known noise."""

    def __init__(self, x: Tensor, y: Tensor, noise: float = 0.25, prior: float = 1.0):
        h, rows = wide(x), len(x)
        eye = torch.eye(h.shape[1], dtype=x.dtype)
        self.precision = h.T @ h / noise + eye / prior
        self.covariance = torch.linalg.inv(self.precision)  # of one output's weights; bias last
        self.mean = self.covariance @ h.T @ y / noise  # (in + 1, targets)
        marginal = MultivariateNormal(
            torch.zeros(rows, dtype=x.dtype), noise * torch.eye(rows, dtype=x.dtype) + prior * h @ h.T
        )
        self.log_evidence = marginal.log_prob(y.T).sum()  # of all targets together
