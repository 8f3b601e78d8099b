"""Affine maps, and affine maps whose weights have a matrix-Gaussian posterior.

W ~ MN(mean, diag(row)², diag(col)²) and h~ = [h; 1] give W^T h~ ~ N(mean^T h~, (sum_i h~_i² row_i²) col²) exactly, so a draw
costs one noise number per output, not one per weight. Louizos and Welling (2016).

Backward passes are written by hand: they walk over arrays of the size of the input as seldom as possible.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.autograd.function import once_differentiable

from compound.types import normal

Streams = Generator | Sequence[Generator]


class Weights(NamedTuple):
    """One affine map, with members' maps stacked along the first axis."""

    weight: Tensor  # (*members, in, out)
    bias: Tensor  # (*members, 1, out)

    def __call__(self, x: Tensor) -> Tensor:  # (*members, rows, out)
        return torch.addmm(self.bias, x, self.weight) if x.ndim == 2 else torch.baddbmm(self.bias, x, self.weight)


class Affine(nn.Module):
    """A plain affine map with the interface of `MatrixGaussianLinear`: its posterior is a point."""

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight)  # (*members, in, out)
        self.bias = nn.Parameter(bias)  # (*members, 1, out)

    def forward(self, x: Tensor, generator: Streams, shared: int = 1) -> Tensor:
        return Weights(self.weight, self.bias)(x)

    def draw(self, generator: Generator) -> Weights:
        return Weights(self.weight, self.bias)

    def kl(self) -> Tensor:  # (*members,)
        return self.weight.new_zeros(self.weight.shape[:-2])


class MatrixGaussianLinear(nn.Module):
    """An affine map with weights W ~ MN(mean, diag(row)², diag(col)²), or several side by side (`blocks`).

    Each block of outputs is a matrix Gaussian of its own, with its own row factors; their products run as one.
    The prior is MN(prior_mean, prior_variance I, I), with one prior variance per block, and a mean only for biases.
    """

    prior_bias: Tensor  # (out,)
    prior_inverse: Tensor  # (out, blocks) one over the prior variance where an output belongs to a block

    def __init__(
        self,
        weight: Tensor,  # (*members, in, out): where the posterior mean starts
        bias: Tensor,  # (*members, 1, out)
        blocks: Sequence[int] = (),  # outputs of each block; one block if empty
        log_variance: float = -3.0,  # where both factors' log-variances start
        prior_variance: Sequence[float] = (1.0,),  # of each block
        prior_bias: Tensor | None = None,  # (out,) prior mean of the bias
    ):
        super().__init__()
        *members, inputs, outputs = weight.shape
        self.blocks = tuple(blocks) or (outputs,)
        if sum(self.blocks) != outputs or len(prior_variance) != len(self.blocks):
            raise ValueError(f"blocks {self.blocks} with {len(prior_variance)} prior variances do not fit {outputs} outputs")
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)
        self.log_row = nn.Parameter(weight.new_full((*members, len(self.blocks), inputs + 1), log_variance))  # log-variances
        self.log_col = nn.Parameter(weight.new_full((*members, outputs), log_variance))
        self.register_buffer("prior_bias", weight.new_zeros(outputs) if prior_bias is None else prior_bias, persistent=False)
        inverse = torch.block_diag(*(torch.full((n, 1), 1 / v) for n, v in zip(self.blocks, prior_variance, strict=True)))
        self.register_buffer("prior_inverse", inverse, persistent=False)

    def forward(self, x: Tensor, generator: Streams, shared: int = 1) -> Tensor:
        """Draws of [x; 1] W. Rows come in `shared` equal parts: row b of every part uses the same W."""
        noise = normal(generator, (*self.weight.shape[:-2], x.shape[-2], self.weight.shape[-1]), self.weight)
        if shared == 1:
            return _NoisyAffine.apply(x, self.weight, self.bias, self.log_row, self.log_col, noise, self.blocks)
        wide = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        rows = self.log_row.exp().unbind(-2)
        parts = [mix(wide, row, block, shared) for row, block in zip(rows, noise.split(self.blocks, -1), strict=True)]
        return torch.addcmul(Weights(self.weight, self.bias)(x), torch.cat(parts, -1), (0.5 * self.log_col).exp().unsqueeze(-2))

    def draw(self, generator: Generator) -> Weights:
        """One weight matrix, for all rows."""
        row, col = (0.5 * self.log_row).exp(), (0.5 * self.log_col).exp().unsqueeze(-2)
        *members, inputs, outputs = self.weight.shape
        noise = normal(generator, (*members, inputs + 1, outputs), self.weight)
        parts = zip(row.unbind(-2), noise.split(self.blocks, -1), strict=True)
        noise = torch.cat([block * factor.unsqueeze(-1) for factor, block in parts], -1) * col
        return Weights(self.weight + noise[..., :-1, :], self.bias + noise[..., -1:, :])

    def kl(self) -> Tensor:  # (*members,)
        """Of the posterior to the prior, summed over blocks."""
        return _Divergence.apply(self.weight, self.bias, self.log_row, self.log_col, self.prior_bias, self.prior_inverse, self.blocks)


