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
from torch.autograd.function import once_differentiable
from torch.nn import functional

from compound.distributions import LOG_2PI
from compound.nn.flows import flow, start
from compound.types import normal

aten = torch.ops.aten
BOUND = 15.0  # of r's log-precisions


class Noise(NamedTuple):
    """All that is random in one pass."""

    z: Tensor  # (groups, in)
    masks: Tensor  # of q's flow
    out: Tensor  # (rows, out)
    read: Tensor  # (groups, out) of c^T W
    reverse_masks: Tensor  # of r's flow


class Kept(NamedTuple):
    """What the backward pass needs, besides that of the flows."""

    x: Tensor
    scaled: Tensor  # (rows, in) x z
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
    bias_var: Tensor
    reader: Tensor
    read_std: Tensor  # (out,)
    read_noise: Tensor  # (groups, out)
    bent: Tensor  # (groups, out) tanh(c^T W)
    level: Tensor  # (groups, 1) s
    free: Tensor  # (groups, in) log-precisions before their bound
    distance: Tensor  # (groups, in)
    pull: Tensor  # (groups, in) distance times precision
    reverse_mean: Tensor
    reverse_log_precision: Tensor


class MultiplicativeLinear(nn.Module):
    """x (rows, in) -> draws of x W + b, with a bound on the divergence of q(W) q(b) from the prior N(0, prior)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        generator: Generator,
        flows: tuple[int, int] = (2, 2),  # steps of q's flow and of r's
        flow_hidden: int = 50,  # width of q's flow; r's has twice as many
        prior: float = 1.0,  # variance of every weight
        log_std: float = -9.0,  # where log S starts
    ):
        super().__init__()
        self.inputs, self.outputs, self.prior = inputs, outputs, prior
        self.mean = nn.Parameter(start(generator, inputs, outputs))  # M
        self.log_std = nn.Parameter(torch.full((inputs, outputs), log_std))  # log S
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.bias_log_var = nn.Parameter(torch.full((outputs,), -9.0))
        self.z_mean = nn.Parameter(start(generator, inputs) + float(flows[0] == 0))  # a flow finds the level of z by itself
        self.z_log_var = nn.Parameter(torch.full((inputs,), math.log(0.1)))
        self.reader = nn.Parameter(start(generator, inputs))  # c
        self.reverse_mean = nn.Parameter(start(generator, inputs))  # b_1
        self.reverse_log_precision = nn.Parameter(start(generator, inputs))  # b_2
        self.flow = flow(inputs, flows[0], flow_hidden, generator)
        self.reverse_flow = flow(inputs, flows[1], 2 * flow_hidden, generator)

    def forward(self, x: Tensor, groups: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """x W + b (rows, out) with `groups` z, one of them for each row in turn, and for each z its part of the bound (groups,)."""
        noise = Noise(
            normal(generator, (groups, self.inputs), x),
            self.flow.masks(groups, generator),
            normal(generator, (len(x), self.outputs), x),
            normal(generator, (groups, self.outputs), x),
            self.reverse_flow.masks(groups, generator),
        )
        return self.at(x, noise)

    def at(self, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        return _Layer.apply(self, x, noise, *self.parameters())

    def draw(self, n: int, generator: Generator) -> Tensor:  # (n, in)
        """Draws of z."""
        noise = normal(generator, (n, self.inputs), self.z_mean)
        return self.flow(torch.addcmul(self.z_mean, (0.5 * self.z_log_var).exp(), noise), generator)[0]

    def means(self, x: Tensor, z: Tensor) -> Tensor:  # (draws, rows, out)
        """E[x W + b | z] at x (draws or 1, rows, in), for every z (draws, in)."""
        if x.shape[-2] > self.outputs:  # z goes to the smaller factor
            return torch.matmul(x, z.unsqueeze(-1) * self.mean) + self.bias
        return torch.addmm(self.bias, (x * z.unsqueeze(-2)).flatten(0, 1), self.mean).unflatten(0, (len(z), -1))

    def std(self, x: Tensor) -> Tensor:  # (..., rows, out)
        """Standard deviation of x W + b given z; z has no part in it."""
        return (x.square() @ (2 * self.log_std).exp() + self.bias_log_var.exp()).sqrt()

    def log_reverse(self, z: Tensor, read: Tensor) -> tuple[Tensor, ...]:  # (groups,)
        """log-density of flow_r's z given c^T W = read (groups, out), and what the backward pass needs of it."""
        bent = read.tanh()
        level = bent.mean(-1, keepdim=True)
        free = level * self.reverse_log_precision
        log = functional.hardtanh(free, -BOUND, BOUND)  # beyond, its exponential could overflow
        distance = torch.addcmul(z, level, self.reverse_mean, value=-1)
        pull = log.exp() * distance
        log_prob = 0.5 * (torch.addcmul(log, pull, distance, value=-1).sum(-1) - self.inputs * LOG_2PI)
        return log_prob, bent, level, free, distance, pull


