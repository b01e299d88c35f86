"""Produce items in a background thread. Imports no torch."""

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetch(items: Iterable[Item], depth: int = 2) -> Generator[Item]:
    """Yield `items` in order. A thread produces up to `depth` + 1 items before the consumer requests them.

    If `items` raises an exception, the generator yields the items before it and then raises the exception. If the
    generator is closed early, for example by `contextlib.closing`, it stops the thread and waits for its end.
    """
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "prefetch") as thread:
        ahead = deque(thread.submit(next, source, end) for _ in range(depth + 1))
        try:
            while (item := ahead.popleft().result()) is not end:
                ahead.append(thread.submit(next, source, end))
                yield item  # type: ignore[misc]  # not the end
        finally:
            for future in ahead:
                future.cancel()
