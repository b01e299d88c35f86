"""Requirements of a built-in network before training: memory, disk space, vocabulary; settings of evaluations.

Imports no torch.
"""

import functools
import tempfile
from pathlib import Path
from typing import Any

from experiments.config.data import DataConfig
from experiments.config.evaluation import UNNAMED_AT_DEFAULT
from experiments.config.run_config import RunConfig
from experiments.config.training import LARGEST_UNCUT, TrainingConfig, state_per_weight
from experiments.data.corpora.corpus import Corpus
from experiments.data.encoding.prepare import learn_tokenizers
from experiments.data.encoding.tokenizer import SIZE, tokenizer_settings
from experiments.identity import digest
from experiments.processes.processor import allocates_by_tcmalloc
from experiments.store.user_cache import UserCache
from model import cost as count
from model.config import ModelConfig

OF_WEIGHTS = ("checkpoint", "precision", "checkpoint_steps", "eval_steps")


def evaluation_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that identify an evaluation: `config.evaluation` without its sets.

    The spacing of checkpoints is included only if it decides the weights.
    """
    settings = config.evaluation.model_dump(mode="json", exclude={"sets"})
    for name in UNNAMED_AT_DEFAULT:
        if not settings[name]:
            del settings[name]
    if config.evaluation.checkpoint != "last":
        settings |= {"checkpoint_steps": config.training.checkpoint_steps}
    if config.evaluation.checkpoint == "best":
        settings |= {"eval_steps": config.training.eval_steps}
    return settings


# --- Predict the memory and disk space of a training from its configuration


TYPICAL_LENGTH = 28  # pieces of a sentence if no corpus was measured
# The same by other `data.units` than parts of words: of newstest2013, English and German together.
TYPICAL_LENGTHS = {"word": 18, "char": 118, "byte": 119}
MICRO_BATCH_TOKENS = {"cpu": 4096, "cuda": 32768}  # padded positions per side of one forward and backward pass
# Places of a batch over its tokens, where it is padded to one of few shapes. `python -m benchmarks.padding` gives 1.17
# for multi30k at 25,000 tokens.
PADDED = {"cpu": 1.0, "cuda": 1.2}
# Tokens whose logits, or gradients of logits, exist at once (experiments/training/loss.py): two chunks that wait for
# one product; on a GPU also the logits of the present chunk.
LOGIT_TOKENS = {"cpu": 2 * 512, "cuda": 3 * 8192}
PROCESS_BYTES = {"cpu": 295e6, "cuda": 700e6}  # torch itself in main memory; on a GPU a CUDA context and its kernels
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
    graphs: bool = False,
) -> float:
    """Predicted peak memory of a training on a "cpu" or a "cuda" device; on a GPU for fp32, and bf16 needs less.

    state·params + activations of a micro-batch + logits of waiting chunks + the process itself.
    On a processor the heap is larger than its live part. length: pieces of a sentence. state: numbers that the
    optimizer keeps per parameter (`state_numbers`). kernels: whether bf16 products have some, as they do on a processor
    with instructions for bf16. graphs: whether a GPU captures the passes as CUDA graphs (`training.graphs`). Their
    memory pool holds a second pass of the largest shape: all graphs share it, and one is replayed at a time. Two more
    sets of gradients hold the results of a captured pass and those that are compared with it.
    """
    params = count.num_params(config, *vocab_sizes)
    tokens = min(tokens_per_batch, MICRO_BATCH_TOKENS[kind])
    most = MICRO_BATCH_TOKENS[kind] * (LARGEST_UNCUT if kind == "cuda" else 1)
    sentences = max(1, round(min(PADDED[kind] * tokens_per_batch, most) / length))
    bytes_of = functools.partial(count.activation_bytes, config, sentences, length, length)
    logits = min(tokens, LOGIT_TOKENS[kind]) * vocab_sizes[0]
    if kind == "cuda":
        one_pass = bytes_of() + logits * WEIGHT_BYTES
        captured = one_pass + 2 * WEIGHT_BYTES * params if graphs else 0.0
        return _state_bytes(kind, state) * params + one_pass + captured + PROCESS_BYTES[kind]
    narrow = precision == "bf16"
    each = _state_bytes(kind, state) + NARROW_BYTES * narrow
    value_bytes = NARROW_BYTES if narrow else WEIGHT_BYTES
    held = (HEAP_AMONG_KERNELS[heap] if narrow and kernels else HEAP) * bytes_of(value_bytes=value_bytes)
    held += KERNELS * KERNEL_BYTES[heap] * (narrow and kernels)
    return each * params + held + logits * value_bytes + PROCESS_BYTES[kind]


@functools.cache
def heap_here() -> str:
    """The allocator of children on this machine."""
    return "tcmalloc" if allocates_by_tcmalloc() else "glibc"


def disk_bytes(num_params: int, keep_checkpoints: int, state: float = 2) -> float:
    """Disk space of a finished training: weights, and its checkpoints until `ablations forget --checkpoints`."""
    return float(num_params * WEIGHT_BYTES * (1 + (1 + state) * keep_checkpoints))


# --- The sizes of vocabularies that the text decides, without a prepared corpus


_known: dict[str, tuple[int, int]] = {}  # in this process


def sizes_by_text(corpus: Corpus, data: DataConfig, shared: bool) -> tuple[int, int]:
    """Pieces of source and target, the special symbols counted. Learns the tokenizers once for each content."""
    if data.units == "byte":
        return SIZE, SIZE
    key = digest([corpus.training_digest(), tokenizer_settings(data, shared)])
    if key not in _known:
        with UserCache("vocabularies-2") as cache:
            sizes = cache.get(key)
            if sizes is None:
                pairs = corpus.check().get("train", 0)
                with tempfile.TemporaryDirectory(prefix="ablations-text-") as folder:
                    learnt = learn_tokenizers(corpus, data, shared, Path(folder), lambda: corpus.read("train"), pairs)
                sizes = [tokenizer.vocab_size for tokenizer in learnt]
                cache.put(key, sizes)
        _known[key] = sizes[0], sizes[1]
    return _known[key]
