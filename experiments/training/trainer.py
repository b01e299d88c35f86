"""The training loop (section 5). A function of the step supplies the batches.

All random numbers of a step depend only on (seed, step). A training that was killed at any step and resumed from a
checkpoint therefore gives the same results as an uninterrupted training.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from experiments.data.collate import Batch
from experiments.data.prefetch import prefetch
from experiments.device import naming_nondeterminism, naming_out_of_memory
from experiments.errors import Preempted
from experiments.processes.freed_memory import MemoryTrim
from experiments.training.compiled_layers import naming_recompiles
from experiments.training.optimizers import clip, set_learning_rate, update
from experiments.training.schedules import make_schedule
from experiments.training.state import Training


def train(
    training: Training,
    batches: Callable[[int], Sequence[Batch[Tensor]]],
    evaluate: Callable[[int], Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """Train to the last step, from the newest checkpoint of this run if there is one. Return facts for the record.

    The function writes `checkpoints/…` and `final` in the attempt's folder. If the attempt was asked to stop, it saves
    a checkpoint and raises Preempted. It also raises Diverged, OutOfMemory, and UserError (checkpoint of another
    configuration, full disk, kernel that cannot be deterministic). A checkpoint is written while the next steps run. If
    a save fails, a later step raises the error.

    batches: a pure function of the step, counted from 1. It returns the step's micro-batches on the CPU. If several
        processes train together, it returns only the share of this process. A thread calls it ahead of the step.
    evaluate: a function that returns the metrics of the dev set. Its "perplexity" decides which checkpoint is the best.
        It is called with the model in eval mode, at the steps of `training.measures`.
    """
    settings, group = training.settings, training.group
    with naming_out_of_memory(), naming_nondeterminism(), naming_recompiles(), contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(training))
        training.resume()
        steps = range(training.step + 1, settings.train_steps + 1)
        ahead = stack.enter_context(contextlib.closing(prefetch((step, batches(step)) for step in steps)))
        schedule, memory = make_schedule(settings, training.config.model.d_model), MemoryTrim()
        for step, ready in ahead:
            if group.size > 1 and step == steps[0]:
                training.rehearse(ready)
            training.seed(step)
            rate = schedule(step) * 0.5**training.plateau.halvings
            set_learning_rate(training.optimizers, rate)
            training.accumulate_gradients(step, ready)
            for when, measured in (("start", 1), ("end", settings.train_steps)):
                if step == measured and group.leads:
                    training.measure(when, ready[0])
            clip(training.model, settings.clip_norm)
            update(training.optimizers)
            memory.look(step)

            training.saver.check()
            stop, due = group.decided(training.context.should_stop(), training.curve.due(step))
            last = step == settings.train_steps
            save = last or stop or training.saves(step)
            score = evaluate is not None and bool(training.measures(step))
            if save or score or due:
                training.curve.flush(rate)
            if evaluate and score and group.leads:
                save |= training.score(evaluate)
            if score:
                training.follow_plateau()
            if save and group.leads:
                training.save()
            if stop and not last:
                training.saver.wait()
                raise Preempted(step)
        return training.finish()
