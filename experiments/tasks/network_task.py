"""The base class of tasks that train a network of model/ on an encoded corpus, such as translation.

A subclass defines the corpus (`corpus`) and the parts of its evaluations. Only training and evaluation import torch;
the methods for planning do not. network.py predicts the memory and disk space of a training.
"""

import functools
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.attempt_context import AttemptContext
from experiments.config.network_change import Added, PlannedNetwork, changes_of
from experiments.config.run_config import RunConfig
from experiments.config.training import SMALLEST_MICRO_BATCH
from experiments.data.corpora.corpus import Corpus, select_sets
from experiments.data.encoding.encoded import EncodedCorpus, EncodedSet, encoded_digest, open_encoded
from experiments.data.encoding.prepare import prepare
from experiments.errors import UserError
from experiments.processes.processor import has_bf16, precision_here
from experiments.run_spec import EvaluationSpec
from experiments.store.provenance import PACKAGES
from experiments.store.retention import Keep, keeps_of
from experiments.tasks import compiling
from experiments.tasks.base import Progress, Task
from experiments.tasks.compiling import COMPILE
from experiments.tasks.device_ability import Ability, ability
from experiments.tasks.network import (
    OF_WEIGHTS,
    TYPICAL_LENGTH,
    TYPICAL_LENGTHS,
    disk_bytes,
    evaluation_settings,
    heap_here,
    memory_bytes,
    sizes_by_text,
    state_numbers,
)
from experiments.training import kept_checkpoints
from experiments.training.warm_start import why_no_branch
from model import cost as count

if TYPE_CHECKING:
    from experiments.evaluation.trained import Trained
    from experiments.tasks.train_network import CorpusReader


def _abilities(config: RunConfig, kind: str, trained: bool) -> list[Ability]:
    """Return, for each precision that a run needs, whether the devices can compute in it.

    trained: whether the run is trained already and is only scored.
    """
    asked = [config.evaluation.precision, *([] if trained else [config.training.precision])]
    return [ability(precision, kind) for precision in dict.fromkeys(asked)]


def _shared(config: RunConfig) -> bool:
    """Return whether source and target share one vocabulary. Return True for language models, which have one side."""
    return config.model.shared_vocabulary or not config.needs_encoder


