"""Compound recurrent cells: weights drawn per step or per sequence, given the context of either.

All weights of a cell are one matrix over v = [x; 1; h; 1], with r rows and a column for every gate and unit:

    W | u ~ MN( diag(s) V, diag(exp lr) / r, diag(exp lc) ),      (s, lr, lc) = g(u; ψ)

draw="step": u = v, every step has weights of its own, and its pre-activations are drawn from the exact
Gaussian. draw="sequence": u stands for the whole sequence, and all steps of a row share its weights, so that
noise is correlated between them; one noise matrix serves the batch, times signs of each row's own (Wen et
al. 2018, flipout). Without noise the cells are
hypernetworks that scale weights, as in Ha, Dai and Le (2017).
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Generator, Tensor, nn

from compound.nn.compound_layer import LOG_COL, CompoundLayer, Heads, initial_normal
from compound.nn.draws import current_draws
from compound.ops.affine import append_ones
from compound.ops.compound_moments import Gaussian, MomentOptions, weights_kl
from compound.ops.traceable_moments import traceable_moments
from compound.precision import full_precision

Draw = Literal["step", "sequence"]
State = tuple[Tensor, ...]  # (rows, state) each: (h,), or (h, c)
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class CellWeights(NamedTuple):
    """Weights of every row, the same for all steps of its sequence; without noise they are at their mean."""

    scale: Tensor  # (rows, r)
    row: Tensor | None = None  # (rows, r): standard deviations with signs
    col: Tensor | None = None  # (rows, gates * state): standard deviations with signs
    noise: Tensor | None = None  # (r, gates * state)


class CompoundCell(CompoundLayer):
    """Base class of the cells: products of [x; 1] and [h; 1] with compound weights."""

    gates: ClassVar[int]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        draw: Draw,
        hidden: Sequence[int],
        bayes: bool,
        log_col: float,
        generator: Generator | None,
    ):
        if draw not in ("step", "sequence"):
            raise ValueError(f"draw is {draw!r}: use 'step' or 'sequence'")
        inputs, outputs = input_size + 1 + hidden_size, self.gates * hidden_size
        context = inputs if draw == "step" else input_size
        super().__init__(context, inputs, outputs, hidden, bayes, log_col, generator)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.draw = draw
        self.sizes = [input_size + 1, hidden_size + 1]  # rows of W for the input and for the state
        self.fan_in = sum(self.sizes)  # r
        std = (3 * hidden_size) ** -0.5  # as in torch's cells
        self.weight_ih = nn.Parameter(std * initial_normal(generator, (outputs, input_size)))
        self.weight_hh = nn.Parameter(std * initial_normal(generator, (outputs, hidden_size)))
        self.bias_ih = nn.Parameter(torch.zeros(outputs, dtype=torch.float32))
        self.bias_hh = nn.Parameter(torch.zeros(outputs, dtype=torch.float32))

    @classmethod
    def from_layer(
        cls,
        layer: nn.Module,
        *,
        draw: Draw = "step",
        hidden: Sequence[int] = (50,),
        bayes: bool = False,
        log_col: float = LOG_COL,
        generator: Generator | None = None,
    ) -> Self:
        """A compound cell that starts at the weights of torch's cell, whose parameters it takes over."""
        assert isinstance(layer, (nn.RNNCellBase, nn.RNNBase))
        if not layer.bias:
            raise ValueError(f"{type(layer).__name__} has no bias: compound cells have one")
        made = cls(layer.input_size, layer.hidden_size, draw, hidden, bayes, log_col, generator)
        end = "_l0" if isinstance(layer, nn.RNNBase) else ""
        return made._take_over(layer, {name: name + end for name in PARAMETERS})

    @abstractmethod
    def start(self, rows: int) -> State:
        """The state before the first step: zeros."""

    @abstractmethod
    def update(self, x: Tensor, h: Tensor, state: State) -> State:
        """The next state from the products of input and of state, (rows, gates * state) each."""

    @abstractmethod
    def draw_update(self, x: Gaussian, h: Gaussian, noise: Tensor, state: State) -> State:
        """The next state, drawn, from the independent products of input and of state.

        `noise` (rows, gates * state) has one number for each gate and unit: that of their sum.
        """

    @full_precision
    def draw_weights(self, context: Tensor) -> CellWeights:
        """Weights of every row for all steps of its sequence, given a context (rows, input_size)."""
        if self.draw != "sequence":
            raise ValueError("draw is 'step', so every step draws its weights: use draw='sequence'")
        draws, rows = current_draws(self), context.shape[0]
        heads = self.split_heads(self.heads(append_ones(context), self.psi(draws, rows)))
        if draws is None:
            return CellWeights(heads.scale)
        if self.adds_kl(draws):
            draws.add_kl(self.kl(heads, self.norms()).mean())
        row = (0.5 * heads.log_row).exp()
        col = (0.5 * heads.log_col).exp() / math.sqrt(self.fan_in)
        if not draws.shared:
            signs = draws.row_signs(rows, (row.shape[1] + col.shape[1],), col)
            a, b = signs.split([row.shape[1], col.shape[1]], -1)
            row, col = row * a, col * b
        return CellWeights(heads.scale, row, col, draws.noise((row.shape[1], col.shape[1]), col))

    def matrices(self) -> tuple[Tensor, Tensor]:
        """V for [x; 1] and for [h; 1], with the bias in the last row."""
        x = torch.cat([self.weight_ih.mT, self.bias_ih.unsqueeze(0)])
        return x, torch.cat([self.weight_hh.mT, self.bias_hh.unsqueeze(0)])

    def norms(self) -> Tensor:  # (r,)
        """Squared norms of the rows of V."""
        return torch.cat([block.square().sum(1) for block in self.matrices()])

    def kl(self, heads: Heads, norms: Tensor) -> Tensor:  # (rows,)
        """The KL of each row's weights to their prior, MN(0, I / r, I)."""
        return weights_kl(*heads, heads.log_row.exp(), heads.log_col.exp(), norms, self.fan_in)

    def check(self, x: Tensor) -> None:
        if x.shape[-1] != self.input_size:
            raise ValueError(f"x has {x.shape[-1]} features, the layer takes {self.input_size}")

    def call(self, x: Tensor, state: State, weights: CellWeights | None) -> State:
        """One step of rows x (rows, in)."""
        self.check(x)
        if (self.draw == "sequence") is (weights is None):
            raise ValueError(
                "draw='sequence' takes the weights that `draw_weights` gives, draw='step' takes none"
            )
        if weights is not None:
            steps = SharedSteps(self, weights)
            return steps(steps.inputs(x), state)
        own = OwnSteps(self, x.shape[0])
        noise = None if own.draws is None else own.draws.row_noise(x.shape[0], (own.width,), x)
        state, kl = own(x, state, noise)
        if own.draws is not None and kl is not None:
            own.draws.add_kl(kl.mean())
        return state


