"""A layer with Gaussian weights and random scales z on its inputs, made flexible by a flow.

    q(W) = ∫ q(z) prod_ij N(W_ij; z_i M_ij, S_ij²) dz,    z = flow(z_0),  z_0 ~ N(m_0, v_0)
    KL[q(W) q(b) || p] <= E [ KL[q(W | z) q(b) || p] + log q(z) - log r(z | W) ],    p = N(0, prior variance)

Given z, x W + b is Gaussian with mean (x z) M + μ_b and variance x² S² + v_b, so no weight is ever drawn.
Louizos and Welling (2017).
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from compound.ops import auxiliary_posterior as auxiliary
from compound.ops.flow import Flow
from compound.ops.gaussian_kl import gaussian_kl
from compound.ops.jit import FASTMATH, F, array, can_use_kernel, launch, loop
from compound.ops.mean_field_linear import weight_statistics
from compound.precision import once_differentiable


class Noise(NamedTuple):
    """The standard normal numbers of one pass, and the masks of its flows, for `groups` draws of z."""

    z: Tensor  # (groups, in)
    masks: Tensor  # of q's flow
    out: Tensor  # (rows, out)
    projection: Tensor  # (groups, out): of c^T W
    reverse_masks: Tensor  # of r's flow


class Parameters(NamedTuple):
    mean: Tensor  # (in, out): M
    log_std: Tensor  # (in, out): log S
    bias: Tensor  # (2, out): μ_b and log v_b
    vectors: Tensor  # (5, in): m_0, log v_0, c, b_1, b_2


class Flows(NamedTuple):
    """q's flow and r's, and their parameters."""

    forward: Flow
    reverse: Flow
    parameters: tuple[Tensor, ...]
    reverse_parameters: tuple[Tensor, ...]


def multiplicative_linear(
    x: Tensor, noise: Noise, parameters: Parameters, flows: Flows, prior_variance: float
) -> tuple[Tensor, Tensor]:  # (rows, out), (groups,)
    """Draws of x W + b for x (rows, in), and the bound on the KL for each z.

    Row k uses z number k modulo groups. Compiled where possible, differentiable.
    """
    if not can_use_kernel(x, parameters.mean):
        return reference(x, noise, parameters, flows, prior_variance)
    tensors = (*parameters, *flows.parameters, *flows.reverse_parameters)
    return _MultiplicativeLinear.apply(x, noise, flows, prior_variance, *tensors)  # type: ignore[no-any-return]


def reference(
    x: Tensor, noise: Noise, parameters: Parameters, flows: Flows, prior_variance: float
) -> tuple[Tensor, Tensor]:
    """The definition of `multiplicative_linear`, for any dtype and device."""
    mean, log_std, (bias, bias_log_var), vectors = parameters
    z_mean, z_log_var = vectors[:2]
    z_0 = z_mean + (0.5 * z_log_var).exp() * noise.z
    z, log_det = flows.forward.reference(z_0, noise.masks, *flows.parameters)
    variance = (2 * log_std).exp()
    out = scale_rows(x, z) @ mean + bias + conditional_std(x, log_std, bias_log_var) * noise.out

    n = mean.numel() + len(bias)
    trace = (variance.sum() + bias_log_var.exp().sum()) / prior_variance
    mahalanobis = (z.square() @ mean.square().sum(1) + bias.square().sum()) / prior_variance
    log_det_ratio = 2 * log_std.sum() + bias_log_var.sum() - n * math.log(prior_variance)
    kl_given_z = gaussian_kl(trace, mahalanobis, n, log_det_ratio)

    # in place of log q(z_0); log 2π cancels that of r's density
    entropy = 0.5 * (z_log_var.sum() + len(z_log_var))
    z_flowed, reverse_log_det = flows.reverse.reference(z, noise.reverse_masks, *flows.reverse_parameters)
    log_r = 0.5 * auxiliary.reference(z, z_flowed, mean, variance, vectors, noise.projection)
    return out, kl_given_z - entropy - log_det - log_r - reverse_log_det


def conditional_std(x: Tensor, log_std: Tensor, bias_log_var: Tensor) -> Tensor:  # (..., rows, out)
    """Standard deviation of x W + b given z; it is the same for every z.

    Shapes: x (..., rows, in), log_std (in, out), bias_log_var (out,).
    """
    return (x.square() @ log_std.exp().square() + bias_log_var.exp()).sqrt()


def scale_rows(x: Tensor, z: Tensor) -> Tensor:
    """Row k of x (rows, in) times row k modulo groups of z (groups, in)."""
    if len(x) % len(z):
        return x * z.repeat(len(x) // len(z) + 1, 1)[: len(x)]
    return (x.reshape(-1, *z.shape) * z).reshape(x.shape)


class Saved(NamedTuple):
    """What the backward pass needs, besides what `auxiliary_posterior` and the flows saved."""

    x: Tensor
    squared: Tensor  # (rows, in): x²
    std: Tensor  # (rows, out)
    noise: Tensor  # (rows, out)
    z: Tensor  # (groups, in)
    z_std: Tensor  # (in,)
    z_noise: Tensor  # (groups, in)
    mean: Tensor
    squared_norms: Tensor  # (in,): sums of M² along the rows
    variance: Tensor  # (in, out): S²
    bias: Tensor
    bias_var: Tensor  # (out,)
    vectors: Tensor


N_SAVED = len(Saved._fields)
N_AUXILIARY = len(auxiliary.Saved._fields)


class _MultiplicativeLinear(torch.autograd.Function):
    """One autograd node: most arrays are small, and recording them costs more than the arithmetic."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, noise: Noise, flows: Flows, prior: float, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        mean, log_std, bias_parameters, vectors = tensors[:4]
        bias, bias_log_var = bias_parameters
        z_mean, z_log_var = vectors[:2]
        z_std = z_log_var.exp().sqrt_()
        z_0 = torch.addcmul(z_mean, z_std, noise.z)
        z, log_det, flow_saved = flows.forward.forward(z_0, noise.masks, *flows.parameters)

        variance, squared_norms, variance_sum, log_std_sum = weight_statistics(mean, log_std)
        scaled = scale_rows(x, z)
        bias_var = bias_log_var.exp()
        out = torch.addmm(bias, scaled, mean)
        squared = torch.mul(x, x, out=scaled)
        std = torch.addmm(bias_var, squared, variance).sqrt_()
        out.addcmul_(std, noise.out)

        n = mean.numel() + len(bias)
        trace = (variance_sum + float(bias_var.sum())) / prior
        log_det_ratio = 2 * log_std_sum + float(bias_log_var.sum()) - n * math.log(prior)
        kl_without_z = gaussian_kl(trace, float(bias.dot(bias)) / prior, n, log_det_ratio)  # without z² M²
        entropy = 0.5 * (float(z_log_var.sum()) + len(z_log_var))
        constant = z.new_full((len(z),), kl_without_z - entropy)
        bound = torch.addmv(constant, z.square(), squared_norms, alpha=0.5 / prior)

        z_flowed, reverse_log_det, reverse_saved = flows.reverse.forward(
            z, noise.reverse_masks, *flows.reverse_parameters
        )
        log_r, auxiliary_saved = auxiliary.forward(z, z_flowed, mean, variance, vectors, noise.projection)
        bound.sub_(log_det).sub_(log_r, alpha=0.5).sub_(reverse_log_det)

        inputs = x, squared, std, noise.out, z, z_std, noise.z
        saved = Saved(*inputs, mean, squared_norms, variance, bias_parameters, bias_var, vectors)
        ctx.save_for_backward(*saved, *auxiliary_saved, *flow_saved, *reverse_saved)
        ctx.flows = flows
        ctx.prior = prior
        ctx.n_flow = len(flow_saved)
        return out, bound

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor, d_bound: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        tensors = ctx.saved_tensors
        saved = Saved(*tensors[:N_SAVED])
        auxiliary_saved = auxiliary.Saved(*tensors[N_SAVED : N_SAVED + N_AUXILIARY])
        flow_saved = tensors[N_SAVED + N_AUXILIARY :][: ctx.n_flow]
        reverse_saved = tensors[N_SAVED + N_AUXILIARY + ctx.n_flow :]
        x, z, prior = saved.x, saved.z, ctx.prior
        bound_weight = d_bound.sum().item()
        d_log_det = -d_bound

        d_auxiliary = auxiliary.backward(auxiliary_saved, saved.vectors, d_bound)
        d_z, reverse_gradients = ctx.flows.reverse.backward(reverse_saved, d_auxiliary.z_flowed, d_log_det)
        d_var = (d * saved.noise).div_(saved.std)  # twice that with respect to the variance
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = scale_rows(torch.mm(d, saved.mean.t()), z)
            d_x = d_x.addcmul_(x, torch.mm(d_var, saved.variance.t()))
        products = x.new_empty((len(z), *saved.mean.shape))  # x^T d of each group, for M and for z
        for k, product in enumerate(products):
            torch.mm(x[k :: len(z)].t(), d[k :: len(z)], out=product)
        d_log_std = torch.mm(saved.squared.t(), d_var)
        d_mean = torch.empty_like(saved.mean)
        d_c = torch.empty_like(saved.vectors[2])
        arrays = (
            *(products, d_log_std, saved.mean, saved.variance, z.contiguous(), saved.squared_norms),
            *(saved.vectors[2], d_bound.contiguous(), d_auxiliary.projection, d_auxiliary.projection_var),
            *(d_z, d_mean, d_c),
        )
        launch(weights_backward_loop, arrays, *products.shape, 1 / prior)
        d_bias = torch.add(d.sum(0), saved.bias[0], alpha=bound_weight / prior)
        d_bias_log_var = d_var.sum(0) + bound_weight / prior
        d_bias_log_var = d_bias_log_var.mul_(saved.bias_var).sub_(bound_weight).mul_(0.5)

        d_z, flow_gradients = ctx.flows.forward.backward(flow_saved, d_z, d_log_det)
        d_z_log_var = (d_z * saved.z_noise).sum(0).mul_(saved.z_std).sub_(bound_weight).mul_(0.5)
        d_vectors = torch.cat([torch.stack([d_z.sum(0), d_z_log_var, d_c]), d_auxiliary.vectors])
        gradients = d_mean, d_log_std, torch.stack([d_bias, d_bias_log_var]), d_vectors
        return d_x, None, None, None, *gradients, *flow_gradients, *reverse_gradients


