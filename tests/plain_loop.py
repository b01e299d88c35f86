"""Train with a plain loop over torch's own modules and with our trainer on the same batches, to compare losses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.data.collate import Batch
from experiments.device import Device, mix, seed_everything
from experiments.device_spec import DeviceSpec
from experiments.training.state import Training
from experiments.training.trainer import train
from model.config import ModelConfig
from model.network import build_model
from model.protocol import Network
from tests.small_training import context_of

WARMUP, PIECES, LONGEST, ROWS = 100, 64, 12, 16
# Factor of the paper's learning rate, which is meant for d_model 512. At 0.3, rounding errors grow in this small model:
# the curves of two programs in fp64 differ by 2e-11 instead of 3e-15.
SCALE = 0.1


def sentences(step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return source, target input and target output: random sentences of 3 to 11 pieces and their reversals."""
    generator = torch.Generator().manual_seed(mix(5, step))
    source, target_input, target_output = torch.zeros(3, ROWS, LONGEST, dtype=torch.int64)
    for row, length in enumerate(torch.randint(3, LONGEST, (ROWS,), generator=generator).tolist()):
        words = torch.randint(4, PIECES, (length,), generator=generator)
        source[row, : length + 1] = torch.cat((words, torch.tensor([3])))
        target_input[row, : length + 1] = torch.cat((torch.tensor([2]), words.flip(0)))
        target_output[row, : length + 1] = torch.cat((words.flip(0), torch.tensor([3])))
    return source, target_input, target_output


def micro_batches(step: int) -> list[Batch[Tensor]]:
    """Return the same sentences as two unequal micro-batches. The second one has the longest sentences."""
    sides = sentences(step)
    order = (sides[0] != 0).sum(1).argsort()
    batches = []
    for part in (order[:10], order[10:]):
        source, target_input, target_output = (side[part] for side in sides)
        width = int((source != 0).sum(1).max())
        tokens = int((target_output != 0).sum())
        batches.append(Batch(source[:, :width], target_input[:, :width], target_output[:, :width], tokens, tokens))
    return batches


def plain_losses(
    plain: Callable[[Network], nn.Module], sizes: ModelConfig, steps: int, dtype: torch.dtype
) -> list[float]:
    """Return the loss of each step of the plain loop.

    plain(ours): returns a module with copies of our weights. The module maps (source, target_input) to logits.
    """
    seed_everything(1)
    model = plain(build_model(sizes, PIECES).to(dtype))
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, foreach=False)
    losses = []
    for step in range(1, steps + 1):
        source, target_input, target_output = sentences(step)
        logits = model(source, target_input).flatten(0, 1)
        # torch spreads epsilon over all pieces, tensor2tensor over all but the correct one. The factor converts.
        smoothing = 0.1 * PIECES / (PIECES - 1)
        loss = F.cross_entropy(logits, target_output.flatten(), ignore_index=0, label_smoothing=smoothing)
        adam.param_groups[0]["lr"] = SCALE * sizes.d_model**-0.5 * min(step**-0.5, step * WARMUP**-1.5)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses


def our_losses(sizes: ModelConfig, steps: int, dtype: torch.dtype, folder: Path) -> list[float]:
    """Return the loss of each step of our trainer. experiments.training.curve.EVERY_STEPS must be 1."""
    losses: dict[int, float] = {}

    def emit(kind: str, **fields: Any) -> None:
        if kind == "metrics":
            losses[fields["step"]] = fields["metrics"]["loss"]

    seed_everything(1)
    settings = TrainingConfig(train_steps=steps, warmup_steps=WARMUP, learning_rate_scale=SCALE, checkpoint_steps=50)
    config, context = RunConfig(model=sizes, training=settings), context_of(folder, emit=emit)
    model, device = build_model(sizes, PIECES).to(dtype), Device.open(DeviceSpec(), "fp32")
    train(Training(model, config, context, device), micro_batches)
    assert list(losses) == list(range(1, steps + 1))
    return list(losses.values())
