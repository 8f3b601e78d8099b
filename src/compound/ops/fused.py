"""A whole compound layer, hypernetwork included, as one step of autograd.

Small operations cost their overhead, not their arithmetic: one hand-written backward pass takes the place of some thirty
recorded steps.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from compound.compat import graph_is_kept, tanh_backward, threshold_backward
from compound.nn import matrix_gaussian
from compound.nn.matrix_gaussian import Affine, MatrixGaussianLinear, append_ones
from compound.ops import moments
from compound.ops.gaussian_noise import standard_normal
from compound.ops.moments import Gaussian, Options, matmul
from compound.precision import by_hand
from compound.random import Generators

MOMENTS, MAP = len(moments.Saved._fields), len(matrix_gaussian.Saved._fields)  # tensors kept
ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


def compound_layer(
    wide: Tensor,
    maps: Sequence[Affine | MatrixGaussianLinear],
    activation: str,
    basis: Tensor,
    options: Options,
    generator: Generators,
) -> Gaussian:
    """Pre-activations at h~ (*members, rows, in + 1), with a draw of ψ per row where the maps have a posterior."""
    parameters: list[Tensor] = []
    noises: list[Tensor | None] = []
    blocks: list[tuple[int, ...]] = []
    for layer in maps:
        if isinstance(layer, Affine):
            parameters.append(layer.weight)
            noises.append(None)
            blocks.append(())
        else:
            parameters.extend((layer.mean, layer.log_row, layer.log_col))
            noises.append(
                standard_normal(
                    generator, (*layer.mean.shape[:-2], wide.shape[-2], layer.mean.shape[-1]), layer.mean
                )
            )
            blocks.append(layer.blocks)
    return Gaussian(*_Layer.apply(wide, basis, (activation, options, noises, blocks), *parameters))


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, wide: Tensor, basis: Tensor, how: tuple[Any, ...], *parameters: Tensor
    ) -> tuple[Tensor, ...]:  # type: ignore[override]
        activation, options, noises, blocks = how
        remaining = list(parameters)
        saved: list[Tensor] = []
        h = wide
        for k, noise in enumerate(noises):
            if noise is None:
                weight = remaining.pop(0)
                out = matmul(h, weight)
                saved += [h, weight]
            else:
                mean, log_row, log_col, *remaining = remaining
                out, kept = matrix_gaussian.forward(h, mean, log_row, log_col, noise, blocks[k])
                saved += kept
            if k < len(noises) - 1:
                h = append_ones(ACTIVATIONS[activation](out))
        result, moments_kept = moments.forward(wide, out, basis, options)
        ctx.save_for_backward(*moments_kept, *saved)
        ctx.how = (activation, options, [noise is not None for noise in noises], blocks)
        return tuple(result)

    @staticmethod
    @by_hand
    def backward(ctx: Any, d_mean: Tensor, d_std: Tensor, d_kl: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        activation, options, noisy, blocks = ctx.how
        inputs = ctx.needs_input_grad[0]
        tensors = ctx.saved_tensors  # asked for once: `torch.utils.checkpoint` computes them for that
        moments_kept, saved = moments.Saved(*tensors[:MOMENTS]), list(tensors[MOMENTS:])
        if (
            graph_is_kept()
        ):  # another backward may come: it needs the heads whose memory this one would use again
            moments_kept = moments_kept._replace(heads=moments_kept.heads.clone())
        d_wide, d_out, d_basis = moments.backward(moments_kept, options, d_mean, d_std, d_kl, inputs)
        gradients: list[Tensor] = []
        d_h: Any
        for k in reversed(range(len(noisy))):
            if noisy[k]:
                kept = matrix_gaussian.Saved(*saved[-MAP:])
                h, saved = kept.wide, saved[:-MAP]
                d_h, *d_parameters = matrix_gaussian.backward(kept, blocks[k], d_out, k > 0 or inputs)
            else:
                h, weight = saved[-2:]
                saved = saved[:-2]
                d_parameters = [matmul(h.mT, d_out)]
                d_h = matmul(weight, d_out.mT).mT if k > 0 else None  # this way round the product is faster
                if k == 0 and d_wide is not None:
                    d_wide = (
                        torch.baddbmm(d_wide, d_out, weight.mT)
                        if h.ndim == 3
                        else torch.addmm(d_wide, d_out, weight.mT)
                    )
            gradients = d_parameters + gradients
            if k > 0:
                z, d_z = h[..., :-1], d_h[..., :-1]  # the constant in h~ has no gradient
                d_out = threshold_backward(d_z, z, 0) if activation == "relu" else tanh_backward(d_z, z)
            elif d_h is not None:
                d_wide = d_wide + d_h  # type: ignore[operator]
        return d_wide, d_basis, None, *gradients
