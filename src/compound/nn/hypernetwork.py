"""The hypernetwork of a compound layer, its configuration, and the initial values of both."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Generator, Tensor, nn

from compound.nn.matrix_gaussian import Affine, MatrixGaussianLinear
from compound.ops.affine import append_ones, matmul
from compound.ops.gaussian_noise import standard_normal
from compound.precision import full_precision
from compound.random import Generators

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "tanh": torch.tanh}
FLOAT32 = torch.empty(0, dtype=torch.float32)  # the dtype of initial weights


@dataclass(frozen=True)
class CompoundConfig:
    """Parametrisation and initial values of a compound layer.

    Parameters
    ----------
    hyper : tuple of int, default (50,)
        Hidden widths of the hypernetwork.
    activation : {"relu", "tanh"}, default "relu"
        Activation of the hypernetwork.
    bayes : bool, default False
        Whether the hypernetwork's weights have a variational posterior.
    parametrization : {"scaled", "paper"}, default "scaled"
        Weight variances divided by the fan-in, or as published.
    basis : {"point", "map", "vmg"}, default "point"
        Treatment of V: no prior, a Gaussian prior, or a matrix-Gaussian posterior of its own.
    log_col : float, default -4.0
        Initial value and prior mean of the column log-variances (scaled form).
    small : bool, default False
        Published initial values for classification (True) or for the toy regressions (False); paper form
        only.
    gradients : {"local", "weights"}, default "local"
        Gradients of local reparametrisation, or, as published, those of weights that are drawn for every row.

    Examples
    --------
    >>> from compound.nn import CompoundConfig
    >>> CompoundConfig(hyper=(20,), bayes=True).bound
    10.0
    """

    hyper: tuple[int, ...] = (50,)
    activation: Literal["relu", "tanh"] = "relu"
    bayes: bool = False
    parametrization: Literal["scaled", "paper"] = "scaled"
    basis: Literal["point", "map", "vmg"] = "point"
    log_col: float = -4.0
    small: bool = False
    gradients: Literal["local", "weights"] = "local"

    @property
    def scaled(self) -> bool:
        """Whether weight variances are divided by the fan-in."""
        return self.parametrization == "scaled"

    @property
    def bound(self) -> float:
        """Log-variances are clamped to ± this: at 20 a third layer of the scaled form would overflow."""
        return 10.0 if self.scaled else 20.0


class HyperNetwork(nn.Module):
    """g(h; ψ): affine maps with an activation between them; the last one gives all three heads (s, lr, lc).

    Parameters
    ----------
    inputs, outputs : int
        Inputs and outputs of the layer whose weights the hypernetwork describes.
    config : CompoundConfig
        Widths, activation, and whether ψ has a posterior.
    generator : torch.Generator or sequence of torch.Generator
        Source of the initial weights: one, or one per member.
    members : tuple of int, default ()
        Shape of independent networks computed together, such as (5,).
    context : int, optional
        Inputs of the hypernetwork itself, where these are not the layer's.
    groups : int, optional
        Groups of inputs that share entries of s and lr; by default every input has its own.

    Examples
    --------
    >>> import torch
    >>> from compound.nn import CompoundConfig, HyperNetwork
    >>> network = HyperNetwork(3, 2, CompoundConfig(), torch.Generator().manual_seed(0))
    >>> network(torch.ones(7, 4), torch.Generator()).shape  # 4 scales, 4 row and 2 column log-variances
    torch.Size([7, 10])
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        config: CompoundConfig,
        generator: Generators,
        members: tuple[int, ...] = (),
        context: int | None = None,
        groups: int | None = None,
    ):
        super().__init__()
        self.activation = config.activation
        self.width = sum(config.hyper)  # hidden units, of all layers
        groups = inputs if groups is None else groups
        self.heads = (groups + 1, groups + 1, outputs)
        widths = (inputs if context is None else context, *config.hyper)
        pairs = zip(widths, widths[1:], strict=False)
        maps = [_init_hidden(a, b, config, generator, members) for a, b in pairs]
        self.maps = nn.ModuleList([*maps, _init_heads(widths[-1], self.heads, config, generator, members)])

    @full_precision
    def forward(self, x_aug: Tensor, generator: Generators, shared: tuple[int, int] = (1, 1)) -> Tensor:
        """The values (s, lr, lc) of the heads for every row, each with its own draw of ψ.

        Parameters
        ----------
        x_aug : Tensor of shape (*members, rows, in + 1)
            Inputs with a constant 1 appended.
        generator : torch.Generator or sequence of torch.Generator
            Source of the noise of ψ; not used without a posterior.
        shared : tuple of two int, default (1, 1)
            The rows come in this many equal parts, and row b of every part uses the same ψ: in the hidden
            layers, and in the last layer.

        Returns
        -------
        Tensor of shape (*members, rows, 2 (in + 1) + out)
        """
        parts = [shared[0]] * (len(self.maps) - 1) + [shared[1]]
        layers = zip(self.maps, parts, strict=True)
        return self._chain(x_aug, (partial(layer, generator=generator, shared=n) for layer, n in layers))

    def draw(self, generator: Generator) -> list[Tensor]:
        """One draw of ψ: the weights of every map, (*members, in + 1, out) each."""
        return [cast(Any, layer).draw(generator) for layer in self.maps]

    @full_precision
    def forward_given(self, x_aug: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """The heads' values, as from `forward`, with one ψ for all rows: `weights` from `draw`."""
        return self._chain(x_aug, (partial(matmul, b=weight) for weight in weights))

    def _chain(self, x_aug: Tensor, maps: Iterable[Callable[[Tensor], Tensor]]) -> Tensor:
        """Apply the maps in turn, with the activation and an appended 1 between them."""
        *hidden, last = maps
        for layer in hidden:
            x_aug = append_ones(ACTIVATIONS[self.activation](layer(x_aug)))
        return last(x_aug)

    def kl(self) -> Tensor:
        """The KL of the posterior over ψ to its prior, (*members,); 0 without a posterior."""
        return torch.stack([cast(Any, layer).kl() for layer in self.maps]).sum(0)


def init_basis(
    inputs: int, outputs: int, config: CompoundConfig, generator: Generators, members: tuple[int, ...]
) -> Tensor:  # (*members, in + 1, out)
    """Initial values of V, the basis of the mean diag(s) V of a compound layer's weights."""
    shape = (*members, inputs + 1, outputs)
    if config.scaled:
        return standard_normal(generator, shape, FLOAT32) * math.sqrt(2 / (inputs + 1))
    if config.bayes:  # Kaiming, with the fan of the second axis
        return standard_normal(generator, shape, FLOAT32) * math.sqrt(2 / outputs)
    return standard_normal(generator, shape, FLOAT32) if config.small else _uniform(generator, shape, 1e-4)


def _uniform(generator: Generators, shape: tuple[int, ...], high: float) -> Tensor:
    """Draws from U(-high, high): the normal cdf of draws that may use one generator per member."""
    return high * (2 * torch.special.ndtr(standard_normal(generator, shape, FLOAT32)) - 1)


def _init_hidden(
    inputs: int, outputs: int, config: CompoundConfig, generator: Generators, members: tuple[int, ...]
) -> nn.Module:
    """A hidden map of the hypernetwork, with a posterior if `config.bayes`."""
    shape = (*members, inputs + 1, outputs)
    if config.scaled:
        weight = standard_normal(generator, shape, FLOAT32) * 0.5 * math.sqrt(2 / (inputs + 1))
        weight[..., -1, :] = 0
        if config.bayes:
            return MatrixGaussianLinear(weight, (), -4.0, (1 / (inputs + 1),), gradients=config.gradients)
        return Affine(weight)
    if config.bayes:
        mean = standard_normal(generator, shape, FLOAT32) * math.sqrt(2 / outputs)
        return MatrixGaussianLinear(mean, gradients=config.gradients)
    return _init_published(inputs, outputs, config, generator, members)


def _init_heads(
    inputs: int,
    heads: tuple[int, int, int],
    config: CompoundConfig,
    generator: Generators,
    members: tuple[int, ...],
) -> nn.Module:
    """The last map of the hypernetwork, to s, lr and lc; with a posterior if `config.bayes`."""
    shape = (*members, inputs + 1, sum(heads))
    if config.scaled:
        values = zip(heads, (1.0, 0.0, config.log_col), strict=True)
        bias = torch.cat([torch.full((n,), value, dtype=torch.float32) for n, value in values])
        weight = standard_normal(generator, shape, FLOAT32) * 0.1 * math.sqrt(2 / (inputs + 1))
        weight[..., -1, :] = bias
        if config.bayes:
            variances = tuple(v / (inputs + 1) for v in (0.01, 0.1, 1.0))
            return MatrixGaussianLinear(weight, heads, -4.0, variances, bias, config.gradients)
        return Affine(weight)
    if config.bayes:
        weights = [standard_normal(generator, (*shape[:-1], n), FLOAT32) * math.sqrt(2 / n) for n in heads]
        mean = torch.cat(weights, -1)
        return MatrixGaussianLinear(mean, heads, -3.0, (1.0, 1.0, 1.0), gradients=config.gradients)
    return _init_published(inputs, sum(heads), config, generator, members)


def _init_published(
    inputs: int, outputs: int, config: CompoundConfig, generator: Generators, members: tuple[int, ...]
) -> Affine:
    """An affine map with the published initial values of maximum likelihood.

    Those of `nn.Linear`; with `config.small`, its weights (not its biases) are scaled to near 0.
    """
    high = 1 / math.sqrt(inputs)
    weight = _uniform(generator, (*members, inputs + 1, outputs), high)
    if config.small:
        weight[..., :-1, :] *= 1e-4 / high
    return Affine(weight)
