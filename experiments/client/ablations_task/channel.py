"""Lines of JSON between a trainer's process and the one that started it."""

from __future__ import annotations

import json
import os
import select
import threading
from typing import Any, Mapping


class Channel:
    """Lines of JSON to and from the process that started this one."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = requests, answers
        self._buffer, self._stop = b"", False
        self._turn = threading.RLock()

    def say(self, message: Mapping[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._turn:
            while line:
                line = line[os.write(self._answers, line) :]

    def ask(self, message: Mapping[str, Any]) -> Any:
        with self._turn:
            self.say(message)
            return self.next()

    def next(self) -> Any:
        """The next message except a request to stop; None when the other process is gone."""
        with self._turn:
            while True:
                line, found, rest = self._buffer.partition(b"\n")
                if not found:
                    more = os.read(self._requests, 1 << 16)
                    if not more:
                        return None
                    self._buffer += more
                    continue
                self._buffer = rest
                message = json.loads(line)
                if "stop" in message:
                    self._stop = True
                    continue
                return message

    def stop_requested(self, *_: Any) -> bool:
        with self._turn:
            # Outside of `ask` the other process sends nothing else; a stop may have come with the request to train.
            self._stop = self._stop or bool(self._buffer or select.select([self._requests], [], [], 0)[0])
            return self._stop

    def stop(self, *_: Any) -> None:
        """A signal's handler."""
        self._stop = True
