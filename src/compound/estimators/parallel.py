"""Parts of a computation side by side, each on one thread: numbers do not depend on how many there are.

torch splits operations among its threads, and their rounding may depend on the number of parts. Here a thread
has whole parts. Compiled loops and most operations of torch release Python's lock.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")


def parallel_map(function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """`function` of each item, in order; as many at a time as torch has threads, each on one thread.

    Items are taken as results are: those of a large table need not be in memory together.
    """
    threads = torch.get_num_threads()
    grad, iterator = torch.is_grad_enabled(), iter(items)

    def work(item: S) -> T:
        with one_thread(), torch.set_grad_enabled(grad):
            return function(item)

    first = list(islice(iterator, 2))
    if threads == 1 or len(first) < 2:
        yield from map(work, first)
        yield from map(work, iterator)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[T]] = deque(pool.submit(work, item) for item in first)
        try:
            for item in iterator:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            torch.set_num_threads(threads)  # what threads begin with that are new to torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Operations of torch on this thread, one after the other."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
