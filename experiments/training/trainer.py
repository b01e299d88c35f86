"""The training loop (section 5). It knows neither text nor tables: batches come from a function of the step.

Everything random in a step is a function of (seed, step), so that a training which was killed at any step and goes on
from a checkpoint computes the numbers of one that was not.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from experiments.config import TrainingConfig
from experiments.data.batch import Batch
from experiments.device import Device, mix, naming_out_of_memory
from experiments.errors import Preempted
from experiments.training.optimizer import clip, set_learning_rate
from experiments.training.schedule import learning_rate
from experiments.training.state import Training
from model.transformer import Transformer


def train(
    model: Transformer,
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
    evaluate: Callable[[int], Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """Train `model` (a model.transformer.Transformer on `device`) to `settings.train_steps`; returns facts.

    `batches(step)` gives a step's micro-batches on the processor, a pure function of the step; steps count from 1.
    `meta` must hold "lineage" and "code" (a checkpoint of another is not continued) and is kept with every checkpoint.
    `earlier` are attempts' folders whose checkpoints may be used. `evaluate(step)` is called every `eval_steps` with
    the model in eval mode; its "perplexity" decides which checkpoint is the best.

    Writes `folder/checkpoints/…` and `folder/final`. Raises Preempted after a checkpoint when `should_stop` said so,
    Diverged, OutOfMemory, UserError (a checkpoint of another configuration, a full disk).
    """
    with naming_out_of_memory():
        run = Training(model, settings, device, folder, emit, meta)
        run.resume(earlier)
        for step in range(run.step + 1, settings.train_steps + 1):
            device.seed(mix(seed, step))
            rate = learning_rate(step, d_model, settings.warmup_steps, settings.learning_rate_scale)
            set_learning_rate(run.optimizer, rate)
            run.accumulate_gradients(step, batches(step))
            clip(model, settings.clip_norm)
            run.optimizer.step()
            run.optimizer.zero_grad(set_to_none=True)

            last, stop = step == settings.train_steps, should_stop()
            save = last or stop or step % settings.checkpoint_steps == 0
            score = evaluate is not None and settings.eval_steps > 0 and step % settings.eval_steps == 0
            if save or score or run.curve.due(step):
                run.curve.flush(rate)
            if evaluate and score:
                save |= run.score(evaluate)
            if save:
                run.save()
            if stop and not last:
                raise Preempted(step)
        return run.finish()
