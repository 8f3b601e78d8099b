"""Randomness of compound layers, explicit at the call: `with sampling(generator) as draws: y = network(x)`.

A pass draws one key from the generator; every noise array of the pass is a function of that key and of a
number. So a pass depends on the generator's state alone, a part of a batch can take its rows of the whole
batch's noise, and a compiled network draws what the eager one does.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Generator, Tensor, nn

from compound.ops.keyed_noise import keyed_normal, pass_key

Source = Callable[[int, Sequence[int], Tensor], Tensor]  # number, shape, like: standard normal numbers


class Draws:
    """One random pass through a network: its noise, and the KL of its layers. Made by `sampling`.

    Parameters
    ----------
    source : callable
        The standard normal numbers of a number, a shape and an example tensor.
    rows : slice, optional
        The rows of the whole batch that this pass computes; all by default.
    total : int, default=0
        Rows of the whole batch; 0: those of the input.
    shared : bool, default=False
        Whether all rows use the same noise.
    kl : bool, default=True
        Whether layers compute their KL.

    Examples
    --------
    >>> import torch
    >>> from compound.nn import CompoundLinear, sampling
    >>> layer = CompoundLinear(3, 2)
    >>> with sampling(torch.Generator().manual_seed(0)) as draws:
    ...     y = layer(torch.ones(5, 3))
    >>> y.shape, draws.kl.shape
    (torch.Size([5, 2]), torch.Size([]))
    """

    def __init__(
        self, source: Source, rows: slice | None = None, total: int = 0, shared: bool = False, kl: bool = True
    ):
        self.source = source
        self.rows = rows
        self.total = total
        self.shared = shared
        self.has_kl = kl
        self._calls = 0
        self._layers: list[nn.Module] = []
        self._terms: list[Tensor] = []

    @property
    def kl(self) -> Tensor:
        """The KL of this pass, (): the sum over its layers, differentiable.

        A layer with `bayes=True` adds the KL of the posterior of its hypernetwork, once however often it is
        called; any other adds in each call the mean over rows of the KL of their weights to the prior.
        """
        if not self.has_kl:
            raise RuntimeError("draws.kl was not computed: leave out kl=False")
        if not self._terms:
            raise RuntimeError("draws.kl is empty: no compound layer was called inside `with sampling(...)`")
        return torch.stack(self._terms).sum()

    def add_kl(self, kl: Tensor) -> None:
        """Add a term () to `kl`."""
        self._terms.append(kl)

    def slot(self, layer: nn.Module) -> tuple[int, bool]:
        """The number of a layer in this pass, and whether this is its first call."""
        for number, known in enumerate(self._layers):
            if known is layer:
                return number, False
        self._layers.append(layer)
        return len(self._layers) - 1, True

    def noise(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Standard normal numbers that all rows of the batch share."""
        self._calls += 1
        return self.source(2 * self._calls, shape, like)

    def row_noise(self, rows: int, shape: Sequence[int], like: Tensor) -> Tensor:
        """Standard normal numbers for every row, (rows, *shape), or (1, *shape) if all rows share them."""
        self._calls += 1
        return self._part(2 * self._calls, rows, shape, like)

    def layer_noise(self, slot: int, part: int, shape: Sequence[int], like: Tensor) -> Tensor:
        """`noise` that is the same in every call of the layer."""
        return self.source(_layer_number(slot, part), shape, like)

    def layer_row_signs(self, slot: int, part: int, rows: int, shape: Sequence[int], like: Tensor) -> Tensor:
        """Random signs ±1 for every row, (rows, *shape), the same in every call of the layer."""
        return _signs(self._part(_layer_number(slot, part), rows, shape, like))

    def row_signs(self, rows: int, shape: Sequence[int], like: Tensor) -> Tensor:
        """Random signs ±1 for every row, (rows, *shape)."""
        return _signs(self.row_noise(rows, shape, like))

    def _part(self, number: int, rows: int, shape: Sequence[int], like: Tensor) -> Tensor:
        """The noise of the rows that this pass computes."""
        if self.shared:
            return self.source(number, (1, *shape), like)
        if self.rows is None:
            return self.source(number, (rows, *shape), like)
        if self.rows.stop - self.rows.start != rows:
            raise ValueError(
                f"a layer is called with {rows} rows inside sampling(rows=slice({self.rows.start},"
                f" {self.rows.stop})): give it as many"
            )
        return self.source(number, (self.total, *shape), like)[self.rows]


