"""The memory that a run needs, declared to a cluster before the run starts."""

from typing import NamedTuple

from compound.estimators.memory import estimate
from compound.experiments.identity import Run
from compound.models import METHODS, Method
from compound.types import Task

# of a process that has imported the library and compiled its loops, in bytes (measured: 380 to 430 MB)
PROCESS_BYTES = 500 * 10**6
EVALUATION_FACTOR = 1.5  # what evaluation takes besides: test rows, draws


class DataSize(NamedTuple):
    """The rows, inputs and task of a run, known without its files; upper bounds where they vary."""

    rows: int
    inputs: int
    task: Task


IMAGES = DataSize(70_000, 784, Task("classification", 10))


def run_bytes(run: Run, size: DataSize) -> int:
    """Estimated peak memory of the process of a run, as `compound fit` estimates that of a fit.

    Baselines of other libraries count as a copy of the table in their bins and trees.
    """
    if run.method not in METHODS:
        return PROCESS_BYTES + 4 * 8 * size.rows * size.inputs
    method = Method(run.method, **run.options)
    batch_size = int(run.settings.get("batch_size", 256))
    members = method.build(1, size.task, 0).members
    fit = estimate(method, size.rows, size.inputs, 0, size.task, batch_size, members)
    return PROCESS_BYTES + int(EVALUATION_FACTOR * fit)
