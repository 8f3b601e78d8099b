"""Two processes that fit models together against one with the same batches; for test_processes.py."""

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import destroy_process_group, init_process_group

from compound.models import METHODS, Method
from compound.network import Head
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.holdout import holdout_weights
from compound.train.loop import fit
from compound.types import Task, make_dataset

ROWS, STEPS = 120, 8
HEADS = ("ml-cdn", "vb-cdn", "map")
OPTIONS: dict[str, dict[str, Any]] = {  # that reach further draws, weights and terms than the defaults
    "ml-cdn": {"members": 3, "samples": 2, "lam": 1e-3},
    "vb-cdn": {"members": 2, "samples": 3, "objective": "official"},
    "deep-ensemble": {"members": 2, "adversarial": 0.01, "precision": 1.0},
    "mc-dropout": {"length_scale": 0.1, "input_rate": 0.1},
    "map": {"precision": 1.0},
    "bbb": {"samples": 2},
    "vmg": {"samples": 2},
}


def methods() -> list[str]:
    """The methods that several processes can train."""
    return [name for name, method in METHODS.items() if not method.whole_batches]


def fit_one(
    name: str, kind: str, dtype: torch.dtype, distributed: bool, checkpoint: str | None = None
) -> Any:
    """The losses of a fit with weights and rows that members hold out, and all parameters."""
    task = Task("classification", 3) if kind == "classification" else Task("regression", 2)
    generator = named_generator(0, name)
    x = torch.randn(ROWS, 4, generator=generator, dtype=dtype)
    y = x[:, :2].sin() if kind == "regression" else (x[:, 0] > 0).long() + (x[:, 1] > 0)
    options = OPTIONS.get(name, {}) | ({"beta": 0.5} if (name, kind) == ("ml-cdn", "regression") else {})
    model = Method(name, widths=(7,), **options).build(4, task, seed=0).to(dtype)
    weight = holdout_weights(ROWS, model.members, 0.2, seed=0).to(dtype)
    weight = weight * torch.rand(ROWS, generator=generator, dtype=dtype).add(0.5)
    data = make_dataset(x, y, task, weight, x + 3 if model.needs_ood_rows else None)
    config = TrainConfig(STEPS, batch_size=25, lr=0.01, n_evals=STEPS, patience=0, clip_norm=0.5)
    history = fit(model, data, config, 3, checkpoint, 0.0, None, distributed)
    values = torch.tensor([history["nll"], history["kl"], history["held_out"]], dtype=torch.float64)
    # arrays: tensors in a queue need the process that put them there
    return values.numpy(), torch.cat([p.detach().flatten().double() for p in model.parameters()]).numpy()


def fit_head(name: str, distributed: bool) -> Any:
    """The losses of a network with a head, and all parameters: with weights, or two tokens per row."""
    task = Task("classification", 3)
    torch.manual_seed(0)
    backbone = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh()).double()
    head = Head(Method(name, widths=(5,)), features=6, task=task, rows=100.0, seed=1)
    x = torch.randn(35, 2, 4, generator=named_generator(0, "x"), dtype=torch.float64)
    y = (x[..., 0] > 0).long() + (x[..., 1] > 0)
    weight = torch.rand(35, generator=named_generator(0, "w"), dtype=torch.float64)
    loader: Any = list(zip(x.split(9), y.split(9), strict=True))
    if name == "map":
        loader = list(zip(x[:, 0].split(9), y[:, 0].split(9), weight.split(9), strict=True))
    losses = head.fit(backbone, loader, epochs=3, lr=0.01, distributed=distributed)
    parameters = [*head.model.parameters(), *backbone.parameters()]
    return np.array(losses), torch.cat([p.detach().flatten().double() for p in parameters]).numpy()


def cases() -> list[tuple[str, str, torch.dtype]]:
    regression = [(name, "regression", torch.float64) for name in methods()]
    classes = [(name, "classification", torch.float64) for name in ("ml-cdn", "vb-cdn", "map")]
    return [*regression, *classes, ("ml-cdn", "regression", torch.float32)]


