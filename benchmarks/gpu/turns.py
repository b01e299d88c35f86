"""Several trainings in one process that take turns on the device, so that all are measured under the same conditions.

Each contestant runs a training loop in a separate thread and calls `Turn.stop` after every step. Only one thread works
at a time; the others wait in `stop`. The first turn builds the model and is the warm-up (kernels, compiled code,
captured graphs). Every later turn is one measured round.
"""

import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.measured import NothingMeasuredError, median, positive
from experiments.device import Device

WARMING = 0.6  # share of the total time in which warm-ups may start


class EndedError(Exception):
    """Raised in a contestant's thread after its last round."""


class Turn:
    """One contestant and its thread. Its training calls `stop` after every step."""

    def __init__(self, name: str, train: Callable[["Turn"], None], device: Device, warm: int, steps: int) -> None:
        """Start the thread.

        train: builds the model and trains until `stop` raises EndedError.
        warm, steps: number of steps of the first turn and of each later turn.
        """
        self.name, self._train, self._device = name, train, device
        self._left, self.steps = warm, steps
        self._go, self._handed_over = threading.Semaphore(0), threading.Semaphore(0)
        self._over, self._began = False, 0.0
        self.seconds = list[float]()  # seconds of every round
        self.warm_s, self.peak_memory_gb = 0.0, 0.0
        self.failed, self.late = "", False
        self.loss: torch.Tensor | None = None  # loss of the last step, if the contestant sets it
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def take(self) -> None:
        """Let the contestant do its next turn and wait for its end. Called by the main thread."""
        if self._thread.is_alive() and not self.failed and not self.late:
            self._go.release()
            self._handed_over.acquire()

    def close(self) -> None:
        """End the thread, which frees the model."""
        self._over = True
        if self._thread.is_alive():
            self._go.release()
            self._thread.join()

    def stop(self) -> bool:
        """Count a step. At the end of a turn, wait for the next turn. Raises EndedError if there is none."""
        self._left -= 1
        if self._left > 0:
            return False
        self._device.synchronize()
        now = time.perf_counter()
        if self.warm_s:
            self.seconds.append(now - self._began)
        else:
            self.warm_s = now - self._began
            self.peak_memory_gb = self._memory_gb()
        self._handed_over.release()
        self._begin()
        return False

    def _begin(self) -> None:
        self._go.acquire()
        if self._over:
            raise EndedError
        if self.warm_s:
            self._left = self.steps
        self._device.synchronize()
        self._began = time.perf_counter()

    def _run(self) -> None:
        try:
            self._go.acquire()
            if self._over:
                return
            self._before = self._reset_memory()
            self._began = time.perf_counter()
            self._train(self)
            raise NothingMeasuredError(f"{self.name}: the training ended before its measurement")
        except EndedError:
            pass
        except BaseException as error:  # a failure of one contestant must not end the others
            traceback.print_exc()
            self.failed = f"{type(error).__name__}: {error}"[:300]
        finally:
            self._handed_over.release()

    def _reset_memory(self) -> int:
        if not self._device.is_cuda:
            return 0
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())

    def _memory_gb(self) -> float:
        """Return the peak memory of the first turn, without the memory of the other contestants."""
        return round((self._device.peak_memory_bytes() - self._before) / 1e9, 2)


def interleave(turns: Sequence[Turn], rounds: int, deadline: float) -> Iterator[int]:
    """Do the warm-ups one after the other, then rounds. In a round each contestant has one turn.

    Yield the number of finished rounds after each round. End early if another round would pass `deadline`, a value of
    time.monotonic. A contestant is `late` and does not take part if its warm-up would start after the share WARMING of
    the time.
    """
    warm_until = time.monotonic() + WARMING * (deadline - time.monotonic())
    for turn in turns:
        turn.late = time.monotonic() > warm_until
        turn.take()
    longest = 0.0
    for number in range(1, rounds + 1):
        began = time.monotonic()
        if began + longest > deadline:
            return
        for turn in turns:
            turn.take()
        longest = max(longest, time.monotonic() - began)
        yield number


def close(turns: Sequence[Turn]) -> None:
    """End all threads and free the device's memory."""
    for turn in turns:
        turn.close()
    gc.collect()
    if "torch._dynamo" in sys.modules:  # do not import it only for the reset, because the import takes seconds
        torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def rates(turn: Turn, tokens: Sequence[int]) -> dict[str, Any]:
    """Return the median over rounds of a contestant's tokens per second. tokens: target tokens of every round.

    Raises NothingMeasuredError if there are fewer than two rounds, no tokens or no time, or if the loss is not finite
    and positive.
    """
    if turn.failed or turn.late:
        return {"failed": turn.failed or "no time was left to warm up"}
    seconds_per_round = median(turn.name, turn.seconds)
    if turn.loss is not None:
        positive(turn.name, loss=float(turn.loss))
    done = [count / seconds for count, seconds in zip(tokens, turn.seconds, strict=True)]
    return {
        "target_tokens_per_s": round(median(turn.name, done), 1),
        "step_ms": round(1e3 * seconds_per_round / turn.steps, 2),
        "rounds": [round(rate) for rate in done],
        "warm_s": round(turn.warm_s, 1),
        "peak_memory_gb": turn.peak_memory_gb,
    }
