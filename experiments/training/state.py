"""A training under way: model, optimizer, how far it is, where it saves. The loop that drives it is in trainer.py.

Shapes: B batch, S source, T target, N real target tokens, D d_model, W vocabulary.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.config import TrainingConfig
from experiments.data.batch import Batch
from experiments.data.tokenizer import PAD_ID
from experiments.device import Device
from experiments.errors import Diverged
from experiments.training import checkpoint
from experiments.training.curve import Curve
from experiments.training.loss import smoothed_loss
from experiments.training.optimizer import make_optimizer, optimizer_tensors, restore_optimizer
from model.attention import BEST_KERNEL, Attention
from model.transformer import Transformer

PINNED = ("threads", "precision", "attention_kernel")  # what later attempts are asked to keep
# What bits depend on beside configuration and code: recorded, and a resume says which of them changed.
EXACT = (*PINNED, "device", "optimizer", "versions")


class Training:
    """`step` updates are done; everything else follows from it and from the tensors."""

    def __init__(
        self,
        model: Transformer,
        settings: TrainingConfig,
        device: Device,
        folder: Path,
        emit: Callable[..., None],
        meta: Mapping[str, Any],
    ) -> None:
        self.model, self.settings, self.device, self.folder, self._emit = model, settings, device, folder, emit
        self.optimizer = make_optimizer(model, settings)
        self.curve = Curve(emit)
        self.step = self.target_tokens = 0
        model.train()
        self.facts = {
            **device.describe(),
            "attention_kernel": _attention_kernel(model, device),
            "optimizer": "adam-fused",
            "resumed_from": None,
        }
        self._meta = {**meta, **{key: self.facts[key] for key in EXACT}}
        emit("pinned", **{key: self.facts[key] for key in PINNED})
        self._score: float | None = None  # dev perplexity at `step`, if it was measured
        self._started = time.perf_counter()

    def resume(self, earlier: Sequence[Path]) -> None:
        """Go on from the newest checkpoint of this configuration and code, if there is one."""
        attempts = [self.folder, *(path for path in earlier if path != self.folder)]
        found = checkpoint.newest(
            attempts,
            lineage=self._meta["lineage"],
            code=self._meta["code"],
            last_step=self.settings.train_steps,
            skipped=lambda path, reason: self._emit("checkpoint_skipped", path=_short(path), reason=reason),
        )
        if found is None:
            return
        weights, moments = found.weights(), found.optimizer()
        checkpoint.restore_model(self.model, weights)
        restore_optimizer(self.model, self.optimizer, moments, found.step)
        checkpoint.take_over(found, attempts, self.folder)
        self.step, self.target_tokens = found.step, found.meta["target_tokens"]
        self.facts["resumed_from"] = found.step
        changed = {
            key: [found.meta.get(key), self._meta[key]] for key in EXACT if found.meta.get(key) != self._meta[key]
        }
        self._emit("resumed", step=found.step, path=_short(found.path), changed=changed)

    def accumulate_gradients(self, step: int, batches: Sequence[Batch[Tensor]]) -> None:
        """Gradients of the mean loss over all real target tokens of a step, micro-batch by micro-batch."""
        tokens = sum(batch.num_target_tokens for batch in batches)
        sums = [self._backward(batch, tokens) for batch in batches]
        loss, nll = torch.stack(sums).sum(0) if len(sums) > 1 else sums[0]
        sources = sum(batch.num_source_tokens for batch in batches)
        positions = sum(batch.source.numel() + batch.target_output.numel() for batch in batches)
        self.curve.add(step, loss, nll, target=tokens, source=sources, positions=positions)
        self.step, self.target_tokens, self._score = step, self.target_tokens + tokens, None

    def _backward(self, batch: Batch[Tensor], tokens: int) -> Tensor:
        """Add a micro-batch's share of the gradients; returns its (Σ loss, Σ nll)."""
        device, model = self.device, self.model
        real_N = (batch.target_output.flatten() != PAD_ID).nonzero()[:, 0]  # on the processor: a GPU is not asked
        mask_BS = batch.source != PAD_ID if batch.num_source_tokens < batch.source.numel() else None
        with device.autocast():
            hidden_BTD = model(
                device.move(batch.source),
                None if mask_BS is None else device.move(mask_BS),
                device.move(batch.target_input),
            )
            hidden_ND = hidden_BTD.flatten(0, 1).index_select(0, device.move(real_N))
            loss, nll = smoothed_loss(
                hidden_ND,
                model.output_weight,
                device.move(batch.target_output.flatten()[real_N]),
                model.vocab_size,
                self.settings.label_smoothing,
            )
        (loss / tokens).backward()  # type: ignore[no-untyped-call]
        return torch.stack((loss.detach(), nll))

    def score(self, evaluate: Callable[[int], Mapping[str, float]]) -> bool:
        """Measure and emit the dev set's metrics; whether this is the best step so far."""
        best = checkpoint.best(self.folder)
        self.model.eval()
        with torch.no_grad():
            metrics = dict(evaluate(self.step))
        self.model.train()
        self._emit("metrics", step=self.step, **{f"dev_{name}": value for name, value in metrics.items()})
        self.curve.restart_clock()
        self._score = metrics.get("perplexity")
        return self._score is not None and (best is None or self._score < best.meta["dev_perplexity"])

    def save(self) -> None:
        """A checkpoint of this step, told when it is durable; older ones go as `keep_checkpoints` says."""
        weights = self._finite_weights()
        meta = {**self._meta, "target_tokens": self.target_tokens}
        if self._score is not None:
            meta["dev_perplexity"] = self._score
        path = checkpoint.save(self.folder, self.step, weights, optimizer_tensors(self.model, self.optimizer), meta)
        self._emit("checkpoint", step=self.step, path=str(path.relative_to(self.folder)))
        checkpoint.prune(self.folder, self.settings.keep_checkpoints, self.settings.checkpoint_steps)
        self.curve.restart_clock()

    def finish(self) -> dict[str, Any]:
        """Save `final` and tell what the run came to."""
        meta = {**self._meta, "step": self.step, "target_tokens": self.target_tokens}
        checkpoint.save_final(self.folder, self._finite_weights(), meta)
        seconds = time.perf_counter() - self._started
        return {
            **self.facts,
            **self.curve.last,
            "step": self.step,
            "target_tokens": self.target_tokens,
            "seconds": round(seconds, 3),
            "peak_memory_bytes": self.device.peak_memory_bytes(),
        }

    def _finite_weights(self) -> dict[str, Tensor]:
        """The weights. Raises Diverged: the loss tells of a step's update at the next step only."""
        weights = checkpoint.model_tensors(self.model)
        for name, tensor in weights.items():
            value = tensor.sum().item()
            if tensor.is_floating_point() and not math.isfinite(value) and not bool(tensor.isfinite().all()):
                raise Diverged(f"{name} holds {value} after step {self.step}: training diverged at that update.")
        return weights


def _attention_kernel(model: Transformer, device: Device) -> str:
    chosen = next(module.kernel for module in model.modules() if isinstance(module, Attention))
    return BEST_KERNEL.get(device.torch_device.type, "plain") if chosen == "auto" else chosen


def _short(path: Path) -> str:
    """A checkpoint within its run's attempts: no absolute path enters an event."""
    return "/".join(path.parts[-3:])