def work(rank: int, folder: str, queue: Any) -> None:
    init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    for case in cases():
        queue.put((rank, case, fit_one(*case, distributed=True)))
    for name in HEADS:
        queue.put((rank, name, fit_head(name, distributed=True)))
    try:
        fit_one("noisy-adam", "regression", torch.float32, distributed=True)
    except ValueError as error:
        queue.put((rank, "refused", str(error)))
    destroy_process_group()


def work_and_die(rank: int, folder: str, meeting: str, death: int, queue: Any) -> None:
    """A fit with a checkpoint; the second process kills itself in step `death`, if that is not negative."""
    from compound.models.cdn import MLCDN

    init_process_group("gloo", init_method=f"file://{folder}/{meeting}", rank=rank, world_size=2)
    loss, calls = MLCDN.loss, [0]

    def counted(self: Any, *arguments: Any) -> Any:
        calls[0] += 1
        if rank == 1 and calls[0] == death:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss(self, *arguments)

    MLCDN.loss = counted  # type: ignore[method-assign]
    path = f"{folder}/fit.checkpoint" if death else None
    try:
        queue.put((rank, fit_one("ml-cdn", "regression", torch.float32, True, path), calls[0]))
    except ConnectionError as error:
        queue.put((rank, str(error), calls[0]))
    if death <= 0:
        destroy_process_group()


def run(target: Any, *arguments: Any, answers: int) -> list[Any]:
    """The answers of two processes."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=target, args=(rank, *arguments, queue)) for rank in range(2)]
    for worker in workers:
        worker.start()
    out = [queue.get(timeout=100) for _ in range(answers)]
    for worker in workers:
        worker.join()
    return out


def compare(folder: str) -> None:
    """Losses, and weights, of both processes against those of one."""
    answers = run(work, folder, answers=2 * (len(cases()) + len(HEADS) + 1))
    for case in cases():
        tolerance = 1e-9 if case[2] == torch.float64 else 1e-4
        values, parameters = fit_one(*case, distributed=False)
        (a, first), (b, second) = (answer for _, other, answer in answers if other == case)
        assert (first == second).all() and np.array_equal(a, b, equal_nan=True), case
        worst = np.abs(np.nan_to_num(a - values)).max()
        apart = np.abs(first - parameters).max()
        print(*case, f"losses {worst:.1e}, weights {apart:.1e}")
        assert worst < tolerance and (np.isnan(a) == np.isnan(values)).all(), case
        assert apart < 10 * tolerance, case
    for name in HEADS:
        (a, first), (b, second) = (answer for _, other, answer in answers if other == name)
        losses, parameters = fit_head(name, distributed=False)
        assert (first == second).all() and (a == b).all()
        print("head", name, f"losses {np.abs(a - losses).max():.1e}")
        assert np.abs(a - losses).max() < 1e-4 and np.abs(first - parameters).max() < 1e-3
    refusals = [text for _, kind, text in answers if kind == "refused"]
    assert len(refusals) == 2 and all("noisy-adam cannot be trained by 2 processes" in t for t in refusals)


def kill_and_resume(folder: str) -> None:
    """SIGKILL of one process, and a restart of both, give the bits of an undisturbed fit."""
    ((_, undisturbed, _), _) = run(work_and_die, folder, "first", 0, answers=2)
    ((_, message, _),) = run(work_and_die, folder, "second", 5, answers=1)
    assert "another process of the fit has ended" in message and Path(folder, "fit.checkpoint").exists()
    for _, (values, parameters), calls in run(work_and_die, folder, "third", -1, answers=2):
        assert 0 < calls < STEPS, calls  # it went on from the checkpoint
        assert (parameters == undisturbed[1]).all()
        assert np.array_equal(values, undisturbed[0], equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    compare(sys.argv[1])
    kill_and_resume(sys.argv[1])
