"""Tasks that train a network of this program: its size, cost, memory and disk space before it is trained.

Imports no torch.
"""

import functools
import tempfile
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.config import DataConfig, RunConfig, TrainingConfig, state_per_weight
from experiments.data.corpora.pair_corpus import PairCorpus
from experiments.data.corpora.text import TextCorpus, TextData
from experiments.data.encoding.text import learn_pieces
from experiments.data.encoding.tokenizer import FIRST_BYTE, RUNNING_TEXT, SIZE, in_sample
from experiments.errors import UserError
from experiments.identity import digest
from experiments.processes.processor import allocates_by_tcmalloc, has_bf16, precision_here
from experiments.store.provenance import PACKAGES
from experiments.store.retention import Keep, keeps_of
from experiments.store.user_cache import UserCache
from experiments.tasks.base import EvaluationSpec, Task
from experiments.tasks.preflight import Ability, ability
from experiments.training import retention
from experiments.training.warm_start import why_no_branch
from model import cost as count
from model.config import ModelConfig

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
        return TYPICAL_LENGTHS[config.data.units]

    def num_params(self, config: RunConfig) -> int:
        return count.num_params(config.model, *self.vocab_sizes(config))

    def cost(self, config: RunConfig) -> float:
        vocab_size, _ = self.vocab_sizes(config)
        length = self.typical_length(config)
        per_token = count.flops_per_token(config.model, vocab_size, length, length)
        return per_token * config.training.tokens_per_batch * config.training.train_steps

    def memory_bytes(self, config: RunConfig, kind: str) -> float:
        precision, heap = precision_here(config.training.precision), heap_here()
        sizes, tokens = self.vocab_sizes(config), config.training.tokens_per_batch
        length, state, kernels = self.typical_length(config), self._state(config), has_bf16()
        return memory_bytes(config.model, sizes, tokens, kind, precision, heap, length, state, kernels)

    def least_memory_bytes(self, config: RunConfig, kind: str, *, limited: bool = False) -> float:
        """Without kernels of narrow products on a processor: a short training has few."""
        if kind == "cpu" and not limited:
            return self.memory_bytes(config, kind)
        sizes, tokens = self.vocab_sizes(config), SMALLEST_TOKENS
        length, state = self.typical_length(config), self._state(config)
        return memory_bytes(config.model, sizes, tokens, kind, length=length, state=state)

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
        return disk_bytes(*sizes, kept.keep_optimizer, self._state(config))

    def _state(self, config: RunConfig) -> float:
        return state_numbers(config.model, self.vocab_sizes(config), config.training)

    def keeps(self, config: RunConfig) -> tuple[Keep, ...]:
        return keeps_of(config.training, config.evaluation)

    def not_a_branch(self, trunk: RunConfig, config: RunConfig, step: int) -> str:
        return why_no_branch(trunk, config, step)

    def serves(self, config: RunConfig, evaluation: EvaluationSpec, weights: Path) -> bool:
        return retention.serves(weights, evaluation.settings["checkpoint"], spacing_of(evaluation))


# --- Predict the memory and disk space of a training from its configuration


TYPICAL_LENGTH = 28  # pieces of a sentence if no corpus was measured
# The same by `data.units`: of newstest2013, English and German together.
TYPICAL_LENGTHS = {"bpe": TYPICAL_LENGTH, "unigram": TYPICAL_LENGTH, "word": 18, "char": 118, "byte": 119}
MICRO_BATCH_TOKENS = {"cpu": 4096, "cuda": 32768}  # padded positions per side of one forward and backward pass
SMALLEST_TOKENS = 64  # micro-batches are halved to about this when memory runs out
# Tokens whose logits, or gradients of logits, exist at once (experiments/training/loss.py): two chunks that wait for
# one product; on a GPU also the present chunk and the output of its logsumexp.
LOGIT_TOKENS = {"cpu": 2 * 512, "cuda": 4 * 8192}
PROCESS_BYTES = {"cpu": 295e6, "cuda": 700e6}  # torch itself in main memory; on a GPU a CUDA context and its kernels
# experiments/training/parallel.py: each lane holds logits, gradients and bf16 weights.
LANES = 2
LARGEST_IN_LANES = 2**24  # parameters
# Heap bytes per byte of activations: gradients of the backward pass exist at the same time, and the block sizes of a
# step leave gaps that do not fit the next one's. glibc places new kernels of bf16 products in between, which keeps
# gaps separate.
HEAP, HEAP_AMONG_KERNELS = 1.8, {"glibc": 4.3, "tcmalloc": 1.8}
# Kernels of bf16 products, by shape. A training on padded shapes has up to 1,900 (experiments/device.py lets oneDNN
# keep 2,048) but a smaller heap: in all, multi30k's model held 1.35 GB with glibc, of 1.55 GB predicted. A processor
# without instructions for bf16 has none: the demo's model held 0.35 GB in bf16 as in fp32.
KERNELS = 1024
KERNEL_BYTES = {"glibc": 0.5e6, "tcmalloc": 0.35e6}
WEIGHT_BYTES, NARROW_BYTES = 4, 2


def state_numbers(config: ModelConfig, vocab_sizes: tuple[int, int], training: TrainingConfig) -> float:
    """Numbers that the optimizer keeps per parameter: 2 for Adam."""
    if training.optimizer != "muon":
        return state_per_weight(training)
    # Muon keeps one for matrices of the layers; vectors are few
    total = count.num_params(config, *vocab_sizes)
    layers = count.num_params(config, 1, 1)
    return state_per_weight(training, layers / total)


