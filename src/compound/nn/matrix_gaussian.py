"""Affine maps, and affine maps whose weights have a matrix-Gaussian posterior.

W ~ MN(mean, diag(row)², diag(col)²) and h~ = [h; 1] give W^T h~ ~ N(mean^T h~, (sum_i h~_i² row_i²) col²) exactly, so a draw
costs one noise number per output, not one per weight. Louizos and Welling (2016).

Backward passes are written by hand: they walk over arrays of the size of the input as seldom as possible.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor, nn

from compound.ops import layer_loops as layers
from compound.ops.gaussian_noise import standard_normal
from compound.ops.jit import can_use_kernel, launch
from compound.ops.moments import matmul
from compound.precision import by_hand, full_precision
from compound.random import Generators

FEW = 16  # columns


def append_ones(x: Tensor) -> Tensor:  # (..., in + 1)
    """h~ = [h; 1]: with the constant in place, biases are one more row of every weight matrix."""
    return torch.cat([x, x.new_ones((*x.shape[:-1], 1))], -1)


class Affine(nn.Module):
    """A plain affine map with the interface of `MatrixGaussianLinear`: its posterior is a point."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight)  # (*members, in + 1, out)

    @full_precision
    def forward(self, wide: Tensor, generator: Generators, shared: int = 1) -> Tensor:
        return wide @ self.weight

    def draw(self, generator: Generator) -> Tensor:
        return self.weight

    def kl(self) -> Tensor:  # (*members,)
        return self.weight.new_zeros(self.weight.shape[:-2])