def mix(h: Tensor, row: Tensor, noise: Tensor, shared: int) -> Tensor:
    """Noise (*members, rows, out) with unit column scale whose `shared` parts have the covariance of one common W.

    Between parts s and t of a row it is K_st = sum_i h_si row_i h_ti: a Cholesky factor of each row's K mixes the parts.
    """
    rows = h.shape[-2] // shared
    h = h.double().unflatten(-2, (shared, rows)).transpose(-3, -2)  # (*members, rows, shared, in)
    k = (h * row.double()[..., None, None, :]) @ h.mT  # (*members, rows, shared, shared)
    # float64 and a touch of jitter: equal inputs make K singular
    jitter = 1e-10 * k.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    factor = torch.linalg.cholesky(k + jitter * torch.eye(shared, dtype=k.dtype, device=k.device)).to(noise.dtype)
    parts = noise.unflatten(-2, (shared, rows)).transpose(-3, -2)  # (*members, rows, shared, out)
    return (factor @ parts).transpose(-3, -2).flatten(-3, -2)


class _NoisyAffine(torch.autograd.Function):
    """[x; 1] W for W drawn per row."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, log_row: Tensor, log_col: Tensor, noise: Tensor, blocks: tuple[int, ...]
    ) -> Tensor:
        out = Weights(weight, bias)(x)
        square = x * x
        row = log_row.exp()  # (*members, blocks, in + 1)
        scale = (square @ row[..., :-1].mT + row[..., -1].unsqueeze(-2)).sqrt_()  # (*members, rows, blocks)
        noise *= (0.5 * log_col).exp_().unsqueeze(-2)
        for k, (block, part) in enumerate(zip(out.split(blocks, -1), noise.split(blocks, -1), strict=True)):
            block.addcmul_(part, scale[..., k : k + 1])
        ctx.save_for_backward(x, weight, square, row, scale, noise)
        ctx.blocks = blocks
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, square, row, scale, noise = ctx.saved_tensors
        product = d_out * noise  # towards scale and log col alike
        parts = product.split(ctx.blocks, -1)
        d_scale = torch.stack([part.sum(-1) for part in parts], -1)  # (*members, rows, blocks)
        d_col = torch.cat([scale[..., k].unsqueeze(-2) @ part for k, part in enumerate(parts)], -1).squeeze(-2)
        d_q = 0.5 * d_scale / scale
        d_row = torch.cat([d_q.mT @ square, d_q.sum(-2).unsqueeze(-1)], -1) * row
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = (d_out @ weight.mT).addcmul_(d_q @ row[..., :-1], x, value=2)
        return d_x, x.mT @ d_out, d_out.sum(-2, keepdim=True), d_row, 0.5 * d_col, None, None


class _Divergence(torch.autograd.Function):
    """KL of matrix Gaussians side by side to MN(prior, variance I, I), with its gradient in closed form.

    `inverse` (out, blocks) has one over its block's prior variance at each output, 0 elsewhere.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, weight: Tensor, bias: Tensor, log_row: Tensor, log_col: Tensor, prior_bias: Tensor, inverse: Tensor, blocks: tuple[int, ...]
    ) -> Tensor:
        row, col = log_row.exp(), log_col.exp()
        count = log_row.new_tensor(blocks)
        rows = row.shape[-1]
        shift = bias - prior_bias
        square = weight.square().sum(-2) + shift.square().squeeze(-2)  # (*members, out)
        row_sum, col_sum = row.sum(-1), col @ inverse  # (*members, blocks), the latter over the prior variances
        total = (row_sum * col_sum).sum(-1) + (square @ inverse).sum(-1) - log_row.sum(-1) @ count - rows * log_col.sum(-1)
        ctx.save_for_backward(weight, shift, row, col, row_sum, col_sum, inverse, count)
        return (0.5 * total).sub_(0.5 * rows * (count.sum() + count @ inverse.amax(0).log()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight, shift, row, col, row_sum, col_sum, inverse, count = ctx.saved_tensors
        d = d_total.unsqueeze(-1)  # (*members, 1)
        scale = (d * inverse.sum(-1)).unsqueeze(-2)  # (*members, 1, out)
        d_row = (row * col_sum.unsqueeze(-1) - count.unsqueeze(-1)).mul_(0.5 * d.unsqueeze(-1))
        d_col = (col * (row_sum @ inverse.mT) - row.shape[-1]).mul_(0.5 * d)
        return weight * scale, shift * scale, d_row, d_col, None, None, None