class NetworkTask(Task):
    """A task that trains a network of model/ on an encoded corpus."""

    def packages(self) -> tuple[str, ...]:
        return (*PACKAGES, *(super().packages() or ()))

    inputs_read: tuple[str, ...] | None = ("data.",)
    ensembles = True
    settled_for_table = (COMPILE,)

    @abstractmethod
    def corpus(self, config: Any) -> Corpus:
        """Return the corpus of a configuration. Raises UserError if its files are not found."""

    @abstractmethod
    def check_batches(self, config: Any, encoded: EncodedCorpus) -> None:
        """Raise UserError if the training set cannot be packed into batches."""

    def typical_length(self, config: Any) -> int:
        """Return the typical length of a sentence in tokens, which predictions use before a corpus is measured."""
        return TYPICAL_LENGTHS.get(config.data.units, TYPICAL_LENGTH)

    def evaluation_settings(self, config: Any) -> dict[str, Any]:
        """Return the settings that identify the evaluations."""
        return evaluation_settings(config)

    def inputs(self, config: RunConfig, store: Path) -> dict[str, str]:
        """Return the digest of the corpus as {"corpus": digest}.

        The digest is computed from the content of train and dev, or from the settings of a generated corpus.
        """
        return {"corpus": self.corpus(config).training_digest(store / "corpora")}

    def evaluations(self, config: RunConfig, store: Path) -> list[EvaluationSpec]:
        """Return one evaluation per set, with all settings that identify it."""
        corpus, settings = self.corpus(config), self.evaluation_settings(config)
        return [
            EvaluationSpec(name, settings, {"set": corpus.set_digest(name, store / "corpora")})
            for name in select_sets(corpus, config.evaluation.sets)
        ]

    def vocab_sizes(self, config: RunConfig) -> tuple[int, int]:
        """Return the target and source vocabulary sizes, in the order of `build_model` and `cost.num_params`.

        Raises UserError if the corpus cannot be read.
        """
        source, target = (config.data.vocab_size,) * 2
        if config.data.sized_by_text:
            source, target = sizes_by_text(self.corpus(config), config.data, _shared(config))
        return config.data.target_symbols or target, source

    def prepare(self, config: RunConfig, store: Path, progress: Progress) -> dict[str, Any]:
        """Train the tokenizer and encode the corpus, if this has not been done before.

        Raises the errors of experiments/data/encoding/prepare.py.
        """
        encoded = prepare(self.corpus(config), config.data, _shared(config), store / "corpora", progress)
        self.check_batches(config, encoded)
        return encoded.facts

    def encoded(self, config: RunConfig, context: AttemptContext) -> EncodedCorpus:
        """Return the encoded corpus of a run."""
        name = encoded_digest(context.spec.inputs["corpus"], config.data, _shared(config))
        return open_encoded(context.store / "corpora", name)

    def evaluated(self, config: RunConfig, evaluation: EvaluationSpec, context: AttemptContext) -> EncodedSet:
        """Return the set that an evaluation decodes and scores, with at most `context.attempt.limit` sentences."""
        return self.encoded(config, context).set(evaluation.set, evaluation.inputs["set"]).first(context.attempt.limit)

    def reading(self) -> "CorpusReader":
        """Return the reader of the encoded corpus for training. The default reads pairs of lines."""
        from experiments.tasks.pair_batches import PAIRS

        return PAIRS

    def trained(
        self, config: RunConfig, evaluation: EvaluationSpec, weights: Path, context: AttemptContext
    ) -> "Trained":
        """Load the evaluated network from the weights in `weights`, or from the members of an ensemble."""
        from experiments.evaluation.trained import open_trained
        from experiments.tasks.train_network import batches_of

        sizes, trainings = self._sizes_here(config, context), tuple(context.members) or (weights,)
        batches = functools.partial(batches_of, config, context, self.encoded(config, context), self.reading())
        return open_trained(config, evaluation, trainings, context.device, sizes, batches)

    def train(self, config: RunConfig, context: AttemptContext) -> dict[str, Any]:
        from experiments.tasks.train_network import train_encoded

        sizes = self._sizes_here(config, context)
        return train_encoded(config, context, self.encoded(config, context), sizes, self.reading())

    def _sizes_here(self, config: RunConfig, context: AttemptContext) -> tuple[int, int]:
        """Return the target and source vocabulary sizes.

        If they depend on the text, read them from the prepared corpus, because a child may have no other corpus.
        """
        if not config.data.sized_by_text:
            return self.vocab_sizes(config)
        target = self.encoded(config, context).facts["vocab_size"]["target"]
        source = self.encoded(config, context).facts["vocab_size"].get("source", target)
        return config.data.target_symbols or target, source

    def num_params(self, config: RunConfig) -> int | None:
        unchanged, added = count.num_params(config.model, *self.vocab_sizes(config)), self._added(config)
        return None if added is None else unchanged + added.params

    def planned_network(self, config: RunConfig) -> PlannedNetwork:
        """Return the network of a run before network changes. Raises UserError if the corpus cannot be read."""
        length = self.typical_length(config)
        return PlannedNetwork(config.model, self.vocab_sizes(config), (length, length if config.model.encoder else 0))

    def _added(self, config: RunConfig) -> Added | None:
        """Return the parameters and operations that network changes add before training; None if unknown."""
        params, flops = 0, 0.0
        for name, value in changes_of(config).items():
            try:
                added = config.network_changes[name].added(value, self.planned_network(config))
            except UserError:  # `network_preflight` reports the reason
                return None
            params += added.params
            flops += added.flops
        return Added(params, flops)

    def network_preflight(self, config: RunConfig) -> list[UserError]:
        """Return the reasons why network changes do not fit the network."""
        found = []
        for name in {**changes_of(config), **changes_of(config.evaluation)}:
            values = getattr(config, name), getattr(config.evaluation, name)
            try:
                config.network_changes[name].check(*values, self.planned_network(config))
            except UserError as error:
                found.append(error)
        return found

    def cost(self, config: RunConfig) -> float:
        vocab_size, _ = self.vocab_sizes(config)
        length = self.typical_length(config)
        added, samples = self._added(config), config.training.gleu_samples
        if added is None:
            return 0.0
        per_token = count.flops_per_token(config.model, vocab_size, length, length, samples) + added.flops / length
        return per_token * config.training.tokens_per_batch * config.training.train_steps

    def for_table(self, setting: str, configs: Mapping[str, RunConfig]) -> tuple[Any, str]:
        assert setting == COMPILE
        return compiling.for_table({row: self.cost(config) for row, config in configs.items()}, configs)

    def memory_bytes(self, config: RunConfig, kind: str) -> float:
        precision, heap = precision_here(config.training.precision), heap_here()
        sizes, tokens = self.vocab_sizes(config), config.training.tokens_per_batch
        length, state, kernels = self.typical_length(config), self._state(config), has_bf16()
        graphs = kind == "cuda" and config.training.graphs
        return memory_bytes(config.model, sizes, tokens, kind, precision, heap, length, state, kernels, graphs)

    def least_memory_bytes(self, config: RunConfig, kind: str, *, limited: bool = False) -> float:
        """Predict the peak memory with the smallest micro-batch in fp32, which needs no kernels for bf16 products.

        On a processor without a limit, return `memory_bytes`, because the run cannot reduce its micro-batches there.
        """
        if kind == "cpu" and not limited:
            return self.memory_bytes(config, kind)
        sizes, tokens = self.vocab_sizes(config), SMALLEST_MICRO_BATCH
        length, state = self.typical_length(config), self._state(config)
        return memory_bytes(config.model, sizes, tokens, kind, length=length, state=state)

    def precisions(self, config: RunConfig, kind: str) -> tuple[str, str]:
        asked = config.training.precision, config.evaluation.precision
        return asked if kind == "cuda" else (precision_here(asked[0]), precision_here(asked[1]))

    def device_preflight(self, config: RunConfig, kind: str, *, trained: bool) -> list[UserError]:
        return [UserError(each.refused) for each in _abilities(config, kind, trained) if each.refused]

    def device_warnings(self, config: RunConfig, kind: str, *, trained: bool) -> list[str]:
        if not any(each.slow for each in _abilities(config, kind, trained)):
            return []
        return [
            f'the precision is "bf16", for which this {"GPU" if kind == "cuda" else "processor"} has no instructions: '
            "torch computes it with others, often many times slower than fp32. If it need not be bf16, set "
            'training.precision or evaluation.precision to "fp32" or "auto" (here fp32). --smoke trains with "auto".'
        ]

    def disk_bytes(self, config: RunConfig) -> float:
        return disk_bytes(
            count.num_params(config.model, *self.vocab_sizes(config)),
            config.training.keep_checkpoints,
            self._state(config),
        )

    def _state(self, config: RunConfig) -> float:
        return state_numbers(config.model, self.vocab_sizes(config), config.training)

    def keeps(self, config: RunConfig) -> tuple[Keep, ...]:
        return keeps_of(config.training, config.evaluation)

    def not_a_branch(self, parent_run: RunConfig, config: RunConfig, step: int) -> str:
        return why_no_branch(parent_run, config, step)

    def unknown_settings(self, config: RunConfig, evaluation: EvaluationSpec) -> list[str]:
        known = {*type(config.evaluation).model_fields, *self.evaluation_settings(config), *OF_WEIGHTS}
        return [name for name in evaluation.settings if name not in known]

    def serves(self, evaluation: EvaluationSpec, weights: Path) -> bool:
        settings = evaluation.settings
        return kept_checkpoints.serves(weights, settings["checkpoint"], kept_checkpoints.spacing_of(settings))