class MatrixGaussianLinear(nn.Module):
    """An affine map with weights W ~ MN(mean, diag(row)², diag(col)²), or several side by side (`blocks`).

    Each block of outputs is a matrix Gaussian of its own, with its own row factors; their products run as one.
    The prior is MN(prior_mean, prior_variance I, I), with one prior variance per block, and a mean only for biases.
    """

    prior_mean: Tensor  # (in + 1, out)

    def __init__(
        self,
        mean: Tensor,  # (*members, in + 1, out): where the posterior mean starts; the last row is the bias
        blocks: Sequence[int] = (),  # outputs of each block; one block if empty
        log_variance: float = -3.0,  # where both factors' log-variances start
        prior_variance: Sequence[float] = (1.0,),  # of each block
        prior_bias: Tensor | None = None,  # (out,) prior mean of the bias
    ):
        super().__init__()
        *members, rows, outputs = mean.shape
        self.blocks = tuple(blocks) or (outputs,)
        if sum(self.blocks) != outputs or len(prior_variance) != len(self.blocks):
            raise ValueError(
                f"blocks {self.blocks} with {len(prior_variance)} prior variances do not fit {outputs} outputs"
            )
        self.mean = nn.Parameter(mean)
        self.log_row = nn.Parameter(
            mean.new_full((*members, len(self.blocks), rows), log_variance)
        )  # log-variances
        self.log_col = nn.Parameter(mean.new_full((*members, outputs), log_variance))
        prior = torch.zeros(rows, outputs, dtype=torch.float32)
        prior[-1] = 0.0 if prior_bias is None else prior_bias
        self.register_buffer("prior_mean", prior, persistent=False)
        self.precisions = 1 / np.array(prior_variance, dtype=np.float64)  # of each block's prior
        self.constant = rows * sum(
            n * (1 - math.log(v)) for n, v in zip(self.blocks, prior_variance, strict=True)
        )

    @full_precision
    def forward(self, wide: Tensor, generator: Generators, shared: int = 1) -> Tensor:
        """Draws of h~ W for wide = h~. Rows come in `shared` equal parts: row b of every part uses the same W."""
        noise = standard_normal(
            generator, (*self.mean.shape[:-2], wide.shape[-2], self.mean.shape[-1]), self.mean
        )
        if shared == 1:
            draw = _NoisyAffine.apply if can_use_kernel(wide, self.mean) else reference
            return draw(wide, self.mean, self.log_row, self.log_col, noise, self.blocks)  # type: ignore[no-any-return]
        rows = self.log_row.exp().unbind(-2)
        parts = [
            correlated_noise(wide, row, block, shared)
            for row, block in zip(rows, noise.split(self.blocks, -1), strict=True)
        ]
        return torch.addcmul(wide @ self.mean, torch.cat(parts, -1), (0.5 * self.log_col).exp().unsqueeze(-2))

    @full_precision
    def draw(self, generator: Generator) -> Tensor:  # (*members, in + 1, out)
        """One weight matrix, for all rows."""
        rows, col = (0.5 * self.log_row).exp().unbind(-2), (0.5 * self.log_col).exp().unsqueeze(-2)
        blocks = standard_normal(generator, self.mean.shape, self.mean).split(self.blocks, -1)
        noise = torch.cat([block * row.unsqueeze(-1) for row, block in zip(rows, blocks, strict=True)], -1)
        return torch.addcmul(self.mean, noise, col)

    @full_precision
    def moments(self, h: Tensor) -> tuple[Tensor, Tensor]:  # (rows, out) each
        """Mean and standard deviation of h~ W for h (rows, in); of one block without members."""
        (row,), deviation = self.log_row.exp(), (0.5 * self.log_col).exp()
        return affine(h, self.mean), torch.addmv(row[-1:], h * h, row[:-1]).sqrt().unsqueeze(-1) * deviation

    @full_precision
    def sample(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:  # (draws, rows, out) and ()
        """h~ W from noise (draws, rows, out), which it uses up, and `kl()`; of one block without members and prior mean."""
        return _Sample.apply(
            h, self.mean, self.log_row, self.log_col, noise, float(self.precisions[0]), self.constant
        )

    def kl(self) -> Tensor:  # (*members,)
        """Of the posterior to the prior, summed over blocks."""
        if can_use_kernel(self.mean):
            how = _starts(self.blocks), self.precisions
            return _Divergence.apply(self.mean, self.log_row, self.log_col, self.prior_mean, how)
        total = torch.zeros((), dtype=torch.float32)
        shifts, cols = (
            (self.mean - self.prior_mean).split(self.blocks, -1),
            self.log_col.split(self.blocks, -1),
        )
        for precision, shift, row, col in zip(
            self.precisions, shifts, self.log_row.unbind(-2), cols, strict=True
        ):
            trace = precision * (row.exp().sum(-1) * col.exp().sum(-1) + shift.square().sum((-2, -1)))
            r, c = shift.shape[-2:]
            total = total + 0.5 * (
                trace - r * c * (1 + math.log(precision)) - c * row.sum(-1) - r * col.sum(-1)
            )
        return total


def correlated_noise(h: Tensor, row: Tensor, noise: Tensor, shared: int) -> Tensor:
    """Noise (*members, rows, out) with unit column scale whose `shared` parts have the covariance of one common W.

    Between parts s and t of a row it is K_st = sum_i h_si row_i h_ti: a Cholesky factor of each row's K mixes the parts.
    """
    rows = h.shape[-2] // shared
    h = h.double().unflatten(-2, (shared, rows)).transpose(-3, -2)  # (*members, rows, shared, in)
    k = (h * row.double()[..., None, None, :]) @ h.mT  # (*members, rows, shared, shared)
    # float64 and a touch of jitter: equal inputs make K singular
    jitter = 1e-10 * k.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    factor = torch.linalg.cholesky(k + jitter * torch.eye(shared, dtype=k.dtype, device=k.device)).to(
        noise.dtype
    )
    parts = noise.unflatten(-2, (shared, rows)).transpose(-3, -2)  # (*members, rows, shared, out)
    return (factor @ parts).transpose(-3, -2).flatten(-3, -2)


class Saved(NamedTuple):
    """What the backward pass of `forward` needs."""

    wide: Tensor
    mean: Tensor
    row: Tensor  # (*members, blocks, in + 1) variances
    col: Tensor  # (*members, out) standard deviations
    scale: Tensor  # (*members, rows, blocks) sqrt(sum_i h~_i² row_i)
    noise: Tensor  # (*members, rows, out)


def reference(
    wide: Tensor, mean: Tensor, log_row: Tensor, log_col: Tensor, noise: Tensor, blocks: tuple[int, ...]
) -> Tensor:
    """h~ W for W drawn per row."""
    scale = ((wide * wide) @ log_row.exp().mT).sqrt()  # (*members, rows, blocks)
    parts = [part * scale[..., k : k + 1] for k, part in enumerate(noise.split(blocks, -1))]
    return torch.addcmul(wide @ mean, torch.cat(parts, -1), (0.5 * log_col).exp().unsqueeze(-2))


def forward(
    wide: Tensor, mean: Tensor, log_row: Tensor, log_col: Tensor, noise: Tensor, blocks: tuple[int, ...]
) -> tuple[Tensor, Saved]:
    """`reference`, compiled."""
    out, row, col = matmul(wide, mean), log_row.exp(), (0.5 * log_col).exp_()
    scale = wide.new_empty((*wide.shape[:-1], len(blocks)))
    sizes = math.prod(col.shape[:-1]), math.prod(wide.shape[:-1]), wide.shape[-1]
    launch(layers.noisy, (wide, row, col, noise, scale, out), _starts(blocks), *sizes)
    return out, Saved(wide, mean, row, col, scale, noise)


def backward(
    kept: Saved, blocks: tuple[int, ...], d_out: Tensor, inputs: bool
) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """Gradients w.r.t. h~ (where `inputs`), mean, log_row and log_col."""
    wide, mean, row, col, scale, noise = kept
    d_out = d_out.contiguous()
    d_wide = (
        matmul(mean, d_out.mT).mT.contiguous() if inputs else wide.new_empty(0)
    )  # this way round the product is faster
    d_row, d_col = torch.zeros_like(row), torch.zeros_like(col)
    sizes = math.prod(col.shape[:-1]), math.prod(wide.shape[:-1]), wide.shape[-1]
    launch(
        layers.noisy_back,
        (wide, row, col, noise, scale, d_out, d_wide, d_row, d_col),
        _starts(blocks),
        *sizes,
        inputs,
    )
    return d_wide if inputs else None, matmul(wide.mT, d_out), d_row.mul_(row), d_col


@lru_cache(maxsize=64)
def _starts(blocks: tuple[int, ...]) -> Any:
    """Where each block begins, and where the last one ends."""
    return np.cumsum([0, *blocks])


class _NoisyAffine(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        wide: Tensor,
        mean: Tensor,
        log_row: Tensor,
        log_col: Tensor,
        noise: Tensor,
        blocks: tuple[int, ...],
    ) -> Tensor:
        out, kept = forward(wide.contiguous(), mean, log_row, log_col, noise, blocks)
        ctx.save_for_backward(*kept)
        ctx.blocks = blocks
        return out

    @staticmethod
    @by_hand
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return *backward(Saved(*ctx.saved_tensors), ctx.blocks, d_out, ctx.needs_input_grad[0]), None, None


class _Divergence(torch.autograd.Function):
    """`MatrixGaussianLinear.kl`, compiled, with its gradient in closed form."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, log_row: Tensor, log_col: Tensor, prior: Tensor, how: tuple[Any, Any]
    ) -> Tensor:  # type: ignore[override]
        *members, blocks, r = log_row.shape
        sums, total = mean.new_empty((*members, blocks, 2)), mean.new_empty(members)
        launch(layers.divergence, (mean, prior, log_row, log_col, sums, total), *how, math.prod(members), r)
        ctx.save_for_backward(mean, prior, log_row, log_col, sums)
        ctx.how = how
        return total

    @staticmethod
    @by_hand
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        kept = ctx.saved_tensors
        gradients = [torch.empty_like(tensor) for tensor in (kept[0], kept[2], kept[3])]
        *members, _, r = kept[2].shape
        launch(
            layers.divergence_back, (*kept, d_total.contiguous(), *gradients), *ctx.how, math.prod(members), r
        )
        return *gradients, None, None


def affine(h: Tensor, weight: Tensor) -> Tensor:
    """h~ W without h~; few columns go faster as few rows."""
    if weight.shape[1] <= FEW:
        return torch.addmm(weight[-1:].mT, weight[:-1].mT, h.mT).mT.contiguous()
    return torch.addmm(weight[-1], h, weight[:-1])


def grad_weight(h: Tensor, d_out: Tensor) -> Tensor:  # (in + 1, out)
    """The gradient of `affine` w.r.t. W."""
    d_weight = h.new_empty((h.shape[1] + 1, d_out.shape[1]))
    if d_out.shape[1] <= FEW:
        d_weight[:-1] = torch.mm(d_out.mT, h).mT
    else:
        torch.mm(h.mT, d_out, out=d_weight[:-1])
    torch.sum(d_out, 0, out=d_weight[-1])
    return d_weight


def total(values: Tensor) -> Tensor:
    """Over draws, the first axis."""
    return values[0] if len(values) == 1 else values.sum(0)


class _Sample(torch.autograd.Function):
    """Draws of h~ W, whose moments are computed once, and the KL to MN(0, I / precision, I), in one step of autograd."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        h: Tensor,
        mean: Tensor,
        log_row: Tensor,
        log_col: Tensor,
        noise: Tensor,
        precision: float,
        constant: float,
    ) -> tuple[Tensor, Tensor]:
        (row,), col = log_row.exp(), log_col.exp()
        squares, noise = h * h, noise.mul_(col.sqrt())
        scale = torch.addmv(row[-1:], squares, row[:-1]).sqrt_()  # (rows,)
        sums = row.sum().item(), col.sum().item()
        trace = precision * (torch.dot(mean.view(-1), mean.view(-1)).item() + sums[0] * sums[1])
        logs = len(col) * log_row.sum().item() + len(row) * log_col.sum().item()
        ctx.save_for_backward(h, squares, mean, row, col, scale, noise)
        ctx.sums, ctx.precision = sums, precision
        return torch.addcmul(affine(h, mean), noise, scale.unsqueeze(-1)), mean.new_full(
            (), 0.5 * (trace - logs - constant)
        )

    @staticmethod
    @by_hand
    def backward(ctx: Any, d_out: Tensor, d_kl: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        h, squares, mean, row, col, scale, noise = ctx.saved_tensors
        half = 0.5 * d_kl.item()
        decay = half * ctx.precision
        product, d_mean = (
            total(d_out * noise),
            total(d_out),
        )  # (rows, out), the first w.r.t. scale and log col alike
        d_q = product.sum(-1).div_(scale).mul_(0.5)  # (rows,) w.r.t. scale²
        d_row = (
            torch.cat([torch.mv(squares.mT, d_q), d_q.sum().view(1)])
            .add_(decay * ctx.sums[1])
            .mul_(row)
            .sub_(half * len(col))
        )
        d_col = (
            torch.mv(product.mT, scale).mul_(0.5).add_(col, alpha=decay * ctx.sums[0]).sub_(half * len(row))
        )
        d_h = (
            torch.mm(d_mean, mean[:-1].mT).addcmul_(torch.outer(d_q, row[:-1]), h, value=2)
            if ctx.needs_input_grad[0]
            else None
        )
        return (
            d_h,
            grad_weight(h, d_mean).add_(mean, alpha=2 * decay),
            d_row.unsqueeze(0),
            d_col,
            None,
            None,
            None,
        )
