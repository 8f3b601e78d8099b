"""What a fit will need, before it starts: a refusal names the number and the alternative."""

import os
from pathlib import Path

import torch

from compound.models import Method, Model
from compound.types import Task

GB = 1e9


def numbers(method: Method, inputs: int, task: Task) -> int:
    """How many parameters and buffers a model has."""
    return sum(tensor.numel() for tensor in skeleton(method, inputs, task).state_dict().values())


def skeleton(method: Method, inputs: int, task: Task) -> Model:
    """The model with shapes only: its tensors take no memory."""
    try:
        with torch.device("meta"):
            return method.build(inputs, task, 0)
    except RuntimeError as error:  # more numbers than 64 bits can count
        raise ValueError(
            f"{method} for {inputs:,} inputs has layers too large for any memory: give smaller ones"
        ) from error


def estimate(method: Method, rows: int, width: int, task: Task, batch: int, members: int) -> int:
    """Bytes at the peak of a fit."""
    table = rows * width * 28  # in float64 and float32, with the copies that encoding and distances make
    labels = rows * (8 * task.size + 8 * members)
    model = 6 * 4 * numbers(method, width, task)  # weights, gradients, two moments, averages, the best so far
    steps = 16 * 4 * members * min(batch, rows) * (3 * width + 500)
    return table + labels + model + steps + whitening(width)


def whitening(width: int) -> int:
    """Bytes that any fit of rows of so many numbers takes, for whitening them."""
    return 5 * 8 * width**2


def check(
    method: Method, rows: int, width: int, task: Task, batch: int, members: int, free: int | None = None
) -> None:
    """Refuse a fit that would not fit into memory."""
    free = available() if free is None else free
    needed = estimate(method, rows, width, task, batch, members)
    if free is None or needed <= free:
        return
    least = min(batch, rows - 1)
    fixed = estimate(method, least, width, task, batch, members)
    if fixed < 0.5 * free:  # from a batch on, memory is a straight line in the rows
        fitting = least + (free - fixed) * (rows - least) // (needed - fixed)
        advice = f"fit on a sample of at most {fitting:,} rows"
    else:
        advice = "drop columns, give fewer members or use a method with smaller layers"
    raise ValueError(
        f"fitting {rows:,} rows of {width:,} numbers needs about {needed / GB:.1f} GB, {free / GB:.1f} GB are free: {advice}"
    )


def available() -> int | None:
    """Bytes of memory that are free for us; None where the system does not say."""
    try:
        words = Path("/proc/meminfo").read_text().split()
        free = 1024 * int(words[words.index("MemAvailable:") + 1])
    except (OSError, ValueError):
        try:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, AttributeError):
            return None
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        return min(free, int(limit) - used) if limit != "max" else free
    except (OSError, ValueError):
        return free
