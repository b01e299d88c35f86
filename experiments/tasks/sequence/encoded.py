"""Open the encoded corpus of a run, by its name."""

from experiments.config import RunConfig
from experiments.data.encoding.encoded import EncodedCorpus, encoded_digest, open_encoded
from experiments.tasks.base import Context


def encoded_of(config: RunConfig, context: Context, symbols: int) -> EncodedCorpus:
    """`symbols`: the size of the target's vocabulary of whole symbols; 0: word-pieces."""
    name = encoded_digest(context.inputs["corpus"], config.data, config.model.shared_vocabulary, symbols)
    return open_encoded(context.store / "corpora", name)
