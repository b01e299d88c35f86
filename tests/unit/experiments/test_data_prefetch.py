"""Prefetching changes only when items are made, and leaves no thread behind."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from experiments.data.prefetch import prefetch


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_items_come_in_order_and_the_thread_ends() -> None:
    assert list(prefetch(range(100), depth=3)) == list(range(100))
    assert list(prefetch([])) == []
    assert not running()


def test_items_are_made_ahead_but_not_further_than_asked() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            made.append(item)
            yield item

    with closing(prefetch(items(), depth=2)) as ahead:
        assert next(ahead) == 0
        until = time.monotonic() + 120
        while len(made) < 4 and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.02)
        assert made == [0, 1, 2, 3]  # one taken, two waiting, one in hand
    assert not running()


def test_an_error_arrives_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("lost")

    ahead = prefetch(items())
    assert next(ahead) == 1
    with pytest.raises(KeyError, match="lost"):
        next(ahead)
    assert not running()


def test_leaving_early_stops_a_thread_that_waits() -> None:
    with closing(prefetch(iter(int, 1), depth=1)) as endless:
        assert next(endless) == 0
        assert len(running()) == 1
    assert not running()
