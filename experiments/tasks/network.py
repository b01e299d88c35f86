"""Tasks that train a network of this program: its size, cost and memory before it is trained. Imports no torch."""

from abc import abstractmethod
from pathlib import Path
from typing import Any

from experiments.config import RunConfig
from experiments.errors import UserError
from experiments.processes.processor import has_bf16, precision_here
from experiments.store.keeps import Keep, keeps_of
from experiments.store.provenance import PACKAGES
from experiments.tasks import footprint
from experiments.tasks.base import EvaluationSpec, Task
from experiments.tasks.precisions import Ability, ability
from experiments.tasks.sequence.spacing import spacing_of
from experiments.training import branching
from experiments.training.checkpoints import retention
from model import cost as count

OF_WEIGHTS = ("checkpoint", "precision", "checkpoint_steps", "eval_steps")  # evaluation settings that choose weights


def evaluation_settings(config: RunConfig) -> dict[str, Any]:
    """Those of `config.evaluation` but the sets, with the spacing of checkpoints only where it decides the weights."""
    settings = config.evaluation.model_dump(mode="json", exclude={"sets"})
    if config.evaluation.checkpoint != "last":
        settings |= {"checkpoint_steps": config.training.checkpoint_steps}
    if config.evaluation.checkpoint == "best":
        settings |= {"eval_steps": config.training.eval_steps}
    return settings


def _abilities(config: RunConfig, kind: str, trained: bool) -> list[Ability]:
    """What the devices can do with each precision that a run still needs. trained: it is only scored."""
    asked = [config.evaluation.precision, *([] if trained else [config.training.precision])]
    return [ability(precision, kind) for precision in dict.fromkeys(asked)]


class NetworkTask(Task):
    """The planning half of translation, parsing, language models: whatever model/ computes."""

    def packages(self) -> tuple[str, ...]:
        return (*PACKAGES, *(super().packages() or ()))

    @abstractmethod
    def vocab_sizes(self, config: Any) -> tuple[int, int]:
        """Sizes of target and source, as `build_model` and `cost.num_params` take them. Raises errors of the corpus."""

    def typical_length(self, config: Any) -> int:
        """Pieces of a sentence, before a corpus is measured."""
        return footprint.TYPICAL_LENGTHS[config.data.units]

    def num_params(self, config: RunConfig) -> int:
        return count.num_params(config.model, *self.vocab_sizes(config))

    def cost(self, config: RunConfig) -> float:
        vocab_size, _ = self.vocab_sizes(config)
        length = self.typical_length(config)
        per_token = count.flops_per_token(config.model, vocab_size, length, length)
        return per_token * config.training.tokens_per_batch * config.training.train_steps

    def memory_bytes(self, config: RunConfig, kind: str) -> float:
        precision, heap = precision_here(config.training.precision), footprint.heap_here()
        sizes, tokens = self.vocab_sizes(config), config.training.tokens_per_batch
        length, state, kernels = self.typical_length(config), self._state(config), has_bf16()
        return footprint.memory_bytes(config.model, sizes, tokens, kind, precision, heap, length, state, kernels)

    def least_memory_bytes(self, config: RunConfig, kind: str, *, limited: bool = False) -> float:
        """Without kernels of narrow products on a processor: a short training has few."""
        if kind == "cpu" and not limited:
            return self.memory_bytes(config, kind)
        sizes, tokens = self.vocab_sizes(config), footprint.SMALLEST_TOKENS
        length, state = self.typical_length(config), self._state(config)
        return footprint.memory_bytes(config.model, sizes, tokens, kind, length=length, state=state)

    def precisions(self, config: RunConfig, kind: str) -> tuple[str, str]:
        asked = config.training.precision, config.evaluation.precision
        return asked if kind == "cuda" else (precision_here(asked[0]), precision_here(asked[1]))

    def device_obstacles(self, config: RunConfig, kind: str, *, trained: bool) -> list[UserError]:
        return [UserError(found.refused) for found in _abilities(config, kind, trained) if found.refused]

    def device_warnings(self, config: RunConfig, kind: str, *, trained: bool) -> list[str]:
        if not any(found.slow for found in _abilities(config, kind, trained)):
            return []
        return [
            f'the precision is "bf16", for which this {"GPU" if kind == "cuda" else "processor"} has no instructions: '
            "torch computes it with others, often many times slower than fp32. If it need not be bf16, set "
            'training.precision or evaluation.precision to "fp32" or "auto" (here fp32). --smoke trains with "auto".'
        ]

    def disk_bytes(self, config: RunConfig) -> float:
        kept = config.training
        sizes = self.num_params(config), kept.keep_checkpoints
        return footprint.disk_bytes(*sizes, kept.keep_optimizer, self._state(config))

    def _state(self, config: RunConfig) -> float:
        return footprint.state_numbers(config.model, self.vocab_sizes(config), config.training)

    def keeps(self, config: RunConfig) -> tuple[Keep, ...]:
        return keeps_of(config.training, config.evaluation)

    def not_a_branch(self, trunk: RunConfig, config: RunConfig, step: int) -> str:
        return branching.not_a_branch(trunk, config, step)

    def serves(self, config: RunConfig, evaluation: EvaluationSpec, weights: Path) -> bool:
        return retention.serves(weights, evaluation.settings["checkpoint"], spacing_of(evaluation))
