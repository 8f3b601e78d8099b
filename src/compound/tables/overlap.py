"""Reading ahead and writing behind: input and output in threads of their own while the caller computes."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


@contextmanager
def read_ahead(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """Context with the same items in the same order, of which the next one is made while one is used.

    What `items` raises is raised where the item would have come.
    """
    with ThreadPoolExecutor(1, "read ahead") as thread:

        def ordered() -> Iterator[T]:
            coming: Future[list[T]] = thread.submit(_next, items)
            while item := coming.result():
                coming = thread.submit(_next, items)
                yield item[0]

        yield ordered()


@contextmanager
def write_behind(write: Callable[P, object]) -> Iterator[Callable[P, None]]:
    """Context with a function that calls `write` in a thread: in order, at most one call behind.

    What a call raises is raised by the next one, or at the end of the context.
    """
    with ThreadPoolExecutor(1, "write behind") as thread:
        former: list[Future[object]] = []

        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            wait()
            former.append(thread.submit(write, *args, **kwargs))

        def wait() -> None:
            while former:
                former.pop().result()

        yield call
        wait()


def _next(items: Iterator[T]) -> list[T]:
    """The next item in a list, which is empty at the end."""
    for item in items:
        return [item]
    return []
