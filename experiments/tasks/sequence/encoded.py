"""Open what a run's corpus has in the store: the encoded corpus, by its name, and the vocabulary map."""

from collections.abc import Mapping
from pathlib import Path

from experiments.config import RunConfig
from experiments.data.encoding.encoded import EncodedCorpus, encoded_digest, open_encoded
from experiments.data.encoding.vocabulary_map import stored_map
from experiments.errors import UserError
from experiments.tasks.base import Context


def encoded_of(config: RunConfig, context: Context, symbols: int) -> EncodedCorpus:
    """`symbols`: the size of the target's vocabulary of whole symbols; 0: word-pieces."""
    name = encoded_digest(context.inputs["corpus"], config.data, config.model.shared_vocabulary, symbols)
    return open_encoded(context.store / "corpora", name)


def map_of_translation(config: RunConfig, inputs: Mapping[str, str], corpora: Path) -> Path:
    """The folder of the vocabulary map of a run's corpus, learnt if that was not done yet.

    Raises UserError if the store does not have the encoded corpus, as where the run was imported.
    """
    name = encoded_digest(inputs["corpus"], config.data, config.model.shared_vocabulary)
    if not (corpora / name).is_dir():
        raise UserError(
            f"A vocabulary map is learnt from the run's training pairs, and {corpora} does not have them as "
            f"{name}. `ablations run` with the study and its corpus prepares them; --vocabulary-map 0 goes without."
        )
    return stored_map(open_encoded(corpora, name))
