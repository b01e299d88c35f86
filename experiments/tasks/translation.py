"""Translation: joins data, training and evaluation. The planning half imports no torch; `train` and `evaluate` do."""

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.config import RunConfig, lineage
from experiments.data.corpus import resolve, select_sets, set_digest, training_digest
from experiments.data.encoded import EncodedCorpus, encoded_digest, model_names, open_encoded
from experiments.data.prepare import prepare
from experiments.errors import UserError
from experiments.tasks.base import Column, Context, EvaluationSpec, Progress, Task
from model import count

if TYPE_CHECKING:
    from experiments.device import Device
    from model.transformer import Transformer

# For predictions only: pieces of a sentence where no corpus was measured.
TYPICAL_LENGTH = 28
MICRO_BATCH_TOKENS = {"cpu": 4096, "cuda": 32768}  # places a side of one forward and backward pass
_HERE = "experiments.tasks.translation"


class Translation(Task):
    name = "translation"
    columns = (
        Column("ppl", "dev", "perplexity", "PPL (dev)", "lower", 2, paper="perplexity"),
        Column("bleu", "dev", "bleu", "BLEU (dev)", "higher", 1, paper="bleu"),
        Column("bleu_*", "*", "bleu", "BLEU (*)", "higher", 1),
    )
    training_code = ("model", "experiments.data", "experiments.training", "experiments.device", _HERE)
    evaluation_code = ("model", "experiments.data", "experiments.evaluation", "experiments.device", _HERE)
    inputs_read = ("data.",)
    prepare_reads = ("data.", "model.shared_vocabulary", "training.tokens_per_batch")

    def inputs(self, config: RunConfig, store: Path) -> dict[str, str]:
        """The content of train and dev and the direction, or the recipe of the built-in corpus."""
        return {"corpus": training_digest(resolve(config.data), store / "corpora")}

    def evaluations(self, config: RunConfig, store: Path) -> list[EvaluationSpec]:
        """One per set, with the decoding in full; the spacing of checkpoints only where it decides the weights."""
        corpus = resolve(config.data)
        settings = config.evaluation.model_dump(mode="json", exclude={"sets"})
        if config.evaluation.checkpoint != "last":
            settings |= {"checkpoint_steps": config.training.checkpoint_steps}
        if config.evaluation.checkpoint == "best":
            settings |= {"eval_steps": config.training.eval_steps}
        return [
            EvaluationSpec(name, settings, {"set": set_digest(corpus, name, store / "corpora")})
            for name in select_sets(corpus, config.evaluation.sets)
        ]

    def num_params(self, config: RunConfig) -> int:
        return count.num_params(config.model, config.data.vocab_size)

    def cost(self, config: RunConfig) -> float:
        per_token = count.flops_per_token(config.model, config.data.vocab_size, TYPICAL_LENGTH, TYPICAL_LENGTH)
        return per_token * config.training.tokens_per_batch * config.training.train_steps

    def prepare(self, config: RunConfig, store: Path, progress: Progress) -> dict[str, Any]:
        """Train the tokenizer and encode the corpus, once; see experiments/data/prepare.py for the errors."""
        corpus = resolve(config.data)
        encoded = prepare(corpus, config.data, config.model.shared_vocabulary, store / "corpora", progress)
        self._check_batches(config, encoded)
        return {"corpus": corpus.name, "source": corpus.source, "target": corpus.target, **encoded.facts}

    def train(self, config: RunConfig, context: Context) -> dict[str, Any]:
        from experiments.device import Device, seed_everything
        from experiments.training.trainer import train
        from model.factory import build_model

        device = Device.open(context.device, context.pinned.get("precision", config.training.precision))
        encoded = _encoded(config, context)
        seed_everything(config.seed)
        model = build_model(config.model, config.data.vocab_size, device=device.torch_device)
        if "attention_kernel" in context.pinned:
            model.set_attention_kernel(context.pinned["attention_kernel"])
        batches = _Batches(config, context, encoded)
        context.emit("pinned", micro_batch_tokens=batches.max_tokens)
        facts = train(
            model,
            config.training,
            d_model=config.model.d_model,
            batches=batches,
            seed=config.seed,
            device=device,
            folder=context.folder,
            emit=context.emit,
            should_stop=context.should_stop,
            earlier=context.earlier,
            evaluate=_dev_perplexity(model, encoded, device) if config.training.eval_steps else None,
            meta={"lineage": lineage(config, context.inputs), "code": context.code_digest, "run_id": context.run_id},
        )
        for name in dict.fromkeys(model_names(config.model.shared_vocabulary)):
            shutil.copyfile(encoded.folder / name, context.folder / "final" / name)
        return {
            "num_params": self.num_params(config),
            "seed": config.seed,
            "data": {"encoded": encoded.digest, **encoded.facts},
            **facts,
        }

    def evaluate(
        self, config: RunConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: Context
    ) -> dict[str, Any]:
        import numpy as np

        from experiments.device import Device
        from experiments.evaluation.beam import SearchSettings
        from experiments.evaluation.evaluate import evaluate_set
        from experiments.evaluation.trained import load_model, load_tokenizers

        settings = evaluation.settings
        device = Device.open(context.device, settings["precision"])
        tokenizers = load_tokenizers(config, weights)
        every = int(settings.get("checkpoint_steps", 0))
        chosen = _encoded(config, context).set(evaluation.set, evaluation.inputs["set"])
        result = evaluate_set(
            load_model(config, settings["checkpoint"], every, weights, device),
            tokenizers,
            chosen.source,
            chosen.target,
            SearchSettings(settings["beam_size"], settings["length_penalty"], settings["max_extra_length"]),
            device,
            language=_target_language(config),
            progress=lambda what, done, total: context.emit(
                "progress", what=f"{what} {evaluation.set}", done=done, total=total
            ),
            should_stop=context.should_stop,
        )
        _write_lines(folder / "translations.txt", result.translations)
        np.save(folder / "statistics.npy", result.statistics, allow_pickle=False)
        words = np.array([len(sentence.split()) for sentence in chosen.source], dtype=np.int64)
        np.save(folder / "source_lengths.npy", words, allow_pickle=False)
        return {
            "metrics": result.metrics,
            "signature": result.signatures,
            "sentences": len(result.translations),
            "pieces": result.pieces,
            "unfinished": result.unfinished,
            "set_facts": chosen.facts,
            **device.describe(),
        }

    @staticmethod
    def _check_batches(config: RunConfig, encoded: EncodedCorpus) -> None:
        """A pair that fits no batch is the user's to mend before any run starts."""
        from experiments.data.batching import BatchPlan

        BatchPlan(encoded.train.source_lengths, encoded.train.target_lengths, config.training.tokens_per_batch, 0)