class _Layer(torch.autograd.Function):
    """The whole layer as one step of autograd: most of its arrays are small, and recording them costs more than the arithmetic."""

    @staticmethod
    def forward(ctx: Any, layer: MultiplicativeLinear, x: Tensor, noise: Noise, *parameters: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        mean, bias, reader, prior = layer.mean, layer.bias, layer.reader, layer.prior
        z_std = (0.5 * layer.z_log_var).exp_()
        z, log_det, kept = layer.flow.at(torch.addcmul(layer.z_mean, z_std, noise.z), noise.masks)

        scaled, square, variance, bias_var = _scale(x, z), x * x, (2 * layer.log_std).exp_(), layer.bias_log_var.exp()
        std = torch.addmm(bias_var, square, variance).sqrt_()
        out = torch.addmm(bias, scaled, mean).addcmul_(std, noise.out)

        sizes = (mean * mean).sum(1)
        total = z.square() @ sizes + (variance.sum() + bias.square().sum() + bias_var.sum())  # (groups,) E[|W|² + |b|² | z]
        constant = (mean.numel() + bias.numel()) * (math.log(prior) - 1)
        given = 0.5 * (total / prior + constant - layer.bias_log_var.sum()) - layer.log_std.sum()
        entropy = 0.5 * (layer.z_log_var.sum() + layer.inputs * (LOG_2PI + 1)) + log_det  # before the flow in expectation

        read_std = (reader.square() @ variance).sqrt_()
        read = torch.addcmul((reader * z) @ mean, read_std, noise.read)  # c^T W (groups, out)
        behind, reverse_log_det, reverse_kept = layer.reverse_flow.at(z, noise.reverse_masks)
        log_reverse, *guess = layer.log_reverse(behind, read)

        own = Kept(
            *(x, scaled, square, std, noise.out, z, z_std, noise.z, mean, sizes, variance, bias, bias_var),
            *(reader, read_std, noise.read, *guess, layer.reverse_mean, layer.reverse_log_precision),
        )
        ctx.save_for_backward(*own, *kept, *reverse_kept)
        ctx.layer, ctx.prior, ctx.middle = layer, prior, len(own) + len(kept)
        return out, given - entropy - (log_reverse + reverse_log_det)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor, d_bound: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        layer, prior, tensors = ctx.layer, ctx.prior, ctx.saved_tensors
        count = len(Kept._fields)
        own, kept, reverse_kept = Kept(*tensors[:count]), tensors[count : ctx.middle], tensors[ctx.middle :]
        z, mean, reader, variance = own.z, own.mean, own.reader, own.variance
        each, whole = d_bound.unsqueeze(-1), float(d_bound.sum())  # (groups, 1)

        # r: towards its Gaussian's mean, its log-precision, and c^T W
        d_shift = -each * own.pull
        d_log = aten.hardtanh_backward(torch.addcmul(each, d_shift, own.distance).mul_(-0.5), own.free, -BOUND, BOUND)
        d_level = (d_shift @ own.reverse_mean + d_log @ own.reverse_log_precision).unsqueeze(-1) / layer.outputs
        d_read = aten.tanh_backward(d_level.expand_as(own.bent), own.bent)
        d_z, reverse_gradients = layer.reverse_flow.backward(reverse_kept, -d_shift, -d_bound)
        d_both = d_read @ mean.T  # (groups, in): towards c z
        d_read_var = (d_read * own.read_noise).sum(0).div_(own.read_std)  # (out,) twice that of the variance of c^T W
        d_reader = (d_both * z).sum(0).addcmul_(reader, variance @ d_read_var)

        # the products, and the KL given z
        d_scaled, d_var = d @ mean.T, (d * own.noise).div_(own.std)  # the latter twice that of the variance
        d_z = d_z.addcmul_(d_both, reader).addcmul_(each * z, own.sizes, value=1 / prior).add_(_fold(d_scaled * own.x, len(z)))
        d_mean = mean * (each * z.square()).sum(0).div_(prior).unsqueeze(-1)
        d_mean.addmm_((reader * z).T, d_read).addmm_(own.scaled.T, d)
        d_log_std = (own.square.T @ d_var).addr_(reader.square(), d_read_var).add_(whole / prior).mul_(variance).sub_(whole)
        d_bias = torch.add(d.sum(0), own.bias, alpha=whole / prior)
        d_bias_log_var = (d_var.sum(0) + whole / prior).mul_(own.bias_var).sub_(whole).mul_(0.5)
        d_x = _scale(d_scaled, z).addcmul_(own.x, d_var @ variance.T) if ctx.needs_input_grad[1] else None

        d_z, gradients = layer.flow.backward(kept, d_z, -d_bound)
        d_z_log_var = (d_z * own.z_noise).sum(0).mul_(own.z_std).sub_(whole).mul_(0.5)
        gaussian = (d_mean, d_log_std, d_bias, d_bias_log_var, d_z.sum(0), d_z_log_var)
        guess = (d_reader, (own.level * d_shift).sum(0), (own.level * d_log).sum(0))
        return None, d_x, None, *gaussian, *guess, *gradients, *reverse_gradients


def _scale(x: Tensor, z: Tensor) -> Tensor:
    """Row k of x times z number k modulo their count."""
    if len(x) % len(z):
        return x * z.repeat(len(x) // len(z) + 1, 1)[: len(x)]
    return (x.view(-1, *z.shape) * z).view_as(x)


def _fold(x: Tensor, groups: int) -> Tensor:  # (groups, in)
    """Sums of the rows of each group."""
    whole = x if len(x) % groups == 0 else functional.pad(x, (0, 0, 0, -len(x) % groups))
    return whole.view(-1, groups, x.shape[-1]).sum(0)
