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

from compound.nn.flows import flow, start
from compound.nn.mean_field import spread
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
    scaled: Tensor  # (rows, in) x z, or x² where nobody asks for a gradient towards x
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
    read_std: Tensor  # (out,)
    read_noise: Tensor  # (groups, out)
    bent: Tensor  # (groups, out) tanh(c^T W)
    level: Tensor  # (groups, 1) s
    free: Tensor  # (groups, in) log-precisions before their bound
    distance: Tensor  # (groups, in)
    pull: Tensor  # (groups, in) distance times precision


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
        self.mean = nn.Parameter(start(generator, inputs, outputs))  # M
        self.log_std = nn.Parameter(torch.full((inputs, outputs), log_std))  # log S
        self.bias = nn.Parameter(torch.stack([torch.zeros(outputs), torch.full((outputs,), -9.0)]))  # μ_b and log v_b
        first = start(generator, inputs) + float(flows[0] == 0)  # a flow finds the level of z by itself
        guess = [start(generator, inputs) for _ in range(3)]
        self.vectors = nn.Parameter(torch.stack([first, torch.full((inputs,), math.log(0.1)), *guess]))  # m_0, log v_0, c, b_1, b_2
        self.flow = flow(inputs, flows[0], flow_hidden, generator)
        self.reverse_flow = flow(inputs, flows[1], flow_hidden, generator)

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
        own = (self.mean, self.log_std, self.bias, self.vectors)
        return _Layer.apply(self, x, noise, *own, *self.flow.parameters(), *self.reverse_flow.parameters())

    def draw(self, n: int, generator: Generator) -> Tensor:  # (n, in)
        """Draws of z."""
        mean, log_var, *_ = self.vectors
        return self.flow(torch.addcmul(mean, log_var.exp().sqrt(), normal(generator, (n, self.inputs), mean)), generator)[0]

    def means(self, x: Tensor, z: Tensor) -> Tensor:  # (draws, rows, out)
        """E[x W + b | z] at x (draws or 1, rows, in), for every z (draws, in)."""
        if x.shape[-2] > self.outputs:  # z goes to the smaller factor
            return torch.baddbmm(self.bias[0], x.expand(len(z), -1, -1), z.unsqueeze(-1) * self.mean)
        return torch.addmm(self.bias[0], (x * z.unsqueeze(-2)).flatten(0, 1), self.mean).unflatten(0, (len(z), -1))

    def std(self, x: Tensor) -> Tensor:  # (..., rows, out)
        """Standard deviation of x W + b given z; z has no part in it."""
        return (x.square() @ self.log_std.exp().square() + self.bias[1].exp()).sqrt()