class _Batches:
    """The trainer's source of batches: step (from 1) → micro-batches, a pure function of (seed, step)."""

    def __init__(self, config: RunConfig, context: Context, encoded: EncodedCorpus) -> None:
        from experiments.data.batching import BatchPlan

        self._pairs = encoded.train
        self._plan = BatchPlan(
            self._pairs.source_lengths, self._pairs.target_lengths, config.training.tokens_per_batch, config.seed
        )
        kind = context.device.kind
        self.max_tokens = int(context.pinned.get("micro_batch_tokens") or MICRO_BATCH_TOKENS[kind])

    def __call__(self, step: int) -> list[Any]:
        from experiments.data.batch import collate
        from experiments.data.batching import split
        from experiments.data.tensors import to_tensors

        pairs = self._pairs
        parts = split(pairs.source_lengths, pairs.target_lengths, self._plan.batch(step - 1), self.max_tokens)
        return [to_tensors(collate(pairs, part)) for part in parts]


def _encoded(config: RunConfig, context: Context) -> EncodedCorpus:
    name = encoded_digest(context.inputs["corpus"], config.data, config.model.shared_vocabulary)
    return open_encoded(context.store / "corpora", name)


def _dev_perplexity(model: "Transformer", encoded: EncodedCorpus, device: "Device") -> Any:
    """The callback for perplexity during training; dev is read once."""
    from experiments.evaluation.perplexity import measure_likelihood

    dev = encoded.set("dev")
    sources = [dev.pairs.source[i].tolist() for i in range(len(dev.pairs))]
    targets = [dev.pairs.target[i].tolist() for i in range(len(dev.pairs))]

    def evaluate(_step: int) -> dict[str, float]:
        return {"perplexity": measure_likelihood(model, sources, targets, device).perplexity}

    return evaluate


def _target_language(config: RunConfig) -> str:
    """For the tokenizer of the paper's BLEU; "en" where the corpus is elsewhere and no setting says it."""
    with contextlib.suppress(UserError):
        return resolve(config.data).target
    return config.data.target or "en"


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(line.replace("\n", " ") + "\n" for line in lines), encoding="utf-8")


TASK = Translation()
