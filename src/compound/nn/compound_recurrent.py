"""Compound recurrent layers: a compound cell over the steps of sequences, with the interface of `nn.GRU`."""

from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Generator, Tensor, nn

from compound.nn.compound_cell import CompoundCell, Draw, OwnSteps, SharedSteps, State
from compound.nn.compound_gates import CompoundGRUCell, CompoundLSTMCell
from compound.nn.compound_layer import LOG_COL
from compound.precision import full_precision


class CompoundRecurrent(nn.Module):
    """Base class of the recurrent layers: runs a cell over steps."""

    cell_type: ClassVar[type[CompoundCell]]
    cell: CompoundCell

    def __init__(self, cell: CompoundCell, batch_first: bool):
        super().__init__()
        self.cell = cell
        self.batch_first = batch_first

    @classmethod
    def from_layer(
        cls,
        layer: nn.Module,
        *,
        draw: Draw = "sequence",
        hidden: Sequence[int] = (50,),
        bayes: bool = False,
        log_col: float = LOG_COL,
        generator: Generator | None = None,
    ) -> Self:
        """A compound layer that starts at the weights of torch's layer, whose parameters it takes over."""
        assert isinstance(layer, nn.RNNBase)
        if layer.num_layers != 1 or layer.bidirectional or layer.proj_size:
            raise ValueError(
                f"{type(layer).__name__} has {layer.num_layers} layers, bidirectional={layer.bidirectional},"
                f" proj_size={layer.proj_size}: compound layers have one layer and direction, no projection"
            )
        made = cls.__new__(cls)
        options = {"draw": draw, "hidden": hidden, "bayes": bayes, "log_col": log_col}
        cell = cls.cell_type.from_layer(layer, **options, generator=generator)  # type: ignore[arg-type]
        CompoundRecurrent.__init__(made, cell, layer.batch_first)
        return made.train(layer.training)

    def run(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """States h after every step, and the last state, (1, rows, state) each."""
        if x.ndim != 3:
            raise ValueError(f"x has {x.ndim} axes: give steps, rows and features, as batch_first says")
        cell = self.cell
        cell.check(x)
        x = x if self.batch_first else x.transpose(0, 1)  # (rows, steps, in)
        rows, steps = x.shape[:2]
        current = cell.start(rows) if state is None else tuple(each.squeeze(0) for each in state)
        mask = None
        if lengths is not None:
            mask = torch.arange(steps, device=x.device) < lengths.to(x.device).unsqueeze(1)
        outputs = []
        total: Tensor | None = None
        if cell.draw == "sequence":
            shared = SharedSteps(cell, cell.draw_weights(_mean_step(x, mask)))
            inputs = shared.inputs(x).unbind(1)
        else:
            own = OwnSteps(cell, rows)
            inputs = x.unbind(1)
            noises = [None] * steps
            if own.draws is not None:
                noises = own.draws.row_noise(rows, (steps, own.width), x).unbind(1)  # type: ignore[assignment]
        for t, x_t in enumerate(inputs):
            kl = None
            if cell.draw == "sequence":
                new = shared(x_t, current)
            else:
                new, kl = own(x_t, current, noises[t])
            output = new[0]
            if mask is not None:
                valid = mask[:, t : t + 1]
                new = tuple(torch.where(valid, a, b) for a, b in zip(new, current, strict=True))
                output = torch.where(valid, output, 0)
                kl = None if kl is None else kl * mask[:, t]
            if kl is not None:
                total = kl if total is None else total + kl
            current = new
            outputs.append(output)
        if total is not None and cell.draw == "step" and own.draws is not None:
            own.draws.add_kl(total.mean())
        output = torch.stack(outputs, 1 if self.batch_first else 0)
        return output, tuple(each.unsqueeze(0) for each in current)

    def extra_repr(self) -> str:
        return f"draw={self.cell.draw!r}, batch_first={self.batch_first}"


def _mean_step(x: Tensor, mask: Tensor | None) -> Tensor:  # (rows, in)
    """Mean over the valid steps of x (rows, steps, in)."""
    if mask is None:
        return x.mean(1)
    weight = mask.unsqueeze(-1).to(x.dtype)
    return torch.where(mask.unsqueeze(-1), x, 0).sum(1) / weight.sum(1).clamp_min(1)


class CompoundGRU(CompoundRecurrent):
    """`nn.GRU` of one layer with weights drawn anew for every sequence, or for every step.

    Call it inside `with sampling(generator)`. Outside of it, in eval mode, it uses the mean of its weights.

    Parameters
    ----------
    input_size, hidden_size : int
        Sizes of input and state.
    batch_first : bool, default=False
        Whether x is (rows, steps, in) in place of (steps, rows, in).
    draw : {"sequence", "step"}, default="sequence"
        "sequence": weights are drawn once per row, given the mean of its inputs. "step": every step draws
        weights, given input and state.
    hidden : sequence of int, default=(50,)
        Hidden widths of the hypernetwork.
    bayes : bool, default=False
        Maximum likelihood (False), or a variational posterior over the hypernetwork's weights (True).
    log_col : float, default=-6.0
        Log-variance of the weights at the start, relative to 1 / (input_size + hidden_size + 2), and its
        prior mean.
    generator : torch.Generator, optional
        Source of the initial weights; by default torch's own, as for `nn.GRU`.

    Examples
    --------
    >>> import torch
    >>> from compound.nn import CompoundGRU, sampling
    >>> gru = CompoundGRU(3, 4, batch_first=True)
    >>> x, lengths = torch.ones(5, 7, 3), torch.tensor([7, 7, 6, 2, 1])
    >>> with sampling(torch.Generator().manual_seed(0)) as draws:
    ...     output, last = gru(x, lengths=lengths)
    >>> output.shape, last.shape
    (torch.Size([5, 7, 4]), torch.Size([1, 5, 4]))
    """

    plain = (nn.GRU,)
    cell_type = CompoundGRUCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        batch_first: bool = False,
        *,
        draw: Draw = "sequence",
        hidden: Sequence[int] = (50,),
        bayes: bool = False,
        log_col: float = LOG_COL,
        generator: Generator | None = None,
    ):
        cell = CompoundGRUCell(input_size, hidden_size, draw, hidden, bayes, log_col, generator)
        super().__init__(cell, batch_first)

    @full_precision
    def forward(
        self, x: Tensor, state: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """States after every step, and the last state (1, rows, hidden_size).

        `lengths` (rows,) are the steps of each row: behind them outputs are 0, and the last state is that of
        the row's last step.
        """
        output, last = self.run(x, None if state is None else (state,), lengths)
        return output, last[0]


class CompoundLSTM(CompoundRecurrent):
    """`nn.LSTM` of one layer with weights drawn anew for every sequence, or for every step.

    Call it inside `with sampling(generator)`. Outside of it, in eval mode, it uses the mean of its weights.

    Parameters
    ----------
    input_size, hidden_size : int
        Sizes of input and state.
    batch_first : bool, default=False
        Whether x is (rows, steps, in) in place of (steps, rows, in).
    draw : {"sequence", "step"}, default="sequence"
        "sequence": weights are drawn once per row, given the mean of its inputs. "step": every step draws
        weights, given input and state.
    hidden : sequence of int, default=(50,)
        Hidden widths of the hypernetwork.
    bayes : bool, default=False
        Maximum likelihood (False), or a variational posterior over the hypernetwork's weights (True).
    log_col : float, default=-6.0
        Log-variance of the weights at the start, relative to 1 / (input_size + hidden_size + 2), and its
        prior mean.
    generator : torch.Generator, optional
        Source of the initial weights; by default torch's own, as for `nn.LSTM`.

    Examples
    --------
    >>> import torch
    >>> from compound.nn import CompoundLSTM, sampling
    >>> lstm = CompoundLSTM(3, 4, draw="step")
    >>> with sampling(torch.Generator().manual_seed(0)) as draws:
    ...     output, (h, c) = lstm(torch.ones(7, 5, 3))
    >>> output.shape, h.shape
    (torch.Size([7, 5, 4]), torch.Size([1, 5, 4]))
    """

    plain = (nn.LSTM,)
    cell_type = CompoundLSTMCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        batch_first: bool = False,
        *,
        draw: Draw = "sequence",
        hidden: Sequence[int] = (50,),
        bayes: bool = False,
        log_col: float = LOG_COL,
        generator: Generator | None = None,
    ):
        cell = CompoundLSTMCell(input_size, hidden_size, draw, hidden, bayes, log_col, generator)
        super().__init__(cell, batch_first)

    @full_precision
    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """States h after every step, and the last (h, c), (1, rows, hidden_size) each.

        `lengths` (rows,) are the steps of each row: behind them outputs are 0, and the last state is that of
        the row's last step.
        """
        return self.run(x, state, lengths)
