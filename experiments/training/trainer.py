"""The training loop (section 5). It knows neither text nor tables: batches come from a function of the step.

All randomness of a step is a function of (seed, step). So a training that was killed at any step and resumed from a
checkpoint computes the same numbers as an uninterrupted one.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from experiments.data.batching import Batch
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
    """Train to the last step, from the newest checkpoint of this run if there is one; return facts for the record.

    batches(step): a step's micro-batches on the processor, a pure function of the step; steps count from 1. Called in a
    thread, ahead of the step. With several processes it returns this one's share.
    evaluate(step): called every `eval_steps` with the model in eval mode; its "perplexity" decides the best checkpoint.

    Writes `checkpoints/…` and `final` in the attempt's folder. Raises Preempted after a checkpoint if the attempt was
    requested to stop; Diverged; OutOfMemory; UserError (checkpoint of another configuration, full disk, kernel that
    cannot be deterministic). A checkpoint is written during the next steps; one of them raises its errors.
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
