"""The state of a training: model, optimizer, step, curve, checkpoints. The training loop is in trainer.py."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.attempt_context import AttemptContext
from experiments.config.network_change import changes_of
from experiments.config.run_config import RunConfig
from experiments.data.collate import Batch
from experiments.device import Device, GraphRecorder, mix
from experiments.errors import Diverged
from experiments.identity import lineage
from experiments.store.retention import AT, BEST, SPACED, keeps_of, union
from experiments.training import checkpoint, kept_checkpoints
from experiments.training.checkpoint import Start
from experiments.training.compiled_layers import compile_layers, eagerly
from experiments.training.curve import Curve, init_stats
from experiments.training.graphs import Graphs, Inputs, unusable
from experiments.training.kept_checkpoints import meta_of
from experiments.training.loss import Objective
from experiments.training.narrow import NarrowWeights
from experiments.training.optimizers import (
    discard_gradients,
    make_optimizers,
    optimizer_tensors,
    restore_optimizers,
    updated_by,
)
from experiments.training.ranks import Group
from experiments.training.saver import Saver
from experiments.training.schedules import Plateau
from experiments.training.warm_start import digest_of
from model.layers.attention.kernels import BEST_KERNEL
from model.layers.attention.multi_head import Attention
from model.protocol import Network

log = logging.getLogger(__name__)

PINNED = ("threads", "precision", "attention_kernel")  # facts of the first attempt that later attempts must use
# Bit-identical results need equal values of these facts, in addition to equal configuration and code. A resumed attempt
# reports the facts that have changed.
EXACT = (*PINNED, "device", "devices", "deterministic", "compiled", "optimizer", "versions")
# Values that the task pins before the training, and that must be equal too: how the batch of a step is divided and
# padded, and the number of threads.
EXACT_PINNED = ("micro_batch_tokens", "shapes", "training_threads")
STATE = "optimizer/"  # prefix of the names of optimizer tensors, which are copied together with the weights


class Training:
    """The state of a training after `step` updates.

    model: the network, which must be on `device`.
    config: the run's configuration, in which `training.compile` must be true or false.
    group: the processes that train together. Each process has a device and computes its share of every batch. Only
        rank 0 emits events, evaluates and saves.
    """

    def __init__(
        self, model: Network, config: RunConfig, context: AttemptContext, device: Device, group: Group | None = None
    ) -> None:
        settings = config.training
        self.model, self.config, self.settings, self.device = model, config, settings, device
        self.context, self.folder, self._emit = context, context.folder, context.emit
        self._keeps = union(keeps_of(settings, config.evaluation), context.keeps)
        self.group = group = group or Group()
        self.optimizers = make_optimizers(model, settings)
        self.plateau = Plateau()
        self.curve = Curve(self._emit, group.add_up)
        self.step = self.target_tokens = 0
        model.train()
        if settings.compile is True:
            compile_layers(model, threads=device.threads)
        self._objective = Objective(model, settings)
        self._wrapped = group.wrap(self._objective)
        alone = group.size == 1 and not settings.graphs and not settings.gleu_samples
        self._narrow = NarrowWeights(model) if alone and device.precision == "bf16" else None
        self._graphs = self._make_graphs() if settings.graphs else None
        self.saver = Saver(device)
        kernel = next((module.kernel for module in model.modules() if isinstance(module, Attention)), "none")
        self.facts = {
            **device.describe(),
            "devices": group.size,
            "attention_kernel": BEST_KERNEL.get(device.torch_device.type, "plain") if kernel == "auto" else kernel,
            "compiled": settings.compile is True,
            "graphs": self._graphs is not None,
            "optimizer": "+".join(self.optimizers),
            "updated_by": updated_by(self.optimizers),
            "resumed_from": None,
        }
        self._meta = {
            "lineage": lineage(config, context.spec.inputs),
            "code": context.code_digest,
            "run_id": context.spec.run_id,
            **{key: self.facts[key] for key in EXACT},
            **{key: context.attempt.pinned[key] for key in EXACT_PINNED if key in context.attempt.pinned},
            "keeps": [list(keep) for keep in self._keeps],
        }
        self._emit("pinned", **{key: self.facts[key] for key in PINNED})
        self._score: float | None = None  # dev perplexity at `step`, if it was measured
        # Statistics of the network before the first and before the last update.
        self._measured: dict[str, dict[str, float]] = {"start": {}, "end": {}}
        self._best_steps: dict[str, int] = {}  # spacing of measurements → step of the lowest perplexity so far
        self._started, self._measuring = time.perf_counter(), 0.0
        self._cpu_started, self._cpu_measuring = time.process_time(), 0.0

    def seed(self, step: int) -> None:
        """Seed the random generators of a step from (seed, step, rank)."""
        value = mix(self.config.seed, step)
        self.device.seed(mix(value, self.group.rank) if self.group.rank else value)

    def resume(self) -> None:
        """Continue from the newest checkpoint of this or an earlier attempt with the same configuration and code.

        If there is none, a branch begins with the state of its parent run.
        """
        attempts = [self.folder, *(path for path in self.context.earlier if path != self.folder)]
        saved = checkpoint.newest(
            attempts,
            lineage=self._meta["lineage"],
            code=self._meta["code"],
            last_step=self.settings.train_steps,
            skipped=lambda path, reason: self._emit("checkpoint_skipped", path=_short(path), reason=reason),
            keeps=self._keeps,
        )
        if saved is None:
            if (parent_run := self.context.spec.parent_run) is not None:
                self._branch(Start(parent_run, self.context.start))
            return
        self._restore(saved)
        if self.group.leads:
            checkpoint.link_checkpoints(saved, attempts, self.folder)
        self._best_steps = dict(saved.meta["best_steps"])
        if "parent_run" in saved.meta:
            self._meta["parent_run"] = self.facts["parent_run"] = saved.meta["parent_run"]
        # The checkpoint may belong to another run: a shorter run of the same lineage.
        self._emit("resumed", run=saved.meta["run_id"], **self._came_from(saved))

    def _branch(self, start: Start) -> None:
        """Begin with the state of another run. The checkpoints of that run are not linked to this run."""
        saved = start.open()
        self._restore(saved)
        run_id, step = start.parent_run
        self._meta["parent_run"] = self.facts["parent_run"] = {
            "run_id": run_id,
            "step": step,
            "weights": digest_of(saved.path),
        }
        self._emit("branched", run=run_id, **self._came_from(saved))

    def _restore(self, saved: checkpoint.Checkpoint) -> None:
        """Restore weights, the optimizer's state and counts from a checkpoint."""
        checkpoint.restore_model(self.model, saved.weights())
        if state := saved.optimizer():
            restore_optimizers(self.model, self.optimizers, state, saved.step)
        self.step, self.target_tokens = saved.step, saved.meta["target_tokens"]
        self._measured = {when: dict(saved.meta.get(when, ())) for when in self._measured}
        self.plateau = Plateau(*saved.meta.get("plateau", ()))
        self.facts["resumed_from"] = saved.step

    def _came_from(self, saved: checkpoint.Checkpoint) -> dict[str, Any]:
        """Return data for an event: the step, the path, and the facts (EXACT, EXACT_PINNED) that have changed."""
        known = [key for key in EXACT_PINNED if key in saved.meta]  # checkpoints of version 0.1.0 have none of them
        pairs = {key: [saved.meta.get(key), self._meta.get(key)] for key in (*EXACT, *known)}
        changed = {key: [before, now] for key, (before, now) in pairs.items() if before != now}
        return {"step": saved.step, "path": _short(saved.path), "changed": changed}

    def rehearse(self, batches: Sequence[Batch[Tensor]]) -> None:
        """Run a forward and backward pass and discard its gradients.

        After its first pass, DDP sums gradients in another order, which changes the rounding. Without this call, the
        first pass would be step 1 in a new training, but step 501 in an attempt that resumes after step 500, and the
        results would differ.
        """
        self.backward(batches, 1)
        discard_gradients(self.optimizers)

    def accumulate_gradients(self, step: int, batches: Sequence[Batch[Tensor]]) -> None:
        """Compute the gradients of a step's mean loss over all real target tokens, micro-batch by micro-batch.

        batches: the micro-batches of this rank. The mean is over the tokens of all ranks.
        """
        target, source, positions = self.group.total(
            [
                sum(batch.num_target_tokens for batch in batches),
                sum(batch.num_source_tokens for batch in batches),
                sum(batch.source.numel() + batch.target_output.numel() for batch in batches),
            ]
        )
        sums = self.backward(batches, target)
        loss, nll = torch.stack(sums).sum(0) if len(sums) > 1 else sums[0]
        self.curve.add(step, loss, nll, target=target, source=source, positions=positions)
        self.step, self.target_tokens, self._score = step, self.target_tokens + target, None

    def measure(self, when: str, batch: Batch[Tensor]) -> None:
        """Measure the network after the backward pass and before the update of the first or last step.

        The measurement changes neither the network nor the random numbers of the training.

        when: "start" for the first step, "end" for the last step.
        """
        with self._not_training(), eagerly(self.settings.compile is True):
            self._measured[when] = init_stats(self.model, batch, self.device)
        self.curve.tell({f"{when}_{name}": value for name, value in self._measured[when].items()})

    @contextlib.contextmanager
    def _not_training(self) -> Iterator[None]:
        """Return a context whose time is not counted as time of training steps."""
        self.device.synchronize()  # a GPU may still compute the last step
        before, cpu_before = time.perf_counter(), time.process_time()
        yield
        self.device.synchronize()
        self._measuring += time.perf_counter() - before
        self._cpu_measuring += time.process_time() - cpu_before

    def backward(self, batches: Sequence[Batch[Tensor]], tokens: int) -> list[Tensor]:
        """Add the gradients of Σ loss / tokens. Return (Σ loss, Σ nll) of each micro-batch."""
        share = tokens / self.group.size  # because DDP averages gradients over ranks
        if self._narrow:
            self._narrow.refresh()
        compute, sums = self._graphs or self._eager, []
        for number, batch in enumerate(batches, start=1):
            with self.group.gathering(self._wrapped, last=number == len(batches)):
                sums.append(compute((*self._objective.inputs(batch, self.device), self.device.number(share))))
        return sums

    def _eager(self, inputs: Inputs) -> Tensor:
        """Add the gradients of a micro-batch's loss divided by `share`, the last input. Return (Σ loss, Σ nll)."""
        *given, share = inputs
        narrow = self._narrow
        with narrow.used() if narrow else contextlib.nullcontext(), self.device.autocast():
            loss, nll = self._wrapped(*given)
        (loss / share).backward()
        if narrow:
            narrow.collect()
        return torch.stack((loss.detach(), nll))

    def _make_graphs(self) -> Graphs | None:
        """Return the CUDA graphs of this training. If graphs are unusable, log the reason and return None."""
        if reason := unusable(self.model, self.settings, self.device, self.group.size, changes_of(self.config)):
            log.warning("training.graphs is ignored: %s", reason)
            return None
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        recorder, exact = GraphRecorder(self.device.torch_device), self.device.deterministic
        return Graphs(parameters, self._eager, recorder, exact=exact)

    @property
    def measures_dev(self) -> bool:
        """Return whether dev is measured at any step."""
        return any(keep.what == BEST for keep in self._keeps)

    def saves(self, step: int) -> bool:
        """Return whether a checkpoint is due at this step."""
        return any(
            (keep.what == SPACED and step % keep.every == 0) or (keep.what == AT and step == keep.every)
            for keep in self._keeps
        )

    def measures(self, step: int) -> list[int]:
        """Return the spacings of dev measurements that are due at this step; empty if none is due."""
        return [keep.every for keep in self._keeps if keep.what == BEST and step % keep.every == 0]

    def score(self, evaluate: Callable[[int], Mapping[str, float]]) -> bool:
        """Measure and emit the metrics of the dev set.

        Return whether this is the best step so far, for at least one spacing of measurements.
        """
        self.saver.wait()
        best = {every: kept_checkpoints.best(self.folder, every) for every in self.measures(self.step)}
        self.model.eval()
        with self._not_training(), torch.no_grad(), eagerly(self.settings.compile is True):
            metrics = dict(evaluate(self.step))
        self.model.train()
        self._emit("metrics", step=self.step, metrics={f"dev_{name}": value for name, value in metrics.items()})
        self.curve.restart_clock()
        self._score = metrics.get("perplexity")
        if self._score is None:
            return False
        better = [e for e, path in best.items() if not path or self._score < meta_of(path)["dev_perplexity"]]
        self._best_steps |= {str(every): self.step for every in better}
        return bool(better)

    def follow_plateau(self) -> None:
        """Update the state of the schedule plateau, which halves the learning rate if dev does not improve.

        All ranks use the measurement of rank 0.
        """
        if self.settings.schedule == "plateau" and self.step % self.settings.eval_steps == 0:
            [perplexity] = self.group.of_rank_0(math.nan if self._score is None else self._score)
            self.plateau = self.plateau.after(perplexity, self.settings.plateau_patience)

    def save(self) -> None:
        """Start saving a checkpoint of this step.

        Once the checkpoint is on the disk, the event "checkpoint" is emitted and older checkpoints are pruned. If the
        save fails, a later `save`, or the saver's `check` or `wait`, raises the error.
        """
        step = self.step
        meta = {**self._meta, "target_tokens": self.target_tokens, "best_steps": dict(self._best_steps)}
        meta |= {when: dict(stats) for when, stats in self._measured.items()}
        if self._score is not None:
            meta["dev_perplexity"] = self._score
        if self.settings.schedule == "plateau":
            meta["plateau"] = list(self.plateau)
        state = optimizer_tensors(self.model, self.optimizers, step)
        tensors = checkpoint.model_tensors(self.model) | {STATE + name: t for name, t in state.items()}
        self.saver.start(tensors, lambda copies: self._write(step, copies, meta))

    def _write(self, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Write a checkpoint, in the saver's thread."""
        weights = {name: tensor for name, tensor in tensors.items() if not name.startswith(STATE)}
        state = {name.removeprefix(STATE): t for name, t in tensors.items() if name.startswith(STATE)}
        _check_finite({**weights, **state}, step)  # weights can hide a NaN in Lion's state, because Lion uses signs
        path = checkpoint.save(self.folder, step, weights, state, meta)
        self._emit("checkpoint", step=step, path=str(path.relative_to(self.folder)))
        kept_checkpoints.prune(self.folder, self._keeps)

    def close(self) -> None:
        """Wait for a checkpoint that is being written, and end the saver's thread."""
        self.saver.close()

    def finish(self) -> dict[str, Any]:
        """Save `final` and return the run's facts."""
        self.saver.wait()
        if self.group.leads:
            weights = checkpoint.model_tensors(self.model)
            _check_finite(weights, self.step)
            meta = {**self._meta, "step": self.step, "target_tokens": self.target_tokens}
            checkpoint.save_weights(self.folder / "final", weights, meta)
        seconds = time.perf_counter() - self._started
        cpu_s = time.process_time() - self._cpu_started - self._cpu_measuring
        return {
            **self.facts,
            **self.curve.last,
            **self._measured,
            "step": self.step,
            "target_tokens": self.target_tokens,
            "seconds": round(seconds, 3),
            "steps_s": round(seconds - self._measuring, 3),
            "steps_cpu_s": round(cpu_s, 3),
            "peak_memory_bytes": self.device.peak_memory_bytes(),
        }


def _check_finite(weights: Mapping[str, Tensor], step: int) -> None:
    """Raise Diverged if weights are not finite.

    The loss of the last step cannot show this, because the loss is computed before the update.
    """
    for name, tensor in weights.items():
        value = tensor.sum().item()
        if tensor.is_floating_point() and not math.isfinite(value) and not bool(tensor.isfinite().all()):
            raise Diverged(f"{name} is {value} after step {step}: training diverged at that update.")


def _short(path: Path) -> str:
    """Return the path of a checkpoint relative to its run's folder of attempts. Events contain no absolute paths."""
    return "/".join(path.parts[-3:])
