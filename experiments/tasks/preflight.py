"""Find the reasons why a run cannot be trained or scored, in its settings and corpus.

This module does not import torch.
"""

from collections.abc import Iterator
from pathlib import Path

from experiments.config.data import DataConfig
from experiments.config.evaluation import EvaluationConfig
from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.data.corpora.corpus import Corpus, select_sets
from experiments.data.encoding.tokenizer import VocabularyTooLarge
from experiments.errors import NeedsCorpus, UserError
from experiments.tasks.longest_sentences import longest

# Vocabulary size that is larger than any generated corpus allows. 20,000 pairs allow 2,467 word pieces with version 1
# of the generated corpus, and 2,811 with version 2.
BUILTIN_PIECES = 3000
MOST_ALPHA = 50.0  # with a larger alpha, ((5 + |Y|) / 6)^alpha of long outputs would exceed the range of a double
_CORPUS = "a corpus of your own with --corpus DIR"


def of_settings(training: TrainingConfig, evaluation: EvaluationConfig) -> Iterator[UserError]:
    """Yield an error if the evaluation needs checkpoints that the training does not save, or if scores overflow."""
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
    """Yield an error if the vocabulary is larger than any generated corpus allows."""
    if data.corpus == "builtin" and not data.sized_by_text and data.vocab_size > BUILTIN_PIECES:
        yield NeedsCorpus(
            f"data.vocab_size = {data.vocab_size} is more than the built-in corpus allows, whatever its size (fewer "
            f"than {BUILTIN_PIECES} pieces). Name {_CORPUS}, or a smaller vocabulary, as --set data.vocab_size=500."
        )


def of_corpus(config: RunConfig, corpus: Corpus, root: Path) -> Iterator[UserError]:
    """Yield an error for each setting that does not fit the corpus.

    Three errors are possible: the vocabulary is too large for the text, a pair is too long for a batch, or a line is
    too long for learned positions.

    root: the folder of prepared corpora.
    """
    data, tokens, model = config.data, config.training.tokens_per_batch, config.model
    if too_large := list(of_builtin(data)):
        yield from too_large
        return
    positions = model.longest
    try:
        sets = select_sets(corpus, config.evaluation.sets)
        lengths = longest(corpus, data, model.shared_vocabulary, root)
    except VocabularyTooLarge as error:
        yield NeedsCorpus(f"{error} Or name {_CORPUS}.") if data.corpus == "builtin" else error
        return
    except UserError as error:
        yield error
        return
    if lengths.longest_pair > tokens:
        yield UserError(
            f"training.tokens_per_batch = {tokens} is less than the longest training sentence, which has "
            f"{lengths.longest_pair} pieces (EOS counted). Set training.tokens_per_batch to {lengths.longest_pair} or "
            f"more, or data.max_pieces to {tokens} or less, which drops such pairs."
        )
    for name, pieces in {"train": lengths.longest_pair, **{name: lengths.longest_of[name] for name in sets}}.items():
        if positions is not None and pieces > positions:
            yield UserError(
                f"model.max_length = {positions}: the longest sentence of {name} has {pieces} pieces (EOS counted), "
                f"more than the learned positions. Set model.max_length to {pieces} or "
                f"more{', or data.max_pieces to less' if name == 'train' else ''}."
            )
