"""Produce the next items while the last one is used. Imports no torch."""

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetch(items: Iterable[Item], depth: int = 2) -> Generator[Item]:
    """Yield `items` in order; a thread produces up to `depth` of them ahead, and one more.

    An exception of the iterable is raised here, after the items before it. Closing the generator early (for example by
    `contextlib.closing`) stops the thread and waits for it.
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
