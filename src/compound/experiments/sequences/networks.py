"""Recurrent networks for the experiments: plain, or with compound layers, and their training."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from compound.nn import CompoundGRU, CompoundLinear, sampling
from compound.random import derive_seed, named_generator

CLIP_NORM = 1.0
Loss = Callable[[Tensor, Tensor], Tensor]  # outputs (rows, outputs), targets -> () mean over rows


class Sequences(nn.Module):
    """A recurrent layer, and a linear layer on the state after each row's last step."""

    def __init__(self, inputs: int, hidden: int, outputs: int):
        super().__init__()
        self.gru: nn.Module = nn.GRU(inputs, hidden, batch_first=True)
        self.output: nn.Module = nn.Linear(hidden, outputs)

    def last(self, x: Tensor, lengths: Tensor) -> Tensor:  # (rows, hidden)
        """States after the last step of rows x (rows, steps, inputs) with lengths (rows,)."""
        states, _ = self.gru(x)  # what lies behind the end of a row does not reach the steps before
        return states[torch.arange(len(x)), lengths - 1]

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:  # (rows, outputs)
        return self.output(self.last(x, lengths))  # type: ignore[no-any-return]


class CompoundSequences(Sequences):
    """The same with compound layers; weights of the recurrent layer are drawn once for each row."""

    def __init__(self, inputs: int, hidden: int, outputs: int, bayes: bool = False):
        super().__init__(inputs, hidden, outputs)
        self.gru = CompoundGRU(inputs, hidden, batch_first=True, bayes=bayes)
        self.output = CompoundLinear(hidden, outputs, bayes=bayes)

    def last(self, x: Tensor, lengths: Tensor) -> Tensor:  # (rows, hidden)
        _, state = self.gru(x, lengths=lengths)
        return state[0]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SequenceTraining:
    """How a network is trained: Adam, the learning rate falls to 0 along a half cosine.

    `kl` is λ, the weight of the KL per row with `bayes` false; with `bayes` true it multiplies 1 / N.
    """

    epochs: int
    lr: float = 5e-3
    batch_size: int = 32
    hidden: int = 32
    kl: float = 1e-4
    bayes: bool = False


def trained(
    form: str,
    outputs: int,
    x: Tensor,
    lengths: Tensor,
    y: Tensor,
    loss: Loss,
    seed: int,
    how: SequenceTraining,
) -> Sequences:
    """A network of a form, "gru" or "compound-gru", trained on rows x (rows, steps, inputs)."""
    with torch.random.fork_rng():  # torch's layers draw their initial weights from its own generator
        torch.manual_seed(derive_seed(seed, "weights"))
        if form == "gru":
            network = Sequences(x.shape[2], how.hidden, outputs)
        else:
            network = CompoundSequences(x.shape[2], how.hidden, outputs, how.bayes)
    optimizer = torch.optim.Adam(network.parameters(), lr=how.lr)
    weight = how.kl / len(x) if how.bayes else how.kl
    generator = named_generator(seed, "training")
    steps, done = how.epochs * math.ceil(len(x) / how.batch_size), 0
    for _ in range(how.epochs):
        for rows in torch.randperm(len(x), generator=generator).split(how.batch_size):
            optimizer.param_groups[0]["lr"] = how.lr * 0.5 * (1 + math.cos(math.pi * done / steps))
            total = _loss(network, x[rows], lengths[rows], y[rows], loss, generator, weight)
            optimizer.zero_grad()
            total.backward()
            nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM)
            optimizer.step()
            done += 1
    return network.eval()


def _loss(
    network: Sequences, x: Tensor, lengths: Tensor, y: Tensor, loss: Loss, generator: Generator, weight: float
) -> Tensor:
    if not isinstance(network, CompoundSequences):
        return loss(network(x, lengths), y)
    with sampling(generator) as draws:
        outputs = network(x, lengths)
    return loss(outputs, y) + weight * draws.kl


@torch.no_grad()
def draws_of(networks: list[Sequences], x: Tensor, lengths: Tensor, n_samples: int, seed: int) -> Tensor:
    """Outputs (draws, rows, outputs): n_samples of a compound network, one of each plain network."""
    outputs = []
    generator = named_generator(seed, "predict")
    for network in networks:
        if not isinstance(network, CompoundSequences):
            outputs.append(network(x, lengths))
            continue
        for _ in range(n_samples):
            with sampling(generator, shared=True, kl=False):
                outputs.append(network(x, lengths))
    return torch.stack(outputs)
