"""An affine map whose weights have a Gaussian posterior with random scales z on its inputs, made flexible by a flow.

    q(W) = ∫ q(z) prod_ij N(W_ij; z_i M_ij, S_ij²) dz,    z = flow(z_0),  z_0 ~ N(m_0, v_0)

Given z, x W + b is Gaussian with mean (x z) M + μ_b and variance x² S² + v_b, so no weight is ever drawn. The divergence from the prior
is bounded with the help of r(z | W), which guesses z from c^T W, a Gaussian too:

    KL[q(W) q(b) || p] <= E [ KL[q(W | z) q(b) || p] + log q(z) - log r(z | W) ]
    r:  flow_r(z) ~ N(s b_1, exp(-s b_2)),  s = mean_j tanh(c^T W)_j

with equality for r = q(z | W). Louizos and Welling (2017).
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from compound.nn.flows import flow, init_normal
from compound.nn.mean_field import integrated_variance
from compound.ops import multiplicative_loops as loops
from compound.ops.auxiliary_posterior import (
    AuxiliaryPosterior,
    Back,
    auxiliary_posterior,
    auxiliary_posterior_backward,
)
from compound.ops.gaussian_noise import standard_normal
from compound.ops.jit import can_use_kernel, launch
from compound.precision import by_hand, full_precision


class Noise(NamedTuple):
    """All that is random in one pass."""

    z: Tensor  # (groups, in)
    masks: Tensor  # of q's flow
    out: Tensor  # (rows, out)
    read: Tensor  # (groups, out) of c^T W
    reverse_masks: Tensor  # of r's flow


class Saved(NamedTuple):
    """What the backward pass needs, besides that of the guess and of the flows."""

    x: Tensor
    square: Tensor  # (rows, in) x²
    std: Tensor  # (rows, out)
    noise: Tensor  # (rows, out)
    z: Tensor  # (groups, in)
    z_std: Tensor  # (in,)
    z_noise: Tensor  # (groups, in)
    mean: Tensor
    sizes: Tensor  # (in,) sums of M² along its rows
    variance: Tensor  # (in, out) S²
    bias: Tensor
    bias_var: Tensor  # (out,)
    vectors: Tensor


class MultiplicativeLinear(nn.Module):
    """x (rows, in) -> draws of x W + b, with a bound on the divergence of q(W) q(b) from the prior N(0, prior)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        generator: Generator,
        flows: tuple[int, int] = (2, 2),  # steps of q's flow and of r's
        flow_hidden: int = 50,  # width of both flows
        prior: float = 1.0,  # variance of every weight
        log_std: float = -9.0,  # where log S starts
    ):
        super().__init__()
        self.inputs, self.outputs, self.prior = inputs, outputs, prior
        self.mean = nn.Parameter(init_normal(generator, inputs, outputs))  # M
        self.log_std = nn.Parameter(torch.full((inputs, outputs), log_std, dtype=torch.float32))  # log S
        self.bias = nn.Parameter(
            torch.tensor([[0.0], [-9.0]], dtype=torch.float32).repeat(1, outputs)
        )  # μ_b and log v_b
        first = init_normal(generator, inputs) + float(flows[0] == 0)  # a flow finds the level of z by itself
        guess = [init_normal(generator, inputs) for _ in range(3)]
        self.vectors = nn.Parameter(
            torch.stack([first, torch.full_like(first, math.log(0.1)), *guess])
        )  # m_0, log v_0, c, b_1, b_2
        self.flow = flow(inputs, flows[0], flow_hidden, generator)
        self.reverse_flow = flow(inputs, flows[1], flow_hidden, generator)

    @full_precision
    def forward(self, x: Tensor, groups: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """x W + b (rows, out) with `groups` z, one of them for each row in turn, and for each z its part of the bound (groups,)."""
        noise = Noise(
            standard_normal(generator, (groups, self.inputs), x),
            self.flow.masks(groups, generator),
            standard_normal(generator, (len(x), self.outputs), x),
            standard_normal(generator, (groups, self.outputs), x),
            self.reverse_flow.masks(groups, generator),
        )
        return self.at(x, noise)

    def at(self, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        own = (self.mean, self.log_std, self.bias, self.vectors)
        return _Layer.apply(self, x, noise, *own, *self.flow.parameters(), *self.reverse_flow.parameters())

    @full_precision
    def draw(self, n: int, generator: Generator) -> Tensor:  # (n, in)
        """Draws of z."""
        mean, log_var, *_ = self.vectors
        return self.flow(
            torch.addcmul(mean, log_var.exp().sqrt(), standard_normal(generator, (n, self.inputs), mean)),
            generator,
        )[0]

    @full_precision
    def means(self, x: Tensor, z: Tensor) -> Tensor:  # (draws, rows, out)
        """E[x W + b | z] at x (draws or 1, rows, in), for every z (draws, in)."""
        if x.shape[-2] > self.outputs:  # z goes to the smaller factor
            return torch.baddbmm(self.bias[0], x.expand(len(z), -1, -1), z.unsqueeze(-1) * self.mean)
        return torch.addmm(self.bias[0], (x * z.unsqueeze(-2)).flatten(0, 1), self.mean).unflatten(
            0, (len(z), -1)
        )

    @full_precision
    def std(self, x: Tensor) -> Tensor:  # (..., rows, out)
        """Standard deviation of x W + b given z; z has no part in it."""
        return (x.square() @ self.log_std.exp().square() + self.bias[1].exp()).sqrt()


class _Layer(torch.autograd.Function):
    """The whole layer as one step of autograd: most of its arrays are small, and recording them costs more than the arithmetic."""

    @staticmethod
    def forward(
        ctx: Any, layer: MultiplicativeLinear, x: Tensor, noise: Noise, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        mean, log_std, prior, (bias, bias_log_var) = layer.mean, layer.log_std, layer.prior, layer.bias
        z_mean, z_log_var, *_ = layer.vectors
        z_std = z_log_var.exp().sqrt_()
        z, log_det, kept = layer.flow.at(torch.addcmul(z_mean, z_std, noise.z), noise.masks)

        variance, sizes, trace, logs = integrated_variance(mean, log_std)
        scaled, bias_var = _scale(x, z), bias_log_var.exp()
        out = torch.addmm(bias, scaled, mean)
        square = torch.mul(x, x, out=scaled)
        std = torch.addmm(bias_var, square, variance).sqrt_()
        out.addcmul_(std, noise.out)

        free_of_z = (
            trace + float(bias_var.sum() + bias.dot(bias))
        ) / prior  # E[|W|² + |b|² | z] without z² M²
        numbers = (layer.inputs + 1) * layer.outputs
        given = 0.5 * (free_of_z + numbers * (math.log(prior) - 1)) - logs - 0.5 * float(bias_log_var.sum())
        entropy = 0.5 * (
            float(z_log_var.sum()) + layer.inputs
        )  # of z_0, in place of -log q(z_0); log 2π is in r's density, too
        bound = torch.addmv(z.new_full((len(z),), given - entropy), z.square(), sizes, alpha=0.5 / prior)

        behind, reverse_log_det, reverse_kept = layer.reverse_flow.at(z, noise.reverse_masks)
        log_reverse, guessed = auxiliary_posterior(z, behind, mean, variance, layer.vectors, noise.read)
        bound.sub_(log_det).sub_(log_reverse, alpha=0.5).sub_(reverse_log_det)

        own = Saved(
            x,
            square,
            std,
            noise.out,
            z,
            z_std,
            noise.z,
            mean,
            sizes,
            variance,
            layer.bias,
            bias_var,
            layer.vectors,
        )
        ctx.save_for_backward(*own, *guessed, *kept, *reverse_kept)
        ctx.layer, ctx.middle = layer, len(own) + len(guessed) + len(kept)
        return out, bound

    @staticmethod
    @by_hand
    def backward(ctx: Any, d: Tensor, d_bound: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        layer, prior, tensors = ctx.layer, ctx.layer.prior, ctx.saved_tensors
        first, second = len(Saved._fields), len(Saved._fields) + len(AuxiliaryPosterior._fields)
        own, guessed = Saved(*tensors[:first]), AuxiliaryPosterior(*tensors[first:second])
        kept, reverse_kept = tensors[second : ctx.middle], tensors[ctx.middle :]
        x, z, whole = own.x, own.z, d_bound.sum().item()
        d_log_det = -d_bound

        back = auxiliary_posterior_backward(guessed, own.vectors, d_bound)
        d_z, reverse_gradients = layer.reverse_flow.backward(reverse_kept, back.behind, d_log_det)
        d_var = (d * own.noise).div_(own.std)  # twice that of the variance
        d_x = None
        if ctx.needs_input_grad[1]:
            d_x = _scale(torch.mm(d, own.mean.t()), z).addcmul_(x, torch.mm(d_var, own.variance.t()))
        parts = x.new_empty((len(z), *own.mean.shape))  # the groups' own products x^T d serve M and z
        for k, part in enumerate(parts):
            torch.mm(x[k :: len(z)].t(), d[k :: len(z)], out=part)
        product = torch.mm(own.square.t(), d_var)
        d_z, d_mean, d_log_std, d_reader = _weights_back(own, back, parts, product, d_bound, d_z, 1 / prior)
        d_bias = torch.add(d.sum(0), own.bias[0], alpha=whole / prior)
        d_bias_log_var = (d_var.sum(0) + whole / prior).mul_(own.bias_var).sub_(whole).mul_(0.5)

        d_z, gradients = layer.flow.backward(kept, d_z, d_log_det)
        d_z_log_var = (d_z * own.z_noise).sum(0).mul_(own.z_std).sub_(whole).mul_(0.5)
        d_vectors = torch.cat([torch.stack([d_z.sum(0), d_z_log_var, d_reader]), back.vectors])
        own_gradients = (d_mean, d_log_std, torch.stack([d_bias, d_bias_log_var]), d_vectors)
        return None, d_x, None, *own_gradients, *gradients, *reverse_gradients


def _weights_back(
    own: Saved, back: Back, parts: Tensor, product: Tensor, d_bound: Tensor, d_z: Tensor, precision: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients w.r.t. z (with d_z), M, log S (in the place of `product`) and c: of the rows' products, of c^T W, of the KL given z."""
    mean, variance, z, reader = own.mean, own.variance, own.z, own.vectors[2]
    if can_use_kernel(parts, mean):
        d_mean, d_reader = torch.empty_like(mean), torch.empty_like(reader)
        before = (
            parts,
            product,
            mean,
            variance,
            z.contiguous(),
            own.sizes,
            reader,
            d_bound.contiguous(),
            back.read,
            back.read_var,
        )
        launch(loops.weights_back, (*before, d_z, d_mean, d_reader), *parts.shape, precision)
        return d_z, d_mean, product, d_reader
    whole, pulled = d_bound.sum(), d_bound.unsqueeze(-1) * z  # (), (groups, in)
    d_both = torch.mm(back.read, mean.t())  # (groups, in): w.r.t. c z
    d_z = d_z + d_both * reader + precision * pulled * own.sizes + (parts * mean).sum(-1)
    d_mean = mean * (precision * pulled * z).sum(0).unsqueeze(-1) + torch.mm((reader * z).t(), back.read)
    d_mean = d_mean + (z.unsqueeze(-1) * parts).sum(0)
    d_log_std = (product + precision * whole + torch.outer(reader.square(), back.read_var)) * variance - whole
    return d_z, d_mean, d_log_std, (d_both * z).sum(0) + reader * torch.mv(variance, back.read_var)


def _scale(x: Tensor, z: Tensor) -> Tensor:
    """Row k of x times z number k modulo their count."""
    if len(x) % len(z):
        return x * z.repeat(len(x) // len(z) + 1, 1)[: len(x)]
    return (x.reshape(-1, *z.shape) * z).reshape(x.shape)
