"""Find reasons why a run cannot be trained or scored, from its settings and corpus, before anything is trained.

Imports no torch.
"""

from collections.abc import Iterator
from pathlib import Path

from experiments.config import DataConfig, EvaluationConfig, RunConfig, TrainingConfig
from experiments.data.corpora.pair_corpus import PairCorpus, select_sets
from experiments.data.encoding.tokenizer import VocabularyTooLarge
from experiments.errors import NeedsCorpus, UserError
from experiments.tasks.longest import Longest

BUILTIN_PIECES = 3000  # more than a built-in corpus of any size allows: 20,000 pairs allow 2,467
MOST_ALPHA = 50.0  # ((5 + |Y|) / 6)^alpha of longer outputs would be more than a double holds
_NAME_A_CORPUS = (
    "Name a corpus of your own with --corpus DIR, or take a smaller vocabulary, as --set data.vocab_size=1000."
)


def of_settings(training: TrainingConfig, evaluation: EvaluationConfig) -> Iterator[UserError]:
    """Choices among checkpoints that this training does not keep; scores that overflow."""
    steps, every = training.train_steps, training.checkpoint_steps
    choice, _, number = evaluation.checkpoint.partition(":")
    there = steps // every + (steps % every > 0)
    if choice != "last" and not steps:
        yield UserError(
            f'evaluation.checkpoint = "{evaluation.checkpoint}", and training.train_steps = 0 leaves no checkpoint. '
            'Set it to "last": the model as it was initialised.'
        )
        return
    if choice == "average" and int(number) > there:
        yield UserError(
            f"evaluation.checkpoint averages {number} checkpoints, and training.train_steps = {steps} with "
            f"training.checkpoint_steps = {every} leaves {there}. Set training.checkpoint_steps to "
            f"{steps // int(number) or 1} or less, or average fewer."
        )
    if choice == "best" and training.eval_steps > steps:
        yield UserError(
            f"evaluation.checkpoint is the best on dev, and training.eval_steps = {training.eval_steps} measures none "
            f"within training.train_steps = {steps}. Set training.eval_steps to {steps} or less."
        )
    if evaluation.length_penalty > MOST_ALPHA:
        yield UserError(
            f"evaluation.length_penalty = {evaluation.length_penalty:g}: scores of long outputs overflow. Set it to "
            f"{MOST_ALPHA:g} or less; the paper's is 0.6."
        )


def of_builtin(data: DataConfig) -> Iterator[UserError]:
    """A vocabulary larger than a generated corpus of any size fills."""
    if data.corpus == "builtin" and not data.sized_by_text and data.vocab_size > BUILTIN_PIECES:
        yield NeedsCorpus(
            f"data.vocab_size = {data.vocab_size} is more than the built-in corpus allows, whatever its size (fewer "
            f"than {BUILTIN_PIECES} pieces). {_NAME_A_CORPUS}"
        )


def of_corpus(config: RunConfig, corpus: PairCorpus, root: Path, target_symbols: int) -> Iterator[UserError]:
    """A vocabulary that the text cannot fill, pairs that fit no batch, lines beyond a learned position table.

    root: folder of prepared corpora.
    """
    data, tokens, model = config.data, config.training.tokens_per_batch, config.model
    if too_large := list(of_builtin(data)):
        yield from too_large
        return
    positions = model.longest
    try:
        sets = select_sets(corpus, config.evaluation.sets)
        found = Longest(corpus, data, model.shared_vocabulary, target_symbols, root).lengths(tokens, positions)
    except VocabularyTooLarge as error:
        yield NeedsCorpus(f"{error} {_NAME_A_CORPUS}") if data.corpus == "builtin" else error
        return
    except UserError as error:
        yield error
        return
    if found.longest_pair > tokens:
        yield UserError(
            f"training.tokens_per_batch = {tokens} is less than the longest training sentence, which has "
            f"{found.longest_pair} pieces (EOS counted). Set training.tokens_per_batch to {found.longest_pair} or "
            f"more, or data.max_pieces to {tokens} or less, which drops such pairs."
        )
    for name, pieces in {"train": found.longest_pair, **{name: found.longest_of[name] for name in sets}}.items():
        if positions is not None and pieces > positions:
            yield UserError(
                f"model.max_length = {positions}: the longest sentence of {name} has {pieces} pieces (EOS counted), "
                f"and learned positions reach no further. Set model.max_length to {pieces} or more"
                f"{', or data.max_pieces to less' if name == 'train' else ''}."
            )
