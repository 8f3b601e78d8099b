"""Estimates of the memory that a fit will need, to refuse one that is too large before it starts."""

import os
from contextlib import nullcontext
from pathlib import Path

import torch

from compound.models import Method, Model
from compound.nn import PiecewiseLinearEncoding
from compound.types import Task

GB = 1e9
SMALL = 10**8  # of `_bound`: a twentieth of it are the numbers of an ordinary model
DEFAULT_SIZES = 200  # hidden units of a network with default options
LARGE = 10**6  # rows of a large table


def n_numbers(method: Method, inputs: int, bins: int, task: Task) -> int:
    """How many numbers the parameters and buffers of a model hold."""
    return sum(tensor.numel() for tensor in skeleton(method, inputs, bins, task).state_dict().values())


def skeleton(method: Method, inputs: int, bins: int, task: Task) -> Model:
    """A model whose tensors have the right shapes; `bins` encode its inputs.

    A model that may be large is built on the meta device, where tensors take no memory. Others are built as
    they are: torch imports its compiler for the meta device, which takes more than a second.
    """
    is_small = _bound(method, inputs + bins + task.size) <= SMALL
    try:
        with nullcontext() if is_small else torch.device("meta"):
            return method.build(inputs, task, 0, PiecewiseLinearEncoding(inputs, bins=bins))
    except RuntimeError as error:  # sizes beyond 64 bits
        raise ValueError(
            f"{method} for {inputs:,} inputs has layers too large for any memory: give smaller ones"
        ) from error


def _bound(method: Method, width: int) -> int:
    """A bound on the numbers of a model, from its largest sizes; its layers have few factors of them."""
    options = [value if isinstance(value, tuple) else (value,) for value in method.options.values()]
    sizes = [abs(size) for option in options for size in option if isinstance(size, int)]
    return 8 * (width + DEFAULT_SIZES + sum(sizes)) ** 2 * max([5, *sizes])


def estimate(
    method: Method, rows: int, width: int, bins: int, task: Task, batch_size: int, members: int
) -> int:
    """Estimated peak memory of a fit, in bytes, for rows of `width` numbers that `bins` bins encode."""
    table = rows * width * 28  # in float64 and float32, with the copies that encoding and distances make
    labels = rows * (8 * task.size + 8 * members)
    # weights, gradients, two moments, averages, best weights
    model = 6 * 4 * n_numbers(method, width, bins, task)
    steps = 16 * 4 * members * min(batch_size, rows) * (3 * (width + bins) + 500)
    return table + labels + model + steps + whitening_bytes(width)


def whitening_bytes(width: int) -> int:
    """Memory, in bytes, for the whitening of rows of `width` numbers by the out-of-distribution distance."""
    return 5 * 8 * width**2


def check(
    method: Method,
    rows: int,
    width: int,
    bins: int,
    task: Task,
    batch_size: int,
    members: int,
    free: int | None = None,
) -> None:
    """Raise ValueError for a fit that needs more memory than is free, with advice such as fewer rows.

    `width` is the number of encoded columns, `bins` that of their bins, `free` the free memory in bytes, by
    default `available()`.
    """
    free = available() if free is None else free
    needed = estimate(method, rows, width, bins, task, batch_size, members)
    if free is None or needed <= free:
        return
    min_rows = min(batch_size, rows - 1)
    at_min_rows = estimate(method, min_rows, width, bins, task, batch_size, members)
    if at_min_rows < 0.5 * free:  # above one batch, memory is linear in the rows
        max_rows = min_rows + (free - at_min_rows) * (rows - min_rows) // (needed - at_min_rows)
        advice = f"fit on a sample of at most {max_rows:,} rows"
    else:
        advice = "drop columns, give fewer members or use a method with smaller layers"
    raise ValueError(
        f"fitting {rows:,} rows of {width:,} numbers needs about {needed / GB:.1f} GB, "
        f"{free / GB:.1f} GB are free: {advice}"
    )


def available() -> int | None:
    """Bytes of memory that this process can still use; None where the system does not say."""
    try:
        fields = Path("/proc/meminfo").read_text().split()
        free = 1024 * int(fields[fields.index("MemAvailable:") + 1])
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
