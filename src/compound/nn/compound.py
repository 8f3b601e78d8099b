"""Probabilistic hypernetworks, and the compound linear layer they drive.

A layer's weights have a law that depends on its own input h:

    W | h ~ MN( diag(s(h)) V, diag(exp lr(h)), diag(exp lc(h)) ),      (s, lr, lc) = heads of g(h; ψ)

g is a small network. Maximum likelihood learns its weights ψ; variational Bayes learns a matrix-Gaussian posterior for each
of its maps. Kristiadi, Däubener and Fischer (2019), section 3; `scaled` is the fan-in scaled form, `paper` the published one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from compound.nn.matrix_gaussian import Affine, MatrixGaussianLinear, append_ones, correlated_noise
from compound.ops.fused import ACTIVATIONS, compound_layer
from compound.ops.gaussian_noise import standard_normal
from compound.ops.jit import can_use_kernel
from compound.ops.moments import Gaussian, Options, forward, matmul, moments
from compound.precision import full_precision
from compound.random import Generators


@dataclass(frozen=True)
class CompoundConfig:
    """How a compound layer is parametrised and where it starts."""

    hyper: tuple[int, ...] = (50,)  # hidden widths of the hypernetwork
    activation: Literal["relu", "tanh"] = "relu"
    bayes: bool = False  # variational posterior over ψ
    parametrization: Literal["scaled", "paper"] = "scaled"
    basis: Literal["point", "map", "vmg"] = (
        "point"  # how V is treated: no prior, a Gaussian prior, its own posterior
    )
    log_col: float = -4.0  # where lc starts, and its prior mean (scaled)
    small: bool = (
        False  # published start for classes (True) or for the toy regressions (False), paper form only
    )

    @property
    def scaled(self) -> bool:
        return self.parametrization == "scaled"

    @property
    def bound(self) -> float:
        """Log-variances stay within ± this: at 20 a third layer of the scaled form would overflow."""
        return 10.0 if self.scaled else 20.0


class HyperNetwork(nn.Module):
    """g(h; ψ): affine maps with a nonlinearity between, the last one giving all three heads (s, lr, lc) side by side."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        form: CompoundConfig,
        generator: Generators,
        members: tuple[int, ...] = (),
    ):
        super().__init__()
        self.activation = form.activation
        self.heads = (inputs + 1, inputs + 1, outputs)
        widths = (inputs, *form.hyper)
        maps = [_hidden(a, b, form, generator, members) for a, b in zip(widths, widths[1:], strict=False)]
        self.maps = nn.ModuleList([*maps, _heads(widths[-1], self.heads, form, generator, members)])

    @full_precision
    def forward(self, wide: Tensor, generator: Generators, shared: tuple[int, int] = (1, 1)) -> Tensor:
        """The heads' values (*members, rows, 2 (in + 1) + out) at h~, with a draw of ψ per row.

        `shared`: in how many equal parts the rows come that share ψ, for the hidden maps and for the heads.
        """
        *hidden, last = self.maps
        for layer in hidden:
            wide = append_ones(ACTIVATIONS[self.activation](layer(wide, generator, shared[0])))
        return last(wide, generator, shared[1])

    def draw(self, generator: Generator) -> list[Tensor]:
        """One draw of ψ: the weights of every map."""
        return [layer.draw(generator) for layer in self.maps]  # type: ignore[operator, misc]

    @full_precision
    def at(self, wide: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """The heads' values for given weights, the same for all rows."""
        for weight in weights[:-1]:
            wide = append_ones(ACTIVATIONS[self.activation](matmul(wide, weight)))
        return matmul(wide, weights[-1])

    def kl(self) -> Tensor:  # (*members,)
        return torch.stack([layer.kl() for layer in self.maps]).sum(0)  # type: ignore[operator]


class CompoundLinear(nn.Module):
    """A linear layer whose weights are drawn anew for every input, from a law given by its own hypernetwork.

    `layer(x, generator)` maps (rows, in) to the exact Gaussian over pre-activations; draw from it with `.draw(noise)`. Inside
    `torch.utils.checkpoint`, which computes it twice, make the generator in the function that is checkpointed.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        form: CompoundConfig,
        generator: Generators,
        members: tuple[int, ...] = (),
    ):
        super().__init__()
        self.form = form
        self.inputs, self.outputs = inputs, outputs
        self.hyper = HyperNetwork(inputs, outputs, form, generator, members)
        start = _basis(inputs, outputs, form, generator, members)
        self.basis = nn.Parameter(start)  # V, or the mean of its posterior; (*members, in + 1, out)
        self.basis_variance = 2.0 / (inputs + 1) if form.scaled else 1.0  # of V's prior
        if form.basis == "vmg":
            self.log_row = nn.Parameter(
                start.new_full((*members, inputs + 1), 0.5 * (math.log(self.basis_variance) - 6))
            )
            self.log_col = nn.Parameter(
                start.new_full((*members, outputs), 0.5 * (math.log(self.basis_variance) - 6))
            )

    @full_precision
    def forward(
        self, x: Tensor, generator: Generators, shared: tuple[int, int] = (1, 1), kl: bool = True
    ) -> Gaussian:
        """Pre-activations of x (*members, rows, in), ψ drawn per row (shared by `shared` equal parts of the rows)."""
        return self.over(append_ones(x), generator, shared, kl)

    @full_precision
    def over(
        self, wide: Tensor, generator: Generators, shared: tuple[int, int] = (1, 1), kl: bool = True
    ) -> Gaussian:
        """The same of h~ = [x; 1]."""
        options = Options(self.form.bound, self.form.scaled, kl)
        if (
            self.form.basis != "vmg"
            and (shared == (1, 1) or not self.form.bayes)
            and can_use_kernel(wide, self.basis)
        ):
            maps: list[Any] = list(self.hyper.maps)
            return compound_layer(wide, maps, self.hyper.activation, self.basis, options, generator)
        heads = self.hyper(wide, generator, shared)
        out = moments(wide, heads, self.basis, options)
        if self.form.basis != "vmg":
            return out
        # V's own posterior adds noise to s * h~, with the rows that share ψ sharing it too
        scaled = heads[..., : self.inputs + 1] * wide
        noise = standard_normal(generator, out.mean.shape, out.mean)
        row = self.log_row.exp()
        noise = (
            correlated_noise(scaled, row, noise, shared[1])
            if shared[1] > 1
            else noise * (scaled.square() @ row.unsqueeze(-1)).sqrt()
        )
        return out._replace(mean=torch.addcmul(out.mean, noise, (0.5 * self.log_col).exp().unsqueeze(-2)))

    def draw(self, generator: Generator) -> tuple[list[Tensor], Tensor]:
        """One draw of everything that more data would settle: the hypernetwork's weights, and V."""
        weights = self.hyper.draw(generator)
        if self.form.basis != "vmg":
            return weights, self.basis
        std = (0.5 * (self.log_row.unsqueeze(-1) + self.log_col.unsqueeze(-2))).exp()
        return weights, torch.addcmul(
            self.basis, std, standard_normal(generator, self.basis.shape, self.basis)
        )

    @full_precision
    def at(self, x: Tensor, psi: tuple[list[Tensor], Tensor]) -> Gaussian:
        """Pre-activations for a draw of ψ, the same for all rows."""
        weights, basis = psi
        wide = append_ones(x)
        heads, options = self.hyper.at(wide, weights), Options(self.form.bound, self.form.scaled, kl=False)
        if torch.is_grad_enabled() or not can_use_kernel(wide, heads, basis):
            return moments(wide, heads, basis, options)
        return forward(wide, heads, basis, options)[0]

    def kl(self) -> Tensor:  # (*members,)
        """KL of the posterior over ψ, and what V's own treatment adds."""
        total = self.hyper.kl()
        r, c = self.basis.shape[-2:]
        square = self.basis.square().sum((-2, -1)) / self.basis_variance
        if self.form.basis == "map":
            total = total + 0.5 * square
        elif self.form.basis == "vmg":
            trace = self.log_row.exp().sum(-1) * self.log_col.exp().sum(-1) / self.basis_variance
            log_ratio = (
                c * self.log_row.sum(-1) + r * self.log_col.sum(-1) - r * c * math.log(self.basis_variance)
            )
            total = total + 0.5 * (trace + square - r * c - log_ratio)
        return total


_FLOAT = torch.empty(0, dtype=torch.float32)  # the dtype weights start in


def _uniform(generator: Generators, shape: tuple[int, ...], high: float) -> Tensor:
    """U(-high, high), by the normal cdf so that members' streams work alike."""
    return high * (2 * torch.special.ndtr(standard_normal(generator, shape, _FLOAT)) - 1)


def _hidden(
    inputs: int, outputs: int, form: CompoundConfig, generator: Generators, members: tuple[int, ...]
) -> nn.Module:
    shape = (*members, inputs + 1, outputs)
    if form.scaled:
        start = standard_normal(generator, shape, _FLOAT) * 0.5 * math.sqrt(2 / (inputs + 1))
        start[..., -1, :] = 0
        if form.bayes:
            return MatrixGaussianLinear(start, log_variance=-4.0, prior_variance=(1 / (inputs + 1),))
        return Affine(start)
    if form.bayes:
        return MatrixGaussianLinear(standard_normal(generator, shape, _FLOAT) * math.sqrt(2 / outputs))
    return _published(inputs, outputs, form, generator, members)


def _heads(
    inputs: int,
    heads: tuple[int, int, int],
    form: CompoundConfig,
    generator: Generators,
    members: tuple[int, ...],
) -> nn.Module:
    shape = (*members, inputs + 1, sum(heads))
    if form.scaled:
        bias = torch.cat(
            [
                torch.full((n,), value, dtype=torch.float32)
                for n, value in zip(heads, (1.0, 0.0, form.log_col), strict=True)
            ]
        )
        start = standard_normal(generator, shape, _FLOAT) * 0.1 * math.sqrt(2 / (inputs + 1))
        start[..., -1, :] = bias
        if form.bayes:
            variances = tuple(v / (inputs + 1) for v in (0.01, 0.1, 1.0))
            return MatrixGaussianLinear(start, heads, -4.0, variances, bias)
        return Affine(start)
    if form.bayes:
        start = torch.cat(
            [standard_normal(generator, (*shape[:-1], n), _FLOAT) * math.sqrt(2 / n) for n in heads], -1
        )
        return MatrixGaussianLinear(start, heads, -3.0, (1.0, 1.0, 1.0))
    return _published(inputs, sum(heads), form, generator, members)


def _published(
    inputs: int, outputs: int, form: CompoundConfig, generator: Generators, members: tuple[int, ...]
) -> Affine:
    """Where the published maximum-likelihood hypernetworks start: biases as torch has them, weights too or almost 0."""
    high = 1 / math.sqrt(inputs)
    weight = _uniform(generator, (*members, inputs + 1, outputs), high)
    if form.small:
        weight[..., :-1, :] *= 1e-4 / high
    return Affine(weight)


def _basis(
    inputs: int, outputs: int, form: CompoundConfig, generator: Generators, members: tuple[int, ...]
) -> Tensor:
    shape = (*members, inputs + 1, outputs)
    if form.scaled:
        return standard_normal(generator, shape, _FLOAT) * math.sqrt(2 / (inputs + 1))
    if form.bayes:  # Kaiming, the fan read from the second axis
        return standard_normal(generator, shape, _FLOAT) * math.sqrt(2 / outputs)
    return standard_normal(generator, shape, _FLOAT) if form.small else _uniform(generator, shape, 1e-4)
