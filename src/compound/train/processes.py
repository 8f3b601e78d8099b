"""Processes that share a fit: each computes a part of every batch, and their gradients are averaged.

The mean over processes of the gradients of their parts' losses is the gradient of the batch's loss: every
process divides the sums over its rows by the weight of all rows (`Batch.part`), takes its rows of the batch's
noise (`PartGenerator`), and terms that belong to no row are the same in all. So all processes hold the same
weights, of which the first writes the files. They are those of torch.distributed: torchrun and Ray Train
start them.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from compound.models.base import Model

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """The processes of a fit, seen from one of them.

    Parameters
    ----------
    rank : int, default=0
        The number of this process.
    size : int, default=1
        How many there are.

    Examples
    --------
    >>> from compound.train.processes import Processes
    >>> Processes.of(distributed=False)
    Processes(rank=0, size=1)
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, distributed: bool) -> "Processes":
        """Those of torch.distributed, or this one alone; ValueError where they have not met."""
        if not distributed:
            return cls()
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise ValueError(
                "distributed=True needs processes that have met: start them by torchrun, and call "
                "torch.distributed.init_process_group('gloo') in each"
            )
        return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def check(self, model: Model | type[Model], batch_rows: int | None) -> None:
        """Raise ValueError for a method that needs whole batches, or batches of fewer rows than processes.

        `batch_rows` is None where it is not known yet.
        """
        if self.size == 1:
            return
        if model.whole_batches:
            raise ValueError(
                f"{model.method} cannot be trained by {self.size} processes: {model.whole_batches}; "
                "use one process, or another method"
            )
        if batch_rows is not None and batch_rows < self.size:
            raise ValueError(
                f"a batch of {batch_rows} rows for {self.size} processes: give larger batches, "
                "or fewer processes"
            )

    def mean_gradients(self, parameters: Sequence[Tensor], others: Sequence[Tensor], failed: bool) -> bool:
        """Replace gradients, and the tensors of `others`, by their means over processes, in one message.

        Returns whether any process has `failed`; gradients are then left as they are.
        """
        if self.size == 1:
            return failed
        present = [p for p in parameters if p.grad is not None or failed]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in present]
        values = [*gradients, *others]
        flat = torch.cat([v.detach().reshape(-1) for v in values] + [others[0].new_tensor([float(failed)])])
        with peer_errors():
            distributed.all_reduce(flat)
        if bool(flat[-1] > 0):
            return True
        parts = (flat[:-1] / self.size).split([v.numel() for v in values])
        for value, part in zip(values, parts, strict=True):
            value.copy_(part.view_as(value))
        return False

    def average(self, values: Tensor) -> Tensor:
        """The mean of a tensor over processes."""
        return self.sum(values) / self.size

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a tensor over processes; the same bits in all."""
        if self.size > 1:
            values = values.clone()
            with peer_errors():
                distributed.all_reduce(values)
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` returns in the first process; a ValueError or OSError there is raised in all."""
        if self.size == 1:
            return make()
        answer: list[Any] = [None, None]
        if self.is_first:
            try:
                answer[0] = make()
            except (ValueError, OSError) as error:
                answer[1] = error
        with peer_errors():
            distributed.broadcast_object_list(answer, src=0)
        if answer[1] is not None:
            raise answer[1]
        return answer[0]  # type: ignore[no-any-return]

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            with peer_errors():
                distributed.barrier()


@contextmanager
def torchrun() -> Iterator[Processes]:
    """Context in which the processes that torchrun has started meet (gloo); this one alone without torchrun.

    They part at its end.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "MASTER_ADDR" not in os.environ:
        yield Processes()
        return
    distributed.init_process_group("gloo")
    try:
        yield Processes.of(distributed=True)
    finally:
        distributed.destroy_process_group()


@contextmanager
def peer_errors() -> Iterator[None]:
    """Context in which the loss of another process becomes a ConnectionError that says what to do."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(
            f"another process of the fit has ended ({str(error).splitlines()[0][:200]}): "
            "start all of them again, with a checkpoint the fit goes on from there"
        ) from error