def _layer_number(slot: int, part: int) -> int:
    return 2 * (64 * slot + part) + 1  # odd: `noise` has the even ones


def _signs(noise: Tensor) -> Tensor:
    return torch.copysign(torch.ones_like(noise), noise)


class _Current(threading.local):
    """The pass that is under way in this thread. torch.compile reads thread locals, not context variables."""

    draws: Draws | None = None


_current = _Current()


def current_draws(layer: nn.Module) -> Draws | None:
    """The pass under way; None outside of `sampling`, which an error forbids to a layer in training mode."""
    draws = _current.draws
    if draws is None and layer.training:
        raise RuntimeError(
            f"{type(layer).__name__} draws its weights in training: call the network inside"
            " `with sampling(generator) as draws:`, or network.eval() for its mean"
        )
    return draws


@contextmanager
def using(draws: Draws) -> Iterator[Draws]:
    """Let the compound layers that this thread calls inside the block draw from `draws`."""
    if _current.draws is not None:
        raise RuntimeError("sampling is under way in this thread already: one `with sampling(...)` at a time")
    _current.draws = draws
    try:
        yield draws
    finally:
        _current.draws = None


@contextmanager
def sampling(
    generator: Generator,
    *,
    rows: slice | None = None,
    total: int = 0,
    shared: bool = False,
    kl: bool = True,
) -> Iterator[Draws]:
    """Let compound layers draw their weights from a generator: one block is one pass through a network.

    Outside of it a compound layer in training mode raises an error, and one in eval mode uses the mean of its
    weights. A block holds for the thread that opened it.

    Parameters
    ----------
    generator : torch.Generator
        Source of all noise of the pass. It lives on the CPU, wherever the network is, and gives one number
        per pass.
    rows : slice, optional
        The rows of a larger batch that this process computes: they get the noise that they would have there.
        Every process then passes a generator in the same state.
    total : int, default=0
        Rows of that larger batch; needed with `rows`.
    shared : bool, default=False
        Whether all rows share their noise, so that a row's prediction does not depend on the rows beside it:
        for prediction.
    kl : bool, default=True
        Whether layers compute their KL, for `draws.kl`.

    Yields
    ------
    Draws
        The pass; after it `draws.kl` is the KL of the weights, a scalar.

    Returns
    -------
    context manager

    Raises
    ------
    RuntimeError
        If a block is open in this thread already.
    ValueError
        If `rows` is no part of `total` rows.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from compound.nn import CompoundLinear, sampling
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), CompoundLinear(8, 3))
    >>> x, y = torch.ones(5, 4), torch.zeros(5, dtype=torch.int64)
    >>> with sampling(torch.Generator().manual_seed(0)) as draws:
    ...     logits = network(x)
    >>> loss = nn.functional.cross_entropy(logits, y) + draws.kl / 1000  # 1000: rows of the training set
    >>> loss.backward()
    >>> probs = network.eval()(x).softmax(-1)  # without noise: weights at their mean
    """
    if not isinstance(generator, Generator):
        raise TypeError(f"generator is a {type(generator).__name__}: give a torch.Generator")
    if rows is not None and (rows.step not in (None, 1) or not 0 <= (rows.start or 0) < rows.stop <= total):
        raise ValueError(f"rows {rows} are no part of total={total} rows: give slice(first, last + 1), total")
    if rows is not None:
        rows = slice(rows.start or 0, rows.stop)
    key = pass_key(generator)
    source = _KeyedSource(key)
    with using(Draws(source, rows, total, shared, kl)) as draws:
        yield draws


class _KeyedSource:
    """Noise that is a function of a key."""

    def __init__(self, key: Tensor):
        self.key = key

    def __call__(self, number: int, shape: Sequence[int], like: Tensor) -> Tensor:
        return keyed_normal(self.key, number, shape, like)