@loop(FASTMATH, "d_log_std d_z d_mean d_c")
def weights_backward_loop(
    products_: int, d_log_std_: int, mean_: int, variance_: int, z_: int, squared_norms_: int, c_: int,
    d_bound_: int, d_projection_: int, d_projection_var_: int, d_z_: int, d_mean_: int, d_c_: int,
    groups: int, d: int, width: int, precision: float,
) -> None:  # fmt: skip
    """Gradients with respect to M, log S, c and (added to d_z) z: of outputs, c^T W and the KL given z.

    d_log_std comes in as x²^T times twice the gradient with respect to the variances of the outputs.
    """
    products = array(products_, (groups, d, width))
    d_log_std = array(d_log_std_, (d, width))
    mean = array(mean_, (d, width))
    variance = array(variance_, (d, width))
    z = array(z_, (groups, d))
    squared_norms = array(squared_norms_, (d,))
    c = array(c_, (d,))
    d_bound = array(d_bound_, (groups,))
    d_projection = array(d_projection_, (groups, width))
    d_projection_var = array(d_projection_var_, (width,))
    d_z = array(d_z_, (groups, d))
    d_mean = array(d_mean_, (d, width))
    d_c = array(d_c_, (d,))
    bound_weight = F(np.sum(d_bound))
    decay = bound_weight * F(precision)
    for i in range(d):
        row, row_var, grad_mean, grad_log = mean[i], variance[i], d_mean[i], d_log_std[i]
        c_i, square, shrink, var_sum = c[i], c[i] * c[i], F(0), F(0)
        for j in range(width):
            var_sum += row_var[j] * d_projection_var[j]
            grad_log[j] = (grad_log[j] + decay + square * d_projection_var[j]) * row_var[j] - bound_weight
        for k in range(groups):
            shrink += d_bound[k] * z[k, i] * z[k, i]
        shrink *= F(precision)
        for j in range(width):
            grad_mean[j] = shrink * row[j]
        total = F(0)
        for k in range(groups):
            product, slope, scale, d_scale, d_both = products[k, i], d_projection[k], z[k, i], F(0), F(0)
            for j in range(width):
                d_scale += product[j] * row[j]
                d_both += slope[j] * row[j]
                grad_mean[j] += scale * (product[j] + c_i * slope[j])
            d_z[k, i] += d_scale + c_i * d_both + d_bound[k] * scale * squared_norms[i] * F(precision)
            total += scale * d_both
        d_c[i] = total + c_i * var_sum
