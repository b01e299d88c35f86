"""The training loop (section 5). It knows neither text nor tables: batches come from a function of the step.

All randomness of a step is a function of (seed, step). So a training that was killed at any step and resumed from a
checkpoint computes the same numbers as an uninterrupted one.
"""

import contextlib
import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from experiments.config.training import TrainingConfig
from experiments.data.batching import Batch
from experiments.data.prefetch import prefetch
from experiments.device import Device, naming_nondeterminism, naming_out_of_memory
from experiments.errors import Preempted
from experiments.store.retention import Keep
from experiments.training.checkpoint import Start
from experiments.training.optimizers import clip, set_learning_rate, update
from experiments.training.parallel import Group
from experiments.training.schedules import make_schedule
from experiments.training.state import Training, naming_recompiles
from model.protocol import Network


def train(
    model: Network,
    settings: TrainingConfig,
    *,
    d_model: int,
    batches: Callable[[int], Sequence[Batch[Tensor]]],
    seed: int,
    device: Device,
    folder: Path,
    emit: Callable[..., None],
    should_stop: Callable[[], bool],
    meta: Mapping[str, Any],
    earlier: Sequence[Path] = (),
    start: Start | None = None,
    evaluate: Callable[[int], Mapping[str, float]] | None = None,
    group: Group | None = None,
    keeps: Sequence[Keep] = (),
) -> dict[str, Any]:
    """Train `model` (on `device`) to `settings.train_steps`; returns facts.

    batches(step): a step's micro-batches on the processor, a pure function of the step; steps count from 1. Called in a
    thread, ahead of the step. With several processes (`group`) it returns this one's share; only rank 0 emits events,
    evaluates and saves.
    meta: must contain "lineage" and "code" (a checkpoint with others is not continued); stored with every checkpoint.
    earlier: folders of attempts whose checkpoints may be used.
    start: of a branch, which begins with the state of another run where no earlier attempt has a checkpoint.
    evaluate(step): called every `eval_steps` with the model in eval mode; its "perplexity" decides the best checkpoint.
    keeps: checkpoints that other studies need of this training, besides its own settings (store/retention.py).

    Writes `folder/checkpoints/…` and `folder/final`. Raises Preempted after a checkpoint if `should_stop()` is true;
    Diverged; OutOfMemory; UserError (checkpoint of another configuration, full disk, kernel that cannot be
    deterministic). A checkpoint is written during the next steps; one of them raises its errors.
    """
    group = group or Group()
    with naming_out_of_memory(), naming_nondeterminism(), naming_recompiles(), contextlib.ExitStack() as stack:
        run = stack.enter_context(
            contextlib.closing(Training(model, settings, device, folder, emit, meta, group, keeps))
        )
        run.resume(earlier, start)
        steps = range(run.step + 1, settings.train_steps + 1)
        ahead = stack.enter_context(contextlib.closing(prefetch((step, batches(step)) for step in steps)))
        schedule, memory = make_schedule(settings, d_model), MemoryTrim()
        for step, ready in ahead:
            if group.size > 1 and step == steps[0]:
                run.rehearse(ready)
            run.seed(step, seed)
            rate = schedule(step) * 0.5**run.plateau.halvings
            set_learning_rate(run.optimizers, rate)
            run.accumulate_gradients(step, ready)
            for when, measured in (("start", 1), ("end", settings.train_steps)):
                if step == measured and group.leads:
                    run.measure(when, ready[0])
            clip(model, settings.clip_norm)
            update(run.optimizers)
            memory.look(step)

            run.saver.check()
            stop, due = group.decided(should_stop(), run.curve.due(step))
            last = step == settings.train_steps
            save = last or stop or run.saves(step)
            score = evaluate is not None and bool(run.measures(step))
            if save or score or due:
                run.curve.flush(rate)
            if evaluate and score and group.leads:
                save |= run.score(evaluate)
            if score:
                run.follow_plateau()
            if save and group.leads:
                run.save()
            if stop and not last:
                run.saver.wait()
                raise Preempted(step)
        return run.finish()


# --- Return freed memory to the system if the heap keeps growing
# glibc keeps the memory that a training frees (experiments/device.py explains why), and places blocks of always new
# sizes between the kernels that oneDNN caches for as many shapes. A training of multi30k's model grew for thousands of
# steps while the live part of its heap stayed constant. Returned memory must be allocated again, which takes time, so
# it is returned only after the process has grown.


EVERY = 25  # steps between checks: by then the returned memory is in use again
GROWTH = 1.05


class MemoryTrim:
    """Call `look` once per step. Does nothing on systems without glibc."""

    def __init__(self, resident: Callable[[], int] | None = None, trim: Callable[[], object] | None = None) -> None:
        self._resident, self._trim = resident or _resident_pages, trim or _trimmer()
        self._level = 0  # resident pages some steps after the last trim; 0: not yet measured

    def look(self, step: int) -> None:
        """Return freed memory if the process has grown by GROWTH since the last time."""
        if self._trim is None or step % EVERY:
            return
        now = self._resident()
        if not self._level:
            self._level = now
        elif now > GROWTH * self._level:
            self._trim()
            self._level = 0


def _resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])


def _trimmer() -> Callable[[], object] | None:
    libc = ctypes.CDLL(None)
    return (lambda: libc.malloc_trim(0)) if hasattr(libc, "malloc_trim") else None
