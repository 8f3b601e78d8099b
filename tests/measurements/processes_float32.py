"""Training losses in float32: two processes against one with the same batches, step by step.

    python tests/measurements/processes_float32.py [--smooth]

The largest difference within the first 10, 100, 200 and 500 steps. Sums over rows round differently. That is
harmless until it turns a ReLU on that is off in the other fit: from then on gradients differ by what a row
contributes. With --smooth, tanh takes the place of ReLU in the networks of `ml-cdn`.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import destroy_process_group, init_process_group

sys.path.insert(0, str(Path(__file__).parents[1]))

import fits_in_processes

import compound.models.cdn
from compound.models import Method
from compound.nn import batched_compound, hypernetwork
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import Task, make_dataset

STEPS = 500
SHOWN = (10, 100, 200, 500)
NOISE = 0.3  # of the targets, with a standard deviation of about 1
CASES = (  # method, units, rows, rows of a batch, learning rate
    ("ml-cdn", 7, 120, 25, 0.01),
    ("ml-cdn", 50, 1000, 100, 0.001),
    ("map", 50, 1000, 100, 0.001),
    ("deep-ensemble", 50, 1000, 100, 0.001),
)


def losses(name: str, units: int, rows: int, batch: int, lr: float, distributed: bool) -> Any:
    """The training loss of every step."""
    generator, task = named_generator(0, name), Task("regression", 2)
    x = torch.randn(rows, 4, generator=generator)
    y = x[:, :2].sin() + NOISE * torch.randn(rows, 2, generator=generator)
    model = Method(name, widths=(units,)).build(4, task, seed=0)
    config = TrainConfig(STEPS, batch_size=batch, lr=lr, n_evals=STEPS, patience=0)
    return np.array(fit(model, make_dataset(x, y, task), config, 3, distributed=distributed)["nll"])


def work(rank: int, folder: str, queue: Any) -> None:
    init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    for case in CASES:
        queue.put((rank, case, losses(*case, distributed=True)))
    destroy_process_group()


def smoothen() -> None:
    """Compute with tanh where `ml-cdn` has ReLUs."""
    compound.models.cdn.clipped_relu = lambda x: torch.tanh(x)  # type: ignore[attr-defined]
    hypernetwork.ACTIVATIONS["relu"] = torch.tanh
    for layer in vars(batched_compound).values():
        if hasattr(layer, "has_compiled_draws"):  # computes ReLUs
            layer.has_compiled_draws = property(lambda self: False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "--smooth" in sys.argv:
        smoothen()
        CASES = CASES[:2]
    with tempfile.TemporaryDirectory() as home:
        answers = fits_in_processes.run(work, home, answers=2 * len(CASES))
    for case in CASES:
        two = next(values for rank, other, values in answers if (rank, other) == (0, case))
        apart = np.abs(two - losses(*case, distributed=False))
        print(
            *case, "last loss", two[-1].round(3), *(f"{k}: {apart[:k].max():.1e}" for k in SHOWN), flush=True
        )