class _Layer(torch.autograd.Function):
    """The whole layer as one step of autograd: most of its arrays are small, and recording them costs more than the arithmetic."""

    @staticmethod
    def forward(ctx: Any, layer: MultiplicativeLinear, x: Tensor, noise: Noise, *parameters: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        mean, log_std, prior, (bias, bias_log_var) = layer.mean, layer.log_std, layer.prior, layer.bias
        z_mean, z_log_var, reader, centre, log_precision = layer.vectors
        z_std = z_log_var.exp().sqrt_()
        z, log_det, kept = layer.flow.at(torch.addcmul(z_mean, z_std, noise.z), noise.masks)

        variance, sizes, trace, logs = spread(mean, log_std)
        scaled, bias_var = _scale(x, z), bias_log_var.exp()
        out = torch.addmm(bias, scaled, mean)
        square = x * x if ctx.needs_input_grad[1] else torch.mul(x, x, out=scaled)  # only a gradient towards x asks for x z again
        std = torch.addmm(bias_var, square, variance).sqrt_()
        out.addcmul_(std, noise.out)

        free_of_z = (trace + float(bias_var.sum() + bias.dot(bias))) / prior  # E[|W|² + |b|² | z] without z² M²
        numbers = (layer.inputs + 1) * layer.outputs
        given = 0.5 * (free_of_z + numbers * (math.log(prior) - 1)) - logs - 0.5 * float(bias_log_var.sum())
        entropy = 0.5 * (float(z_log_var.sum()) + layer.inputs)  # of z_0, in place of -log q(z_0); log 2π is in r's density, too
        bound = torch.addmv(z.new_full((len(z),), given - entropy), z.square(), sizes, alpha=0.5 / prior)

        read_std = torch.mv(variance.t(), reader.square()).sqrt_()
        read = torch.addcmul(torch.mm(reader * z, mean), read_std, noise.read)  # c^T W (groups, out)
        behind, reverse_log_det, reverse_kept = layer.reverse_flow.at(z, noise.reverse_masks)
        log_reverse, *guess = _guess(behind, read, centre, log_precision)
        bound.sub_(log_det).sub_(log_reverse, alpha=0.5).sub_(reverse_log_det)

        random = (std, noise.out, z, z_std, noise.z)
        own = Kept(x, scaled, square, *random, mean, sizes, variance, layer.bias, bias_var, layer.vectors, read_std, noise.read, *guess)
        ctx.save_for_backward(*own, *kept, *reverse_kept)
        ctx.layer, ctx.middle = layer, len(own) + len(kept)
        return out, bound

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor, d_bound: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        layer, prior, tensors = ctx.layer, ctx.layer.prior, ctx.saved_tensors
        count = len(Kept._fields)
        own, kept, reverse_kept = Kept(*tensors[:count]), tensors[count : ctx.middle], tensors[ctx.middle :]
        x, z, mean, variance = own.x, own.z, own.mean, own.variance
        _, _, reader, centre, log_precision = own.vectors
        each, summed = d_bound.unsqueeze(-1), d_bound.sum()  # (groups, 1), ()
        whole = summed.item()
        d_log_det = -d_bound

        # r: towards its Gaussian's mean, its log-precision, and c^T W
        d_z = each * own.pull  # towards flow_r(z), and against the mean
        d_log = aten.hardtanh_backward(torch.addcmul(-0.5 * each, d_z, own.distance, value=0.5), own.free, -BOUND, BOUND)
        d_level = torch.addmv(torch.mv(d_log, log_precision), d_z, centre, alpha=-1).unsqueeze(-1) / layer.outputs
        d_read = aten.tanh_backward(d_level.expand_as(own.bent), own.bent)
        d_centre, d_log_precision = torch.mm(own.level.t(), d_z).neg_(), torch.mm(own.level.t(), d_log)  # (1, in)
        d_z, reverse_gradients = layer.reverse_flow.backward(reverse_kept, d_z, d_log_det)
        d_both = torch.mm(d_read, mean.t())  # (groups, in): towards c z
        d_read_var = (d_read * own.read_noise).sum(0).div_(own.read_std)  # (out,) twice that of the variance of c^T W
        d_reader = (d_both * z).sum(0).addcmul_(reader, torch.mv(variance, d_read_var))

        # the products, and the KL given z
        pulled = each * z
        d_z = d_z.addcmul_(d_both, reader).addcmul_(pulled, own.sizes, value=1 / prior)
        d_mean = mean * (pulled * z).sum(0).div_(prior).unsqueeze(-1)
        d_mean.addmm_((reader * z).t(), d_read)
        d_var = (d * own.noise).div_(own.std)  # twice that of the variance
        d_x = None
        if ctx.needs_input_grad[1]:
            d_scaled = torch.mm(d, mean.t())
            d_x = _scale(d_scaled, z).addcmul_(x, torch.mm(d_var, variance.t()))
            d_z += _fold(d_scaled.mul_(x), len(z))
            d_mean.addmm_(own.scaled.t(), d)
        else:  # the groups' own products x^T d give both gradients, without a product with M
            for k, row in enumerate(z):
                part = torch.mm(x[k :: len(z)].t(), d[k :: len(z)])  # (in, out)
                d_mean.addcmul_(part, row.unsqueeze(-1))
                d_z[k] += part.mul_(mean).sum(1)
        d_log_std = torch.full_like(variance, whole / prior).addmm_(own.square.t(), d_var).addr_(reader.square(), d_read_var)
        torch.addcmul(-summed, d_log_std, variance, out=d_log_std)
        d_bias = torch.add(d.sum(0), own.bias[0], alpha=whole / prior)
        d_bias_log_var = (d_var.sum(0) + whole / prior).mul_(own.bias_var).sub_(whole).mul_(0.5)

        d_z, gradients = layer.flow.backward(kept, d_z, d_log_det)
        d_z_log_var = (d_z * own.z_noise).sum(0).mul_(own.z_std).sub_(whole).mul_(0.5)
        d_vectors = torch.cat([torch.stack([d_z.sum(0), d_z_log_var, d_reader]), d_centre, d_log_precision])
        own_gradients = (d_mean, d_log_std, torch.stack([d_bias, d_bias_log_var]), d_vectors)
        return None, d_x, None, *own_gradients, *gradients, *reverse_gradients


def _guess(z: Tensor, read: Tensor, centre: Tensor, log_precision: Tensor) -> tuple[Tensor, ...]:  # (groups,)
    """2 log N(z; s b_1, exp(-s b_2)) without its constant, for s from c^T W = read (groups, out); then what the backward pass needs."""
    bent = read.tanh()
    level = bent.mean(-1, keepdim=True)
    free = level * log_precision
    log = functional.hardtanh(free, -BOUND, BOUND)  # beyond, its exponential could overflow
    distance = torch.addcmul(z, level, centre, value=-1)
    pull = log.exp() * distance
    return torch.addcmul(log, pull, distance, value=-1).sum(-1), bent, level, free, distance, pull


def _scale(x: Tensor, z: Tensor) -> Tensor:
    """Row k of x times z number k modulo their count."""
    if len(x) % len(z):
        return x * z.repeat(len(x) // len(z) + 1, 1)[: len(x)]
    return (x.reshape(-1, *z.shape) * z).reshape(x.shape)


def _fold(x: Tensor, groups: int) -> Tensor:  # (groups, in)
    """Sums of the rows of each group."""
    whole = x if len(x) % groups == 0 else functional.pad(x, (0, 0, 0, -len(x) % groups))
    return whole.reshape(-1, groups, x.shape[-1]).sum(0)
