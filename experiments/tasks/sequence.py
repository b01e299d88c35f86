"""Tasks whose examples are pairs of lines, a source and a target: the common part of translation and parsing.

The planning half imports no torch; training and evaluation do. A task defines the origin of its pairs (`corpus`), how
its targets become pieces (`target_symbols`) and how outputs are scored (`score_outputs`).
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.config import RunConfig
from experiments.data.corpora.files import read_outputs
from experiments.data.corpora.pair_corpus import PairCorpus, select_sets
from experiments.data.encoding.encoded import EncodedCorpus, encoded_digest, open_encoded
from experiments.errors import UserError
from experiments.tasks.base import Context, EvaluationSpec, Progress
from experiments.tasks.network import OF_WEIGHTS, NetworkTask, evaluation_settings, sizes_by_text
from experiments.tasks.preflight import of_corpus, of_settings

if TYPE_CHECKING:
    from experiments.data.encoding.encoded import EncodedSet
    from experiments.evaluation.counts import SetScores


# The parts of an evaluation, in the order in which they are made.
LIKELIHOOD, DECODE, SCORE = "likelihood", "decode", "score"
_OF_SEARCH = ("beam_size", "length_penalty", "max_extra_length")


class SequenceTask(NetworkTask):
    """A task on pairs of lines. Subclasses define the corpus, the target's symbols and the scores."""

    evaluation_parts = (LIKELIHOOD, DECODE, SCORE)
    part_reads: Mapping[str, tuple[str, ...]] = {SCORE: (DECODE,)}
    part_settings: Mapping[str, tuple[str, ...]] = {LIKELIHOOD: OF_WEIGHTS, DECODE: (*OF_WEIGHTS, *_OF_SEARCH)}
    outputs_file = "translations.txt"  # in an evaluation's folder: what was decoded, a line each
    inputs_read: tuple[str, ...] | None = ("data.",)
    ensembles = True
    init_stats: tuple[str, ...] = ("entropy_encoder", "entropy_decoder", "entropy_cross", "gradient_norm")
    prepare_reads: tuple[str, ...] | None = ("data.", "model.shared_vocabulary", "training.tokens_per_batch")

    @abstractmethod
    def corpus(self, config: Any) -> PairCorpus:
        """The corpus of a configuration, found by file names. Raises UserError."""

    @abstractmethod
    def score_outputs(
        self, config: Any, evaluation: EvaluationSpec, sources: Sequence[str], outputs: Sequence[str],
        references: Sequence[str], labels: Sequence[str], folder: Path,
    ) -> "SetScores":  # fmt: skip
        """Score the decoded outputs and write files to `folder`; `labels`: all pieces of the target's vocabulary."""

    def target_symbols(self, config: Any) -> int:
        """The size of a target vocabulary of whole symbols; 0: word-pieces, as many as for the source."""
        return 0

    def scoring(self, config: Any) -> dict[str, Any]:
        """Settings of `score_outputs` in eval_id, besides (or in place of) those of `config.evaluation`."""
        return {}

    def inputs(self, config: RunConfig, store: Path) -> dict[str, str]:
        """The content of train and dev, or the recipe of a built-in corpus."""
        return {"corpus": self.corpus(config).training_digest(store / "corpora")}

    def evaluations(self, config: RunConfig, store: Path) -> list[EvaluationSpec]:
        """One per set, with the decoding in full; the spacing of checkpoints only where it decides the weights."""
        corpus = self.corpus(config)
        settings = evaluation_settings(config) | self.scoring(config)
        return [
            EvaluationSpec(name, settings, {"set": corpus.set_digest(name, store / "corpora")})
            for name in select_sets(corpus, config.evaluation.sets)
        ]

    def vocab_sizes(self, config: RunConfig) -> tuple[int, int]:
        """Sizes of target and source, as `build_model` and `cost.num_params` take them. Raises errors of the corpus."""
        source, target = (config.data.vocab_size,) * 2
        if config.data.sized_by_text:
            source, target = sizes_by_text(self.corpus(config), config.data, config.model.shared_vocabulary)
        return self.target_symbols(config) or target, source

    def _sizes_in(self, encoded: "EncodedCorpus", config: RunConfig) -> tuple[int, int]:
        """`vocab_sizes` where the corpus is prepared: a child needs no corpus."""
        if not config.data.sized_by_text:
            return self.vocab_sizes(config)
        pieces = encoded.facts["vocab_size"]
        return self.target_symbols(config) or pieces["target"], pieces["source"]

    def obstacles(self, config: RunConfig, store: Path) -> list[UserError]:
        corpus, symbols = self.corpus(config), self.target_symbols(config)
        return [
            *of_settings(config.training, config.evaluation),
            *of_corpus(config, corpus, store / "corpora", symbols),
        ]

    def prepare(self, config: RunConfig, store: Path, progress: Progress) -> dict[str, Any]:
        """Train the tokenizer and encode the corpus, once; see experiments/data/encoding/prepare.py for the errors."""
        from experiments.data.encoding.prepare import prepare

        corpus, shared, root = self.corpus(config), config.model.shared_vocabulary, store / "corpora"
        encoded = prepare(corpus, config.data, shared, root, progress, target_symbols=self.target_symbols(config))
        _check_batches(config, encoded)
        return {"corpus": corpus.name, "source": corpus.source, "target": corpus.target, **encoded.facts}

    def train(self, config: RunConfig, context: Context) -> dict[str, Any]:
        from experiments.tasks.train_network import train_pairs

        encoded = encoded_of(config, context, self.target_symbols(config))
        sizes = self._sizes_in(encoded, config)
        return train_pairs(config, context, encoded, sizes, (*self.keeps(config), *context.keeps))

    def likelihood(
        self, config: RunConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: Context
    ) -> dict[str, Any]:
        """The perplexity of the references: of the weights, or of an ensemble's members."""
        from experiments.tasks.evaluate_network import measure_pairs, open_trained

        encoded, text = self._set_of(config, evaluation, context)
        trainings = tuple(context.members) or (weights,)
        trained = open_trained(config, evaluation, trainings, context.device, self._sizes_in(encoded, config))
        return measure_pairs(trained, text, context)

    def decode(
        self, config: RunConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: Context
    ) -> dict[str, Any]:
        """Write `outputs_file`."""
        from experiments.tasks.evaluate_network import decode, open_trained

        encoded, text = self._set_of(config, evaluation, context)
        trainings = tuple(context.members) or (weights,)
        trained = open_trained(config, evaluation, trainings, context.device, self._sizes_in(encoded, config))
        return decode(trained, text, evaluation.settings, folder / self.outputs_file, evaluation.set, context)

    def score(
        self, config: RunConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: Context
    ) -> dict[str, Any]:
        """Score `outputs_file`; reads no weights."""
        from experiments.evaluation.trained import load_tokenizers

        _, text = self._set_of(config, evaluation, context)
        outputs = read_outputs(folder / self.outputs_file)
        labels = load_tokenizers(config, (*context.members, weights)[0])[1].vocabulary
        scores = self.score_outputs(config, evaluation, text.source, outputs, text.target, labels, folder)
        return {"metrics": scores.metrics, "signature": scores.signatures}

    def _set_of(
        self, config: RunConfig, evaluation: EvaluationSpec, context: Context
    ) -> "tuple[EncodedCorpus, EncodedSet]":
        """The encoded corpus of a run, and of it the evaluated set."""

        encoded = encoded_of(config, context, self.target_symbols(config))
        return encoded, encoded.set(evaluation.set, evaluation.inputs["set"]).first(context.limit)


def _check_batches(config: RunConfig, encoded: "EncodedCorpus") -> None:
    """Raises UserError for a pair that fits no batch, before any run starts."""
    from experiments.data.batching import BatchPlan

    BatchPlan(encoded.train.source_lengths, encoded.train.target_lengths, config.training.tokens_per_batch, 0)


# --- Open the encoded corpus of a run, by its name


def encoded_of(config: RunConfig, context: Context, symbols: int) -> EncodedCorpus:
    """`symbols`: the size of the target's vocabulary of whole symbols; 0: word-pieces."""
    name = encoded_digest(context.inputs["corpus"], config.data, config.model.shared_vocabulary, symbols)
    return open_encoded(context.store / "corpora", name)
