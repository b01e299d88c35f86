"""Train with this project's trainer (experiments.training.trainer.train), as a run does."""

from collections.abc import Callable
from pathlib import Path

import serve
import torch
from our_trainer import NEVER, repeated, train_rounds

from experiments.attempt_context import AttemptContext
from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.data.collate import Batch
from experiments.device import Device, seed_everything
from experiments.device_spec import DeviceSpec
from experiments.run_spec import RunSpec
from experiments.store.spec import AttemptSpec
from experiments.tasks.pair_batches import Batches
from experiments.tasks.translation import TASK
from model.config import ModelConfig
from model.network import build_model

job = serve.job()
device = Device.open(DeviceSpec("cpu", job["threads"]), job["precision"])
seed_everything(1)
sizes = dict(job["model"])
vocabulary = sizes.pop("vocab_size")
model = build_model(ModelConfig(**sizes, dropout=job["dropout"], **job["settings"]), vocabulary)
rounds = serve.training_rounds(job, model.parameters(), f"torch {torch.__version__}")
settings = TrainingConfig(
    train_steps=NEVER,
    checkpoint_steps=NEVER,
    eval_steps=0,
    label_smoothing=job["smoothing"],
    keep_checkpoints=1,
)


def real() -> Callable[[int], list[Batch[torch.Tensor]]]:
    """Return the batches of a run on a corpus (benchmarks/real_batches.py)."""
    given = job["real"]
    config, store = RunConfig.from_mapping(given["settings"]), Path(given["store"])
    spec = DeviceSpec("cpu", job["threads"])
    attempt = AttemptSpec(RunSpec("benchmark", {}, given["inputs"]), str(store), 1, spec)
    context = AttemptContext(attempt, store, lambda *_, **__: None, lambda: False)
    return Batches(config, context, TASK.encoded(config, context).train)


batches = [
    [
        Batch(
            *(torch.tensor(rows) for rows in serve.sides(batch)),
            num_source_tokens=sum(len(source) + 1 for source, _ in batch),
            num_target_tokens=serve.target_tokens(batch),
        )
    ]
    for batch in job["batches"]
]
train_rounds(
    model,
    RunConfig(model=model.config, training=settings),
    device,
    real() if "real" in job else repeated(batches),
    rounds,
)
