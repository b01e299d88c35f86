"""What a training will hold and leave: bytes predicted from its configuration. Imports no torch."""

from model import count
from model.config import ModelConfig

TYPICAL_LENGTH = 28  # pieces of a sentence where no corpus was measured
MICRO_BATCH_TOKENS = {"cpu": 4096, "cuda": 32768}  # places a side of one forward and backward pass
SMALLEST_TOKENS = 64  # micro-batches are halved down to about this when memory runs out
# Tokens whose logits, or gradients of logits, exist at once (experiments/training/loss.py): the two chunks that wait
# for one product; on a GPU the chunk at hand and what its logsumexp makes of it, too.
LOGIT_TOKENS = {"cpu": 2 * 512, "cuda": 4 * 8192}
PROCESS_BYTES = {"cpu": 450e6, "cuda": 700e6}  # torch itself in main memory; a CUDA context and its kernels
# Of a parameter: itself, its gradient, Adam's two moments in fp32; in main memory the copy that is being saved, too.
STATE_BYTES = {"cpu": 28, "cuda": 16}
SAVED_BYTES = 12  # of a parameter in a checkpoint: itself and the moments
WEIGHT_BYTES = 4


def memory_bytes(config: ModelConfig, vocab_sizes: tuple[int, int], tokens_per_batch: int, kind: str) -> float:
    """Most memory of a training on a "cpu" or a "cuda" device, in fp32; bf16 needs less.

    state·params + activations of a micro-batch + logits of the chunks that wait for each other + the process itself.
    """
    params = count.num_params(config, *vocab_sizes)
    tokens = min(tokens_per_batch, MICRO_BATCH_TOKENS[kind])
    sentences = max(1, round(tokens / TYPICAL_LENGTH))
    activations = count.activation_bytes(config, sentences, TYPICAL_LENGTH, TYPICAL_LENGTH)
    logits = min(tokens, LOGIT_TOKENS[kind]) * vocab_sizes[0] * WEIGHT_BYTES
    return STATE_BYTES[kind] * params + activations + logits + PROCESS_BYTES[kind]


def disk_bytes(num_params: int, keep_checkpoints: int, keep_optimizer: bool = True) -> float:
    """What a finished training keeps: weights, and its checkpoints until `ablations prune`."""
    each = SAVED_BYTES if keep_optimizer else WEIGHT_BYTES
    return float(num_params * (WEIGHT_BYTES + each * keep_checkpoints))