def _state_bytes(kind: str, state: float) -> float:
    """Per parameter: itself, its gradient and the optimizer's state in fp32; in main memory also the copy to save."""
    return WEIGHT_BYTES * (2 + state + (1 + state if kind == "cpu" else 0))


def memory_bytes(
    config: ModelConfig,
    vocab_sizes: tuple[int, int],
    tokens_per_batch: int,
    kind: str,
    precision: str = "fp32",
    heap: str = "glibc",
    length: int = TYPICAL_LENGTH,
    state: float = 2,
    kernels: bool = True,
) -> float:
    """Predicted peak memory of a training on a "cpu" or a "cuda" device; on a GPU for fp32, and bf16 needs less.

    state·params + activations of a micro-batch + logits of waiting chunks + the process itself.
    On a processor the heap is larger than its live part. length: pieces of a sentence. state: numbers that the
    optimizer keeps per parameter (`state_numbers`). kernels: whether bf16 products have some, as they do on a processor
    with instructions for bf16.
    """
    params = count.num_params(config, *vocab_sizes)
    tokens = min(tokens_per_batch, MICRO_BATCH_TOKENS[kind])
    sentences = max(1, round(tokens / length))
    bytes_of = functools.partial(count.activation_bytes, config, sentences, length, length)
    logits = min(tokens, LOGIT_TOKENS[kind]) * vocab_sizes[0]
    if kind == "cuda":
        return _state_bytes(kind, state) * params + bytes_of() + logits * WEIGHT_BYTES + PROCESS_BYTES[kind]
    lanes = LANES if params <= LARGEST_IN_LANES else 1
    narrow = precision == "bf16"
    each = _state_bytes(kind, state) + WEIGHT_BYTES * (lanes - 1) + NARROW_BYTES * lanes * narrow
    value_bytes = NARROW_BYTES if narrow else WEIGHT_BYTES
    held = (HEAP_AMONG_KERNELS[heap] if narrow and kernels else HEAP) * bytes_of(value_bytes=value_bytes)
    held += KERNELS * KERNEL_BYTES[heap] * (narrow and kernels)
    return each * params + held + logits * lanes * value_bytes + PROCESS_BYTES[kind]


@functools.cache
def heap_here() -> str:
    """The allocator of children on this machine."""
    return "tcmalloc" if allocates_by_tcmalloc() else "glibc"


def disk_bytes(num_params: int, keep_checkpoints: int, keep_optimizer: bool = True, state: float = 2) -> float:
    """Disk space of a finished training: weights, and its checkpoints until `ablations prune`."""
    each = WEIGHT_BYTES * (1 + state * keep_optimizer)
    return float(num_params * (WEIGHT_BYTES + each * keep_checkpoints))


# --- The sizes of vocabularies that the text decides, without a prepared corpus
# They count what SentencePiece takes as pieces: the tests compare the two.


# What SentencePiece keeps for itself: these are never pieces; a line with "▅" is not learnt from; "▁" is a space.
_NEVER = set("\x00\x1f")
_SKIPPED = "▅"
_known: dict[str, tuple[int, int]] = {}  # in this process


def sizes_by_text(corpus: PairCorpus, data: DataConfig, shared: bool) -> tuple[int, int]:
    """Pieces of source and target, the special symbols counted. Reads the training text once; its digest names it."""
    if data.units == "byte":
        return SIZE, SIZE
    key = digest([corpus.training_digest(), data.units, shared])
    if key not in _known:
        _known[key] = _remembered(key, corpus, data, shared)
    return _known[key]


def size_by_text(corpus: TextCorpus, data: TextData) -> int:
    """Pieces of running text, the special symbols and the bytes counted."""
    if data.units == "byte":
        return SIZE
    key = digest([corpus.training_digest(), data.units, RUNNING_TEXT])
    if key not in _known:
        with UserCache("vocabularies-1") as cache:
            size = cache.get(key)
            if not isinstance(size, int):
                with tempfile.TemporaryDirectory(prefix="ablations-text-") as folder:
                    size = learn_pieces(corpus, data, Path(folder, "model")).vocab_size
                cache.put(key, size)
        _known[key] = size, size
    return _known[key][0]


def _remembered(key: str, corpus: PairCorpus, data: DataConfig, shared: bool) -> tuple[int, int]:
    with UserCache("vocabularies-1") as cache:
        match cache.get(key):
            case [int(source), int(target)]:
                return source, target
        found = _count(corpus, data, shared)
        cache.put(key, list(found))
    return found


def _count(corpus: PairCorpus, data: DataConfig, shared: bool) -> tuple[int, int]:
    units: tuple[set[str], set[str]] = (set(), set())
    for pair in _sampled(corpus):
        for found, text in zip(units, pair, strict=True):
            if _SKIPPED not in text:
                found.update(text.split(" ") if data.units == "word" else text.replace("▁", " "))
    source, target = (units[0] | units[1],) * 2 if shared else units
    return len(source - _NEVER) + FIRST_BYTE, len(target - _NEVER) + FIRST_BYTE


def _sampled(corpus: PairCorpus) -> Iterator[tuple[str, str]]:
    pairs = corpus.check()["train"]
    return (pair for index, pair in enumerate(corpus.read_pairs("train")) if in_sample(index, pairs))


# --- The checkpoints that an evaluation's settings refer to


def spacing_of(evaluation: EvaluationSpec) -> int:
    """The steps between the checkpoints of an average, or between the measurements for the best checkpoint."""
    best = evaluation.settings["checkpoint"] == "best"
    return int(evaluation.settings.get("eval_steps" if best else "checkpoint_steps", 0))
