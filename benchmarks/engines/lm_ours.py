"""Train on windows of bytes with this project's trainer, as a run of the task language_modelling does."""

from typing import Any

import serve
import torch
from our_trainer import NEVER, repeated, train_rounds

from experiments.config.training import TrainingConfig
from experiments.data.collate import Batch
from experiments.device import Device, seed_everything
from experiments.device_spec import DeviceSpec
from experiments.tasks.load import load_task
from model.network import build_model

CONFIG: Any = load_task("language_modelling").config_type
job = serve.job()
device = Device.open(DeviceSpec("cpu", job["threads"]), job["precision"])
seed_everything(1)
sizes = dict(job["model"])
vocabulary, window = sizes.pop("vocab_size"), job["window"]
config = type(CONFIG().model)(
    **sizes, norm="pre", positions="learned", max_length=window, activation="gelu", embedding_scale=1.0, dropout=0.0
)
model = build_model(config, vocabulary)
rounds = serve.window_rounds(job, model.parameters(), f"torch {torch.__version__}")
settings = TrainingConfig(
    train_steps=NEVER, checkpoint_steps=NEVER, keep_checkpoints=1, label_smoothing=0.0, optimizer="adamw",
    adam_beta2=0.95, adam_epsilon=1e-8, weight_decay=0.1,
)  # fmt: skip
batches = [
    [Batch(torch.zeros(len(rows), 0, dtype=torch.int64), rows[:, :-1], rows[:, 1:], 0, len(rows) * window)]
    for rows in map(torch.tensor, job["batches"])
]
train_rounds(model, CONFIG(model=config, training=settings), device, repeated(batches), rounds)
