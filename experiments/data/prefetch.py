"""Produce the next items while the last one is used. Imports no torch."""

import queue
import threading
from collections.abc import Generator, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _End:
    """The iterable is exhausted, or raised `error`."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Producer(Generic[Item]):
    """A thread that fills a bounded queue until it is stopped."""

    def __init__(self, items: Iterable[Item], depth: int) -> None:
        self.queue: queue.Queue[Item | _End] = queue.Queue(maxsize=depth)
        self._items = items
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for item in self._items:
                if not self._put(item):
                    return
            self._put(_End())
        except BaseException as error:  # raised by the consumer
            self._put(_End(error))

    def _put(self, item: Item | _End) -> bool:
        while not self._stop.is_set():
            try:
                self.queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def close(self) -> None:
        self._stop.set()
        while not self.queue.empty():  # a waiting put returns at once
            self.queue.get_nowait()
        self._thread.join()


def prefetch(items: Iterable[Item], depth: int = 2) -> Generator[Item]:
    """Yield `items` in order; a thread produces up to `depth` of them ahead.

    An exception of the iterable is raised here, after the items before it. Closing the generator early (for example by
    `contextlib.closing`) stops the thread and waits for it.
    """
    producer = _Producer(items, depth)
    try:
        while True:
            item = producer.queue.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        producer.close()
