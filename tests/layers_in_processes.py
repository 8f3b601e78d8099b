"""Two processes that train on halves of a batch against one with all of it; for test_layers_elsewhere.py."""

import multiprocessing
import os
import sys

import torch
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

from compound.nn import CompoundConv2d, CompoundGRU, CompoundLinear, sampling
from compound.random import named_generator

ROWS, STEPS = 8, 4


class Network(nn.Module):
    """Convolution, recurrence over the image's lines, linear map: a network of a user's."""

    def __init__(self) -> None:
        super().__init__()
        g = named_generator(0)
        self.conv = CompoundConv2d(1, 2, 3, padding=1, generator=g)
        self.gru = CompoundGRU(12, 5, batch_first=True, bayes=True, generator=g)
        self.last = CompoundLinear(5, 3, bayes=True, generator=g)

    def forward(self, x: Tensor) -> Tensor:
        lines = self.conv(x).relu().transpose(1, 2).flatten(2)  # (rows, lines, channels columns)
        return self.last(self.gru(lines)[1][0])


def train(network: nn.Module, rows: slice) -> list[float]:
    """Losses of a few steps on some rows of every batch."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    generator = named_generator(1)
    losses = []
    for step in range(STEPS):
        x = torch.randn(ROWS, 1, 6, 6, generator=named_generator(2, step), dtype=torch.float64)
        y = torch.randint(3, (ROWS,), generator=named_generator(3, step))
        with sampling(generator, rows=rows, total=ROWS) as draws:
            logits = network(x[rows])
        loss = nn.functional.cross_entropy(logits, y[rows]) + draws.kl / 100
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def work(rank: int, folder: str, queue: "multiprocessing.Queue[list[float]]") -> None:
    init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    half = ROWS // 2
    network = DistributedDataParallel(Network().double())
    queue.put(train(network, slice(rank * half, (rank + 1) * half)))
    destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=work, args=(rank, sys.argv[1], queue)) for rank in range(2)]
    for worker in workers:
        worker.start()
    halves = [queue.get(timeout=100) for _ in workers]
    for worker in workers:
        worker.join()
    whole = train(Network().double(), slice(0, ROWS))
    worst = max(abs((a + b) / 2 - c) for a, b, c in zip(*halves, whole, strict=True))
    print(worst, abs(halves[0][0] - halves[1][0]))
    assert worst < 1e-9 and abs(halves[0][0] - halves[1][0]) > 1e-3 and whole[0] != whole[-1]