class SharedSteps:
    """Steps with weights that all of them share."""

    def __init__(self, cell: CompoundCell, weights: CellWeights):
        self.cell = cell
        self.matrices = cell.matrices()
        self.scales = weights.scale.split(cell.sizes, -1)
        self.col = weights.col
        self.rows = () if weights.row is None else weights.row.split(cell.sizes, -1)
        self.noises = () if weights.noise is None else weights.noise.split(cell.sizes, 0)

    def __call__(self, x: Tensor, state: State) -> State:
        """The next state, from the products of the input."""
        return self.cell.update(x, self._product(append_ones(state[0]), 1), state)

    def inputs(self, x: Tensor) -> Tensor:
        """The products of inputs x (rows, ..., in), of one step or of all."""
        return self._product(append_ones(x), 0)

    def _product(self, v: Tensor, block: int) -> Tensor:
        """W^T v for v (rows, ..., in + 1), with the rows of W for inputs (block 0) or for the state (1)."""
        scale = _between(self.scales[block], v)
        mean = (v * scale) @ self.matrices[block]
        if self.col is None:
            return mean
        noise = (v * _between(self.rows[block], v)) @ self.noises[block]
        return torch.addcmul(mean, noise, _between(self.col, v))


class OwnSteps:
    """Steps that draw weights of their own; what does not change between steps is computed once.

    The rows of W for the input and those for the state are independent given the heads, so their products are
    two compound linear maps. Both have variances over r, not over their own rows: they see v / g and g V,
    with g² = r / rows of the block.
    """

    def __init__(self, cell: CompoundCell, rows: int):
        self.cell = cell
        self.draws = current_draws(cell)
        self.psi = cell.psi(self.draws, rows)
        self.gains = [math.sqrt(cell.fan_in / size) for size in cell.sizes]
        self.matrices = [g * matrix for g, matrix in zip(self.gains, cell.matrices(), strict=True)]
        self.options = MomentOptions(cell.bound, True, cell.adds_kl(self.draws))
        self.width = cell.gates * cell.hidden_size  # noise of a row and step

    def __call__(self, x: Tensor, state: State, noise: Tensor | None) -> tuple[State, Tensor | None]:
        """The next state from x (rows, in), and the KL of each row's weights, if it is needed."""
        cell = self.cell
        parts = append_ones(x), append_ones(state[0])
        scale, log_row, log_col = cell.heads(torch.cat(parts, -1), self.psi).split(list(cell.hyper.heads), -1)
        scales, log_rows = scale.split(cell.sizes, -1), log_row.split(cell.sizes, -1)
        blocks = zip(parts, self.gains, self.matrices, scales, log_rows, strict=True)
        if noise is None:
            x_mean, h_mean = ((v / g * s) @ matrix for v, g, matrix, s, _ in blocks)
            return cell.update(x_mean, h_mean, state), None
        x_out, h_out = (
            traceable_moments(v / g, torch.cat([s, lr, log_col], -1), matrix, self.options)
            for v, g, matrix, s, lr in blocks
        )
        kl = x_out.kl + h_out.kl if self.options.kl else None
        return cell.draw_update(x_out, h_out, noise, state), kl


def _between(values: Tensor, v: Tensor) -> Tensor:
    """Values (rows, n) with axes of size 1 for the axes that v (rows, ..., n) has in between."""
    return values.view(values.shape[0], *[1] * (v.ndim - 2), -1)
