"""Find the reasons why a run cannot be trained or scored, in its settings, corpus and devices. Imports no torch."""

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from experiments.config.data import DataConfig
from experiments.config.evaluation import EvaluationConfig
from experiments.config.field_types import PrecisionChoice
from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.data.corpora.corpus import Corpus, select_sets
from experiments.data.encoding.encoded import EncodedCorpus, encoded_digest, open_encoded
from experiments.data.encoding.prepare import prepare
from experiments.data.encoding.tokenizer import VocabularyTooLarge
from experiments.errors import NeedsCorpus, UserError
from experiments.identity import digest
from experiments.processes.processor import has_bf16
from experiments.store.user_cache import UserCache

# A larger vocabulary than any built-in corpus allows. 20,000 pairs allow 2,467 word pieces, and 2,811 in version 2.
BUILTIN_PIECES = 3000
MOST_ALPHA = 50.0  # with a larger alpha, ((5 + |Y|) / 6)^alpha of long outputs would exceed the range of a double
_CORPUS = "a corpus of your own with --corpus DIR"


def of_settings(training: TrainingConfig, evaluation: EvaluationConfig) -> Iterator[UserError]:
    """Yield an error for each choice of checkpoints that the training does not save, and for scores that overflow."""
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

    The vocabulary may be too large for the text, a pair may be too long for a batch, or a line may be too long for a
    learned position table.

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


# --- The longest sentences of a corpus in word pieces, before the corpus is prepared
# A corpus of at most LOOKED_AT pairs is prepared in a temporary folder. This gives exact lengths and takes seconds. The
# result is cached for the user. A larger corpus is checked when `Task.prepare` prepares it.


LOOKED_AT = 50_000  # maximum number of pairs


@dataclass(frozen=True)
class Lengths:
    """The lengths of the longest sentences in word pieces, EOS counted."""

    longest_pair: int  # in the training set
    longest_of: Mapping[str, int]  # evaluated set → length


_known: dict[tuple[object, ...], Lengths | UserError] = {}  # cache of this process, which the rows of a table share


def longest(corpus: Corpus, data: DataConfig, shared: bool, root: Path) -> Lengths:
    """Return the lengths of a corpus's longest sentences; zeros for a large corpus that is not prepared.

    root: the folder of prepared corpora.

    Raises UserError as `prepare` does.
    """
    name = encoded_digest(corpus.training_digest(root), data, shared)
    digests = {each: corpus.set_digest(each, root) for each in corpus.sets}

    def lengths_of(encoded: EncodedCorpus) -> Lengths:
        sets = {each: encoded.longest(each, its_digest) for each, its_digest in digests.items()}
        return Lengths(encoded.longest("train"), sets)

    def measured() -> Lengths:
        """Prepare the corpus in a temporary folder and return its lengths. Return zeros if the corpus is large."""
        if corpus.check(root)["train"] > LOOKED_AT:
            return Lengths(0, dict.fromkeys(digests, 0))
        with tempfile.TemporaryDirectory(prefix="ablations-corpus-") as folder:
            return lengths_of(prepare(corpus, data, shared, Path(folder), lambda *_: None))

    sets = (root / name / "sets" / f"{each}-{its_digest}" for each, its_digest in digests.items())
    prepared = (root / name / "facts.json").exists() and all(place.is_dir() for place in sets)
    key = (prepared, root, name, *digests.items())
    if key not in _known:
        try:
            _known[key] = lengths_of(open_encoded(root, name)) if prepared else _looked_up(name, digests, measured)
        except UserError as error:
            _known[key] = error
    known = _known[key]
    if isinstance(known, UserError):
        raise known
    return known


def _looked_up(name: str, digests: Mapping[str, str], measure: Callable[[], Lengths]) -> Lengths:
    """Return the lengths from the user's cache, or measure and cache them. Learning a tokenizer takes half a second."""
    key = digest([name, sorted(digests.items()), metadata.version("sentencepiece")])
    with UserCache("lengths-2") as cache:
        found = cache.get(key)
        if found is None:
            found = asdict(measure())
            cache.put(key, found)
    return Lengths(**found)


# --- Find out in a separate process, which imports torch, whether the devices compute in a precision


PATIENCE_S = 120.0  # time limit; importing torch is slow on a busy machine or from a network disk
_ASK = """
import ablations  # puts the folder of model, experiments and reports on the import path
import json
import sys
import torch
from experiments.device import has_bf16_instructions, require_cuda, resolve_precision
from experiments.errors import UserError
precision, device = sys.argv[1], torch.device(sys.argv[2])
try:
    if device.type == "cuda":
        require_cuda()
    resolve_precision(precision, device)
    print(json.dumps(["", precision == "bf16" and not has_bf16_instructions(device)]))
except UserError as error:
    print(json.dumps([str(error), False]))
"""


class Ability(NamedTuple):
    """Whether the devices of a kind can compute in a precision."""

    refused: str = ""  # the reason why the devices cannot compute in the precision; "" if they can or it is unknown
    slow: bool = False  # whether the devices emulate the precision without instructions for it


def ability(precision: PrecisionChoice, kind: str) -> Ability:
    """Return the ability of this machine's devices of a kind ("cpu" or "cuda") to compute in a precision.

    If the ability is unknown, the result is `Ability()`. A child whose device cannot compute in the precision then
    reports an error before it trains.

    Raises UserError if the environment variables for tests are inconsistent (processes/processor.py).
    """
    if kind == "cpu":
        return Ability(slow=precision == "bf16" and not has_bf16())
    return _asked(precision, kind)


@functools.cache
def _asked(precision: str, kind: str) -> Ability:
    command = [sys.executable, "-P", "-c", _ASK, precision, kind]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        return Ability(*json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError):
        return Ability()
