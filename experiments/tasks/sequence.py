"""Tasks whose examples are pairs of lines, one read and one said: what translation and parsing share.

The planning half imports no torch; `train` and `evaluate` do. A task says where its pairs come from (`corpus`), how
its targets become pieces (`target_symbols`) and how outputs are scored (`score`).
"""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.config import RunConfig, lineage
from experiments.data.corpora.pair_corpus import PairCorpus, select_sets
from experiments.data.encoding.encoded import EncodedCorpus, encoded_digest, model_names, open_encoded
from experiments.data.encoding.prepare import prepare
from experiments.errors import UserError
from experiments.store.keeps import BEST, Keep, keeps_of
from experiments.tasks import footprint, obstacles
from experiments.tasks.base import Context, EvaluationSpec, Progress, Task
from experiments.tasks.footprint import TYPICAL_LENGTH
from experiments.training.checkpoints import retention
from model import cost as count

if TYPE_CHECKING:
    from experiments.device import Device
    from experiments.evaluation.score.scoring import SetScores
    from experiments.tasks.batches import Batches
    from experiments.training.parallel.group import Group

# The code whose change may change a trained number, and a score of given weights; a task adds its own.
_HERE = ("experiments.tasks.sequence", "experiments.tasks.batches")
_DEFAULTS = "experiments.config"  # model.config's are in "model"
TRAINED_BY = ("model", _DEFAULTS, "experiments.data", "experiments.training", "experiments.device", *_HERE)
EVALUATED_BY = ("model", "experiments.data", "experiments.evaluation", "experiments.device", *_HERE)


