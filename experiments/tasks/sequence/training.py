"""Train a network on pairs. Only the child imports it: it needs torch."""

from collections.abc import Sequence
from typing import Any

from experiments.config import RunConfig
from experiments.data.encoding.encoded import EncodedCorpus, model_names
from experiments.store.keeps import Keep
from experiments.tasks.base import Context
from experiments.tasks.sequence.batches import Batches, dev_perplexity
from experiments.tasks.train_network import Material, train_network


def train_pairs(
    config: RunConfig, context: Context, encoded: EncodedCorpus, vocab_sizes: tuple[int, int], keeps: Sequence[Keep]
) -> dict[str, Any]:
    """Train to the end; returns the facts of the run's record. The arguments are those of `train_network`."""
    names = dict.fromkeys(model_names(config.model.shared_vocabulary))
    material = Material(
        batches=lambda share, lanes: Batches(config, context, encoded, share, lanes),
        dev=lambda model, device: dev_perplexity(model, encoded, device),
        data={"encoded": encoded.digest, **encoded.facts},
        files={name: encoded.tokenizer_model(name) for name in names} if context.rank == 0 else {},
    )
    return train_network(config, context, material, vocab_sizes, keeps)
