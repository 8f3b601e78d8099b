"""What all compound layers share: a hypernetwork, its posterior, and how a pass draws from it.

In variational Bayes a row's ψ is one draw for all calls of a layer in a pass. Drawing a matrix for every row
would be slow: one noise matrix E per map and pass is multiplied by signs a of each row's own,

    W_ψ = mean + diag(a) diag(row) E diag(col),

which has the law of the posterior for every row, and is uncorrelated between rows (Wen et al. 2018, flipout).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Self, cast

import torch
from torch import Generator, Tensor, nn

from compound.nn.draws import Draws
from compound.nn.hypernetwork import ACTIVATIONS, FLOAT32, CompoundConfig, HyperNetwork
from compound.nn.matrix_gaussian import Affine, MatrixGaussianLinear
from compound.ops.affine import append_ones
from compound.ops.gaussian_noise import standard_normal

LOG_COL = -6.0  # of weights at the start: noise of 5% of the inputs' root mean square


def initial_normal(generator: Generator | None, shape: Sequence[int]) -> Tensor:
    """Standard normal numbers in float32, from torch's own generator by default."""
    source = torch.default_generator if generator is None else generator
    return standard_normal(source, shape, FLOAT32)


class FlipoutWeights(NamedTuple):
    """Weights of one map of the hypernetwork: a mean, and a deviation times the signs of each example."""

    mean: Tensor  # (in + 1, out)
    deviation: Tensor | None = None  # (in + 1, out)
    signs: Tensor | None = None  # (rows, in + 1)

    def __call__(self, x_aug: Tensor) -> Tensor:  # (rows, ..., in + 1) -> (rows, ..., out)
        if self.deviation is None:
            return x_aug @ self.mean
        if self.signs is None:
            return x_aug @ (self.mean + self.deviation)
        signs = self.signs.view(self.signs.shape[0], *[1] * (x_aug.ndim - 2), -1)
        return x_aug @ self.mean + (x_aug * signs) @ self.deviation


class Heads(NamedTuple):
    """Scales, and log-variances of rows and columns, of weights with (rows + 1) x columns entries."""

    scale: Tensor  # (..., in + 1)
    log_row: Tensor  # (..., in + 1)
    log_col: Tensor  # (..., out)


class CompoundLayer(nn.Module, ABC):
    """Base class of compound layers: weights whose distribution a hypernetwork computes from a context."""

    plain: ClassVar[tuple[type[nn.Module], ...]]  # torch's layers that `from_layer` takes

    def __init__(
        self,
        context: int,  # numbers that the hypernetwork sees
        inputs: int,  # scales and row variances, less one for the bias
        outputs: int,  # column variances
        hidden: Sequence[int],
        bayes: bool,
        log_col: float,
        generator: Generator | None,
    ):
        super().__init__()
        if not hidden or min(hidden) < 1:
            raise ValueError(f"hidden is {tuple(hidden)}: give the width of at least one hidden layer")
        self.bayes = bayes
        config = CompoundConfig(tuple(hidden), "tanh" if bayes else "relu", bayes, log_col=log_col)
        self.bound = config.bound
        source = torch.default_generator if generator is None else generator
        self.hyper = HyperNetwork(inputs, outputs, config, source, context=context)

    @classmethod
    @abstractmethod
    def from_layer(
        cls,
        layer: nn.Module,
        *,
        hidden: Sequence[int] = (50,),
        bayes: bool = False,
        log_col: float = LOG_COL,
        generator: Generator | None = None,
    ) -> Self:
        """A compound layer that starts at the weights of a trained layer, whose parameters it takes over."""

    def _take_over(self, layer: nn.Module, names: Mapping[str, str]) -> Self:
        """Use the parameters of a layer, its dtype, device and mode; the mean of the weights becomes its own.

        `names` are the layer's names of the parameters.
        """
        weight = cast(Tensor, getattr(layer, next(iter(names.values()))))
        self.to(weight.device, weight.dtype)
        for name, theirs in names.items():
            setattr(self, name, getattr(layer, theirs))
        with torch.no_grad():
            last = self.hyper.maps[-1]
            heads = last.mean if isinstance(last, MatrixGaussianLinear) else cast(Affine, last).weight
            heads[:-1, : self.hyper.heads[0]] = 0  # every scale is 1
        return self.train(layer.training)

    def psi(self, draws: Draws | None, rows: int) -> list[FlipoutWeights]:
        """The hypernetwork's weights for every row: the same in all calls of a pass, means without a pass."""
        maps = cast(list[Affine | MatrixGaussianLinear], list(self.hyper.maps))
        if draws is None or not self.bayes:
            return [FlipoutWeights(m.mean if isinstance(m, MatrixGaussianLinear) else m.weight) for m in maps]
        slot, is_first = draws.slot(self)
        if is_first and draws.has_kl:
            draws.add_kl(self.hyper.kl())
        psi = []
        for k, layer in enumerate(cast(list[MatrixGaussianLinear], maps)):
            deviation = layer.deviation(draws.layer_noise(slot, 2 * k, layer.mean.shape, layer.mean))
            signs = None
            if not draws.shared:
                signs = draws.layer_row_signs(slot, 2 * k + 1, rows, layer.mean.shape[:1], layer.mean)
            psi.append(FlipoutWeights(layer.mean, deviation, signs))
        return psi

    def heads(self, x_aug: Tensor, psi: list[FlipoutWeights]) -> Tensor:
        """Scales and log-variances, side by side and not clamped, from a context with a 1 appended.

        x_aug is (rows, ..., context + 1).
        """
        *hidden, last = psi
        for layer in hidden:
            x_aug = append_ones(ACTIVATIONS[self.hyper.activation](layer(x_aug)))
        return last(x_aug)

    def split_heads(self, heads: Tensor) -> Heads:
        """The three parts of `heads`, log-variances clamped."""
        scale, log_row, log_col = heads.split(list(self.hyper.heads), -1)
        return Heads(scale, log_row.clamp(-self.bound, self.bound), log_col.clamp(-self.bound, self.bound))

    def adds_kl(self, draws: Draws | None) -> bool:
        """Whether a call adds the KL of its rows' weights; with `bayes` the posterior's is added instead."""
        return draws is not None and draws.has_kl and not self.bayes