class SequenceTask(Task):
    inputs_read: tuple[str, ...] | None = ("data.",)
    prepare_reads: tuple[str, ...] | None = ("data.", "model.shared_vocabulary", "training.tokens_per_batch")

    @abstractmethod
    def corpus(self, config: Any) -> PairCorpus:
        """Looks at names of files only. Raises UserError."""

    @abstractmethod
    def score(
        self, config: Any, evaluation: EvaluationSpec, sources: Sequence[str], outputs: Sequence[str],
        references: Sequence[str], labels: Sequence[str], folder: Path,
    ) -> "SetScores":  # fmt: skip
        """Score what was decoded, and keep it under `folder`; `labels` are all pieces of the target's vocabulary."""

    def target_symbols(self, config: Any) -> int:
        """The size of a vocabulary of whole symbols for the target; 0: it has word-pieces, as many as the source."""
        return 0

    def scoring(self, config: Any) -> dict[str, Any]:
        """Settings of `score` that enter eval_id beside (or in place of) those of `config.evaluation`."""
        return {}

    def inputs(self, config: RunConfig, store: Path) -> dict[str, str]:
        """The content of train and dev, or the recipe of a built-in corpus."""
        return {"corpus": self.corpus(config).training_digest(store / "corpora")}

    def evaluations(self, config: RunConfig, store: Path) -> list[EvaluationSpec]:
        """One per set, with the decoding in full; the spacing of checkpoints only where it decides the weights."""
        corpus = self.corpus(config)
        settings = config.evaluation.model_dump(mode="json", exclude={"sets"}) | self.scoring(config)
        if config.evaluation.checkpoint != "last":
            settings |= {"checkpoint_steps": config.training.checkpoint_steps}
        if config.evaluation.checkpoint == "best":
            settings |= {"eval_steps": config.training.eval_steps}
        return [
            EvaluationSpec(name, settings, {"set": corpus.set_digest(name, store / "corpora")})
            for name in select_sets(corpus, config.evaluation.sets)
        ]

    def vocab_sizes(self, config: RunConfig) -> tuple[int, int]:
        """Of target and source: what `build_model` and `count.num_params` take."""
        return self.target_symbols(config) or config.data.vocab_size, config.data.vocab_size

    def num_params(self, config: RunConfig) -> int:
        return count.num_params(config.model, *self.vocab_sizes(config))

    def cost(self, config: RunConfig) -> float:
        vocab_size, _ = self.vocab_sizes(config)
        per_token = count.flops_per_token(config.model, vocab_size, TYPICAL_LENGTH, TYPICAL_LENGTH)
        return per_token * config.training.tokens_per_batch * config.training.train_steps

    def _trained_on(self, config: RunConfig, batches: "Batches", steps: int) -> dict[str, Any]:
        """Tokens and operations of a training, from the pairs that it saw (model/cost.py has the formula)."""
        seen, source, target = batches.trained_on(steps)
        forward = count.forward_flops(config.model, self.vocab_sizes(config)[0], source, target)
        flops = float((seen * count.TRAINING * forward).sum())
        tokens = int((seen * target).sum())
        return {
            "source_tokens": int((seen * source).sum()),
            "target_tokens": tokens,
            "flops": flops,
            "flops_per_token": round(flops / max(1, tokens)),
        }

    def memory_bytes(self, config: RunConfig, kind: str) -> float:
        precision, heap = footprint.precision_here(config.training.precision), footprint.heap_here()
        tokens = config.training.tokens_per_batch
        return footprint.memory_bytes(config.model, self.vocab_sizes(config), tokens, kind, precision, heap)

    def least_memory_bytes(self, config: RunConfig, kind: str) -> float:
        """On a processor nothing says that memory runs out: there the micro-batch stays as it is."""
        if kind == "cpu":
            return self.memory_bytes(config, kind)
        return footprint.memory_bytes(config.model, self.vocab_sizes(config), footprint.SMALLEST_TOKENS, kind)

    def disk_bytes(self, config: RunConfig) -> float:
        kept = config.training
        return footprint.disk_bytes(self.num_params(config), kept.keep_checkpoints, kept.keep_optimizer)

    def obstacles(self, config: RunConfig, store: Path) -> list[UserError]:
        corpus, symbols = self.corpus(config), self.target_symbols(config)
        return [
            *obstacles.of_settings(config.training, config.evaluation),
            *obstacles.of_corpus(config, corpus, store / "corpora", symbols),
        ]

    def prepare(self, config: RunConfig, store: Path, progress: Progress) -> dict[str, Any]:
        """Train the tokenizer and encode the corpus, once; see experiments/data/encoding/prepare.py for the errors."""
        corpus, shared, root = self.corpus(config), config.model.shared_vocabulary, store / "corpora"
        encoded = prepare(corpus, config.data, shared, root, progress, target_symbols=self.target_symbols(config))
        _check_batches(config, encoded)
        return {"corpus": corpus.name, "source": corpus.source, "target": corpus.target, **encoded.facts}

    def keeps(self, config: RunConfig) -> tuple[Keep, ...]:
        return keeps_of(config.training, config.evaluation)

    def serves(self, config: RunConfig, evaluation: EvaluationSpec, weights: Path) -> bool:
        return retention.serves(weights, evaluation.settings["checkpoint"], spacing_of(evaluation))

    def train(self, config: RunConfig, context: Context) -> dict[str, Any]:
        from experiments.device import Device
        from experiments.training.parallel.ranks import joined

        settings, precision = config.training, context.pinned.get("precision", config.training.precision)
        device = Device.open(context.device, precision, deterministic=settings.deterministic, rank=context.rank)
        with joined(context.device, context.rank, context.port, context.folder, context.emit) as group:
            return self._train(config, context, device, group)

    def _train(self, config: RunConfig, context: Context, device: "Device", group: "Group") -> dict[str, Any]:
        from experiments.device import seed_everything
        from experiments.tasks.batches import Batches, dev_perplexity
        from experiments.training.checkpoints.checkpoint import add_file
        from experiments.training.parallel.lanes import lanes_for
        from experiments.training.trainer import train
        from model.factory import build_model

        settings, encoded = config.training, self._encoded(config, context)
        seed_everything(config.seed)
        model = build_model(config.model, *self.vocab_sizes(config), device=device.torch_device)
        if "attention_kernel" in context.pinned:
            model.set_attention_kernel(context.pinned["attention_kernel"])
        lanes = lanes_for(model, settings, device, group)
        batches = Batches(config, context, encoded, (group.rank, group.size), lanes)
        context.emit("pinned", micro_batch_tokens=batches.max_tokens)
        keeps = (*self.keeps(config), *context.keeps)
        measures = any(keep.what == BEST for keep in keeps)
        facts = train(
            model,
            settings,
            d_model=config.model.d_model,
            batches=batches,
            seed=config.seed,
            device=device,
            folder=context.folder,
            emit=context.emit,
            should_stop=context.should_stop,
            earlier=context.earlier,
            evaluate=dev_perplexity(model, encoded, device) if measures else None,
            meta={"lineage": lineage(config, context.inputs), "code": context.code_digest, "run_id": context.run_id},
            group=group,
            lanes=lanes,
            keeps=keeps,
        )
        if not group.leads:
            return facts
        for name in dict.fromkeys(model_names(config.model.shared_vocabulary)):
            add_file(context.folder / "final", name, encoded.tokenizer_model(name))
        return {
            "num_params": self.num_params(config),
            "seed": config.seed,
            "data": {"encoded": encoded.digest, **encoded.facts},
            "batches": batches.describe(),
            **facts,
            **self._trained_on(config, batches, facts["step"]),
        }

    def evaluate(
        self, config: RunConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: Context
    ) -> dict[str, Any]:
        import numpy as np

        from experiments.device import Device
        from experiments.evaluation.decode.beam import SearchSettings
        from experiments.evaluation.evaluate import evaluate_set
        from experiments.evaluation.trained.trained import load_model, load_tokenizers

        settings = evaluation.settings
        device = Device.open(context.device, settings["precision"])
        tokenizers = load_tokenizers(config, weights)
        every = spacing_of(evaluation)
        chosen = self._encoded(config, context).set(evaluation.set, evaluation.inputs["set"])
        result = evaluate_set(
            load_model(config, settings["checkpoint"], every, weights, device, self.vocab_sizes(config)),
            tokenizers,
            chosen.source,
            chosen.target,
            SearchSettings(settings["beam_size"], settings["length_penalty"], settings["max_extra_length"]),
            device,
            lambda outputs, references: self.score(
                config, evaluation, chosen.source, outputs, references, tokenizers[1].vocabulary, folder
            ),
            progress=lambda what, done, total: context.emit(
                "progress", what=f"{what} {evaluation.set}", done=done, total=total
            ),
            should_stop=context.should_stop,
        )
        words = np.array([len(sentence.split()) for sentence in chosen.source], dtype=np.int64)
        np.save(folder / "source_lengths.npy", words, allow_pickle=False)
        return {
            "metrics": result.metrics,
            "signature": result.signatures,
            "sentences": len(result.outputs),
            "pieces": result.pieces,
            "unfinished": result.unfinished,
            "set_facts": chosen.facts,
            **device.describe(),
        }

    def _encoded(self, config: RunConfig, context: Context) -> EncodedCorpus:
        shared, symbols = config.model.shared_vocabulary, self.target_symbols(config)
        name = encoded_digest(context.inputs["corpus"], config.data, shared, symbols)
        return open_encoded(context.store / "corpora", name)


def spacing_of(evaluation: EvaluationSpec) -> int:
    """The steps between the checkpoints that an average is taken of, or the measurements that the best is chosen by."""
    best = evaluation.settings["checkpoint"] == "best"
    return int(evaluation.settings.get("eval_steps" if best else "checkpoint_steps", 0))


def _check_batches(config: RunConfig, encoded: EncodedCorpus) -> None:
    """A pair that fits no batch is the user's to mend before any run starts."""
    from experiments.data.batches.batching import BatchPlan

    BatchPlan(encoded.train.source_lengths, encoded.train.target_lengths, config.training.tokens_per_batch, 0)


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """One line each, in the input's order."""
    path.write_text("".join(line.replace("\n", " ") + "\n" for line in lines), encoding="utf-8")
