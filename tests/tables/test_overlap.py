"""Reading ahead and writing behind: order, overlap and errors."""

import threading
from collections.abc import Iterator

import pytest

from compound.tables.overlap import read_ahead, write_behind


def test_items_keep_their_order_and_the_next_one_is_made_meanwhile():
    made = [threading.Event() for _ in range(5)]

    def items() -> Iterator[int]:
        for k, event in enumerate(made):
            event.set()
            yield k

    seen = []
    with read_ahead(items()) as ahead:
        for k in ahead:
            assert all(event.wait(10) for event in made[: k + 2])  # the next one, before it is asked for
            seen.append(k)
    assert seen == [0, 1, 2, 3, 4]


def test_an_error_in_reading_comes_in_its_place():
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("line 2")

    with read_ahead(items()) as ahead:
        assert next(ahead) == 1
        with pytest.raises(ValueError, match="line 2"):
            next(ahead)


def test_calls_keep_their_order_and_end_before_the_context():
    written: list[int] = []
    free = threading.Event()

    def write(k: int) -> None:
        assert free.wait(10)
        written.append(k)

    with write_behind(write) as call:
        call(0)
        assert not written  # the caller did not wait for it
        free.set()
        for k in (1, 2, 3):
            call(k)
    assert written == [0, 1, 2, 3]


@pytest.mark.parametrize("calls", [1, 2])
def test_an_error_in_writing_is_raised(calls: int):
    def write() -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"), write_behind(write) as call:
        for _ in range(calls):
            call()
