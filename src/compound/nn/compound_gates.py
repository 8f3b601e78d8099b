"""Compound cells in the place of torch's: `CompoundGRUCell` and `CompoundLSTMCell`."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from compound.nn.compound_cell import CellWeights, CompoundCell, Draw, State
from compound.nn.compound_layer import LOG_COL
from compound.ops.compound_moments import Gaussian
from compound.precision import full_precision


class CompoundGRUCell(CompoundCell):
    """`nn.GRUCell` with weights drawn anew for every row and step, or for every row.

    Call it inside `with sampling(generator)`. Outside of it, in eval mode, it uses the mean of its weights.

    Parameters
    ----------
    input_size, hidden_size : int
        Sizes of input and state.
    draw : {"step", "sequence"}, default="step"
        "step": every call draws weights, given input and state. "sequence": `draw_weights` draws them, given
        a context of the size of the input, and every call takes them.
    hidden : sequence of int, default=(50,)
        Hidden widths of the hypernetwork.
    bayes : bool, default=False
        Maximum likelihood (False), or a variational posterior over the hypernetwork's weights (True).
    log_col : float, default=-6.0
        Log-variance of the weights at the start, relative to 1 / (input_size + hidden_size + 2), and its
        prior mean.
    generator : torch.Generator, optional
        Source of the initial weights; by default torch's own, as for `nn.GRUCell`.

    Examples
    --------
    >>> import torch
    >>> from compound.nn import CompoundGRUCell, sampling
    >>> cell = CompoundGRUCell(3, 4)
    >>> x = torch.ones(6, 5, 3)  # (steps, rows, in)
    >>> h = torch.zeros(5, 4)
    >>> with sampling(torch.Generator().manual_seed(0)) as draws:
    ...     for x_t in x:
    ...         h = cell(x_t, h)
    >>> cell = CompoundGRUCell(3, 4, draw="sequence")
    >>> with sampling(torch.Generator().manual_seed(0)) as draws:
    ...     weights = cell.draw_weights(x.mean(0))
    ...     for x_t in x:
    ...         h = cell(x_t, h, weights)
    >>> h.shape
    torch.Size([5, 4])
    """

    plain = (nn.GRUCell,)
    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        draw: Draw = "step",
        hidden: Sequence[int] = (50,),
        bayes: bool = False,
        log_col: float = LOG_COL,
        generator: Generator | None = None,
    ):
        super().__init__(input_size, hidden_size, draw, hidden, bayes, log_col, generator)

    @full_precision
    def forward(self, x: Tensor, state: Tensor | None = None, weights: CellWeights | None = None) -> Tensor:
        """The next state (rows, hidden_size) from x (rows, input_size) and the state, zeros by default."""
        return self.call(x, self.start(x.shape[0]) if state is None else (state,), weights)[0]

    def start(self, rows: int) -> State:
        return (self.weight_hh.new_zeros(rows, self.hidden_size),)

    def update(self, x: Tensor, h: Tensor, state: State) -> State:
        sizes = [2 * self.hidden_size, self.hidden_size]
        (x_gates, x_new), (h_gates, h_new) = x.split(sizes, -1), h.split(sizes, -1)
        reset, keep = torch.sigmoid(x_gates + h_gates).chunk(2, -1)
        new = torch.tanh(torch.addcmul(x_new, reset, h_new))
        return (torch.lerp(new, state[0], keep),)

    def draw_update(self, x: Gaussian, h: Gaussian, noise: Tensor, state: State) -> State:
        sizes = [2 * self.hidden_size, self.hidden_size]
        (x_gates, x_new), (h_gates, h_new) = x.mean.split(sizes, -1), h.mean.split(sizes, -1)
        (x_std, x_new_std), (h_std, h_new_std) = x.std.split(sizes, -1), h.std.split(sizes, -1)
        of_gates, of_new = noise.split(sizes, -1)
        gates = torch.addcmul(x_gates + h_gates, _joint(x_std, h_std), of_gates)
        reset, keep = torch.sigmoid(gates).chunk(2, -1)
        std = _joint(x_new_std, reset * h_new_std)  # given reset, the sum is Gaussian again
        new = torch.tanh(torch.addcmul(torch.addcmul(x_new, reset, h_new), std, of_new))
        return (torch.lerp(new, state[0], keep),)


class CompoundLSTMCell(CompoundCell):
    """`nn.LSTMCell` with weights drawn anew for every row and step, or for every row.

    Call it inside `with sampling(generator)`. Outside of it, in eval mode, it uses the mean of its weights.

    Parameters
    ----------
    input_size, hidden_size : int
        Sizes of input and state.
    draw : {"step", "sequence"}, default="step"
        "step": every call draws weights, given input and state. "sequence": `draw_weights` draws them, given
        a context of the size of the input, and every call takes them.
    hidden : sequence of int, default=(50,)
        Hidden widths of the hypernetwork.
    bayes : bool, default=False
        Maximum likelihood (False), or a variational posterior over the hypernetwork's weights (True).
    log_col : float, default=-6.0
        Log-variance of the weights at the start, relative to 1 / (input_size + hidden_size + 2), and its
        prior mean.
    generator : torch.Generator, optional
        Source of the initial weights; by default torch's own, as for `nn.LSTMCell`.

    Examples
    --------
    >>> import torch
    >>> from compound.nn import CompoundLSTMCell, sampling
    >>> cell = CompoundLSTMCell(3, 4)
    >>> state = torch.zeros(5, 4), torch.zeros(5, 4)
    >>> with sampling(torch.Generator().manual_seed(0)) as draws:
    ...     for x_t in torch.ones(6, 5, 3):  # (steps, rows, in)
    ...         state = cell(x_t, state)
    >>> state[0].shape
    torch.Size([5, 4])
    """

    plain = (nn.LSTMCell,)
    gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        draw: Draw = "step",
        hidden: Sequence[int] = (50,),
        bayes: bool = False,
        log_col: float = LOG_COL,
        generator: Generator | None = None,
    ):
        super().__init__(input_size, hidden_size, draw, hidden, bayes, log_col, generator)

    @full_precision
    def forward(
        self, x: Tensor, state: State | None = None, weights: CellWeights | None = None
    ) -> tuple[Tensor, Tensor]:
        """The next h and c (rows, hidden_size) from x (rows, input_size) and (h, c), zeros by default."""
        h, c = self.call(x, self.start(x.shape[0]) if state is None else state, weights)
        return h, c

    def start(self, rows: int) -> State:
        zeros = self.weight_hh.new_zeros(rows, self.hidden_size)
        return zeros, zeros

    def update(self, x: Tensor, h: Tensor, state: State) -> State:
        enter, forget, new, leave = (x + h).chunk(4, -1)
        c = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(leave) * torch.tanh(c), c

    def draw_update(self, x: Gaussian, h: Gaussian, noise: Tensor, state: State) -> State:
        drawn = torch.addcmul(x.mean, _joint(x.std, h.std), noise)
        return self.update(drawn, h.mean, state)


def _joint(a: Tensor, b: Tensor) -> Tensor:
    """Standard deviation of a sum of independent numbers; torch.hypot is no operation of ONNX."""
    return (a.square() + b.square()).sqrt()
