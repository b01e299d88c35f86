"""Handle SIGINT and SIGTERM.

After the first signal, children save a checkpoint. The second signal ends the work immediately.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupts:
    """A signal handler for a `with` block.

    `number` is the first signal that was received (0: none). The second signal raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python handles signals in the main thread only
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number
