"""The training curve: losses are collected on the device and emitted at intervals, so that no step waits for it."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from experiments.errors import Diverged

EVERY_STEPS = 10  # these points do not depend on the clock: two equal runs share them
EVERY_S = 2.0  # additional points if steps are slow


class Curve:
    """Collects losses on the device and emits "metrics": the newest step's loss, and speeds since the last point.

    `add_up` sums over the processes that train together; token counts are passed already summed.
    """

    def __init__(self, emit: Callable[..., None], add_up: Callable[[Tensor], Tensor]) -> None:
        self._emit, self._add_up = emit, add_up
        self._waiting: list[tuple[int, Tensor, Tensor, int]] = []
        self.last: dict[str, float] = {}
        self._once: dict[str, float] = {}
        self.restart_clock()

    def restart_clock(self) -> None:
        """Exclude the time since the last point from the speeds: an evaluation, a checkpoint."""
        self._source_tokens = self._target_tokens = self._positions = 0
        self._since = time.perf_counter()

    def add(self, step: int, loss: Tensor, nll: Tensor, target: int, source: int, positions: int) -> None:
        """Add one step: sums over its `target` tokens. `positions`: places of both sides, padding included."""
        self._waiting.append((step, loss, nll, target))
        self._source_tokens += source
        self._target_tokens += target
        self._positions += positions

    def tell(self, metrics: Mapping[str, float]) -> None:
        """Add numbers to the next point alone."""
        self._once.update(metrics)

    def due(self, step: int) -> bool:
        """Whether a point is due: every EVERY_STEPS steps, and after EVERY_S without one."""
        return step % EVERY_STEPS == 0 or time.perf_counter() - self._since >= EVERY_S

    def flush(self, learning_rate: float) -> None:
        """Wait for the device, check every step since the last point, emit one point. Raises Diverged."""
        if not self._waiting:
            return
        sums = self._add_up(torch.stack([torch.stack((loss, nll)) for _, loss, nll, _ in self._waiting])).tolist()
        for (step, *_), (loss, _) in zip(self._waiting, sums, strict=True):
            if not math.isfinite(loss):
                raise Diverged(
                    f"the loss of step {step} is {loss}: training diverged. Use a lower training.learning_rate_scale "
                    "or training.learning_rate, a longer training.warmup_steps, or training.clip_norm."
                )
        seconds = time.perf_counter() - self._since
        step, _, _, tokens = self._waiting[-1]
        loss, nll = (value / max(1, tokens) for value in sums[-1])
        self.last = {"loss": loss, "nll": nll, "perplexity": math.exp(min(nll, 700.0))}
        speeds: dict[str, Any] = {
            "target_tokens_per_s": round(self._target_tokens / seconds, 1),
            "source_tokens_per_s": round(self._source_tokens / seconds, 1),
            "padding": round(1 - (self._target_tokens + self._source_tokens) / max(1, self._positions), 4),
        }
        self._emit("metrics", step=step, metrics={"learning_rate": learning_rate, **self.last, **speeds, **self._once})
        self._waiting.clear()
        self._once.clear()
        self.restart_clock()
