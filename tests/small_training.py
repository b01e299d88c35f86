"""Run a small training on the CPU, for tests of the training loop."""

import torch

from experiments.attempt_context import AttemptContext
from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.data.collate import Batch
from experiments.device import Device, seed_everything
from experiments.device_spec import DeviceSpec
from experiments.errors import Preempted
from experiments.identity import with_parent_run
from experiments.run_spec import RunSpec
from experiments.store.spec import AttemptSpec
from experiments.training.state import Training
from experiments.training.trainer import train
from model.config import ModelConfig
from model.network import build_model

PIECES = 13
SIZES = ModelConfig(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4, dropout=0.1)


def batch_of(source, target_input, target_output):
    tokens = [int((side != 0).sum()) for side in (source, target_output)]
    return Batch(source, target_input, target_output, *tokens)


def pairs(step, count=6):
    """Return a batch of sentences of 2 to 5 pieces whose targets are the sentences themselves."""
    generator = torch.Generator().manual_seed(step)
    source, target_input = torch.zeros(2, count, 6, dtype=torch.int64)
    target_output = torch.zeros(count, 6, dtype=torch.int64)
    for row, length in enumerate(torch.randint(2, 6, (count,), generator=generator).tolist()):
        words = torch.randint(4, PIECES, (length,), generator=generator)
        source[row, : length + 1] = torch.cat((words, torch.tensor([3])))
        target_input[row, : length + 1] = torch.cat((torch.tensor([2]), words))
        target_output[row, : length + 1] = torch.cat((words, torch.tensor([3])))
    return batch_of(source, target_input, target_output)


def context_of(folder, *, run_id="r", inputs=None, parent_run=None, earlier=(), keeps=(), **given):
    """Return the context of an attempt in `folder` that discards events.

    parent_run: the `Start` of a branch. given: other fields of the AttemptContext.
    """
    inputs = dict(inputs or {})
    if parent_run is not None:
        inputs, given["start"] = with_parent_run(inputs, parent_run.parent_run), parent_run.path
    order = AttemptSpec(
        RunSpec(run_id, {}, inputs), str(folder), 1, DeviceSpec(), earlier=tuple(map(str, earlier)), keeps=tuple(keeps)
    )
    fields = {"code_digest": "c", "emit": lambda kind, **fields: None, "should_stop": lambda: False, **given}
    return AttemptContext(order, folder, **fields)


def run(
    folder, *, settings=None, sizes=SIZES, seed=1, batches=None, evaluate=None, stop_at=None, precision="fp32",
    kind="cpu", threads=1, **attempt,
):  # fmt: skip
    """Train in `folder` and return (model, facts, events). `stop_at` requests a stop after that step.

    attempt: arguments of `context_of`, such as `earlier`.
    """
    folder.mkdir(exist_ok=True)
    settings = settings or TrainingConfig(train_steps=12, warmup_steps=10, checkpoint_steps=4)
    device = Device.open(DeviceSpec(kind, threads), precision, deterministic=settings.deterministic)
    seed_everything(seed)
    model = build_model(sizes, PIECES, device=device.torch_device)
    events, asked = [], []
    resumed = attempt.get("earlier") and max(
        int(p.name[5:]) for e in attempt["earlier"] for p in e.glob("checkpoints/*")
    )

    def should_stop():
        asked.append(1)
        return stop_at is not None and (resumed or 0) + len(asked) >= stop_at

    context = context_of(
        folder, emit=lambda kind, **fields: events.append({"kind": kind, **fields}), should_stop=should_stop, **attempt
    )
    try:
        training = Training(model, RunConfig(model=sizes, training=settings, seed=seed), context, device)
        facts = train(training, batches or (lambda step: [pairs(step)]), evaluate)
    except Preempted:
        facts = None
    return model, facts, events


def losses(events):
    return {e["step"]: e["metrics"]["loss"] for e in events if e["kind"] == "metrics" and "loss" in e["metrics"]}


def kinds(events, kind):
    return [e for e in events if e["kind"] == kind]
