"""Predict the memory and disk space of a built-in network. Find its vocabulary sizes and its evaluations' settings.

This module does not import torch.
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
from experiments.data.encoding.tokenizer import tokenizer_settings
from experiments.data.encoding.utf8 import SIZE
from experiments.identity import digest
from experiments.processes.processor import allocates_by_tcmalloc
from experiments.store.user_cache import UserCache
from model import cost as count
from model.config import ModelConfig

OF_WEIGHTS = ("checkpoint", "precision", "checkpoint_steps", "eval_steps")


def evaluation_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that identify an evaluation: `config.evaluation` without its sets.

    The spacing of checkpoints is included only if the evaluated weights depend on it.
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


TYPICAL_LENGTH = 28  # word pieces of a sentence, used until a corpus has been measured
# Typical lengths for other `data.units`, measured on newstest2013 in English and German.
TYPICAL_LENGTHS = {"word": 18, "char": 118, "byte": 119}
MICRO_BATCH_TOKENS = {"cpu": 4096, "cuda": 32768}  # maximum positions per side of one forward and backward pass
# Positions of a batch per token. On a GPU, batches are padded to one of a few shapes. `python -m benchmarks.padding`
# measures 1.17 for multi30k with 25,000 tokens.
PADDED = {"cpu": 1.0, "cuda": 1.2}
# Number of tokens whose logits, or gradients of logits, exist at the same time (experiments/training/loss.py). The
# gradients of two chunks are kept until one matrix product uses them. On a GPU, the logits of the present chunk exist
# too.
LOGIT_TOKENS = {"cpu": 2 * 512, "cuda": 3 * 8192}
PROCESS_BYTES = {"cpu": 295e6, "cuda": 700e6}  # main memory of torch; GPU memory of the CUDA context and its kernels
# Bytes of the heap per byte of activations. The heap is larger than the activations for two reasons: gradients of the
# backward pass exist at the same time, and the freed blocks of a step leave gaps that are too small for the blocks of
# the next step. With glibc, new kernels of bf16 products are placed between blocks, so that gaps cannot be merged.
HEAP, HEAP_AMONG_KERNELS = 1.8, {"glibc": 4.3, "tcmalloc": 1.8}
# Assumed number of kernels for bf16 products. Each shape needs one kernel. A training on padded shapes has up to 1,900
# kernels (experiments/device.py lets oneDNN cache 2,048), but its heap is smaller: multi30k's model used 1.35 GB with
# glibc, and the prediction was 1.55 GB. A processor without instructions for bf16 has no such kernels: the demo's model
# used 0.35 GB in bf16 and in fp32.
KERNELS = 1024
KERNEL_BYTES = {"glibc": 0.5e6, "tcmalloc": 0.35e6}
WEIGHT_BYTES, NARROW_BYTES = 4, 2


def state_numbers(config: ModelConfig, vocab_sizes: tuple[int, int], training: TrainingConfig) -> float:
    """Return how many numbers the optimizer stores per parameter, such as 2 for Adam."""
    if training.optimizer != "muon":
        return state_per_weight(training)
    # Muon stores one number per weight in matrices of the layers. The vectors of the layers are counted as matrices.
    total = count.num_params(config, *vocab_sizes)
    layers = count.num_params(config, 1, 1)
    return state_per_weight(training, layers / total)


def _state_bytes(kind: str, state: float) -> float:
    """Return the bytes that each parameter needs in fp32 for its value, its gradient and the optimizer's state.

    On a processor, the result includes the copy of the value and of the state that is made for a checkpoint.
    """
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
    """Predict the peak memory of a training in bytes.

    The prediction is the sum of the parameters with their gradients and optimizer state, the activations of a
    micro-batch, the logits that exist at the same time, and the memory of the process. On a processor, the heap is
    larger than the allocated blocks. On a GPU, the prediction is for fp32; bf16 needs less.

    kind: "cpu" or "cuda".
    heap: the memory allocator, "glibc" or "tcmalloc".
    length: word pieces of a sentence.
    state: numbers that the optimizer stores per parameter (`state_numbers`).
    kernels: whether bf16 products need a kernel per shape. They do on a processor with instructions for bf16.
    graphs: whether a GPU records the forward and backward passes as CUDA graphs (`training.graphs`). The graphs share a
        memory pool, which needs as much memory as one pass of the largest shape. Two more sets of gradients are
        needed: the gradients of a replayed pass, and the gradients of an eager pass for comparison.
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
    """Return the memory allocator of children on this machine, "tcmalloc" or "glibc"."""
    return "tcmalloc" if allocates_by_tcmalloc() else "glibc"


def disk_bytes(num_params: int, keep_checkpoints: int, state: float = 2) -> float:
    """Predict the disk space of a finished training in bytes: its weights and checkpoints.

    `ablations forget --checkpoints` removes the checkpoints.
    """
    return float(num_params * WEIGHT_BYTES * (1 + (1 + state) * keep_checkpoints))


_known: dict[str, tuple[int, int]] = {}  # cache of this process: digest → sizes


def sizes_by_text(corpus: Corpus, data: DataConfig, shared: bool) -> tuple[int, int]:
    """Return the source and target vocabulary sizes, including special symbols.

    The tokenizers are learnt once for each version of a corpus. After that, the sizes come from a cache.
    """
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
