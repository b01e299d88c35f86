"""Load the network of a finished training, measure the likelihood of a set with it, and decode a set."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.attempt_context import AttemptContext
from experiments.config.network_change import Batches, change_network, changes_of
from experiments.config.run_config import RunConfig
from experiments.data.corpora.files import write_lines
from experiments.data.encoding.encoded import EncodedSet, model_names
from experiments.data.encoding.tokenizer import Tokenizer
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.errors import Damaged, UserError
from experiments.evaluation.beam import SearchSettings
from experiments.evaluation.likelihood import measure_likelihood
from experiments.evaluation.translate import texts_of, translate
from experiments.run_spec import EvaluationSpec
from experiments.training import checkpoint, kept_checkpoints
from model.ensemble import Ensemble
from model.network import build_model
from model.protocol import Network

# --- The parts of an evaluation


class Trained(NamedTuple):
    """A trained network on a device, with its tokenizers."""

    model: Network
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    device: Device
    changes: Mapping[str, Any]  # facts about the network changes at evaluation


_last: list[tuple[object, Trained]] = []  # cache of the last network, which the next part of an evaluation may need


def open_trained(
    config: RunConfig,
    evaluation: EvaluationSpec,
    trainings: Sequence[Path],
    spec: DeviceSpec,
    vocab_sizes: tuple[int, int],
    batches: Batches,
) -> Trained:
    """Load the network of an evaluation's checkpoint with the evaluation's precision. Raises as `load_model` does.

    trainings: the folder of the attempt that trained; for an ensemble, one folder per member. All members have the same
        tokenizers.
    batches: the batches of the training. Network changes at evaluation may need them.
    """
    settings, every = evaluation.settings, kept_checkpoints.spacing_of(evaluation.settings)
    choice, precision = settings["checkpoint"], settings["precision"]
    values, facts = {name: settings[name] for name in config.network_changes if name in settings}, dict[str, Any]()
    key = (config.model_dump_json(), json.dumps(values), choice, precision, every, tuple(trainings), spec, vocab_sizes)
    if not _last or _last[0][0] != key:
        _last.clear()  # free the previous network first, because the memory may be too small for two
        device = Device.open(spec, precision)

        def change(model: Network) -> None:
            facts.update(change_network(config, values, model, batches, seed=config.seed))

        members = [load_model(config, choice, every, folder, device, vocab_sizes, change) for folder in trainings]
        model = members[0] if len(members) == 1 else Ensemble(members)
        _last.append((key, Trained(model, *load_tokenizers(config, trainings[0]), device, facts)))
    return _last[0][1]


def measure_pairs(trained: Trained, text: EncodedSet, context: AttemptContext) -> dict[str, Any]:
    """Measure the perplexity and the token accuracy of a set's references. Return facts for the record.

    The fact `pieces` is the number of target word pieces, EOS counted.
    """
    threads = trained.device.threads
    source_ids = trained.source_tokenizer.encode_batch(text.source, threads)
    target_ids = trained.target_tokenizer.encode_batch(text.target, threads)
    measured = measure_likelihood(
        trained.model, source_ids, target_ids, trained.device, should_stop=context.should_stop
    )
    metrics = {"perplexity": measured.perplexity, "token_accuracy": measured.token_accuracy}
    return {"metrics": metrics, "pieces": measured.pieces, **trained.changes, **trained.device.describe()}


def decode(
    trained: Trained, text: EncodedSet, settings: Mapping[str, Any], outputs: Path, context: AttemptContext
) -> dict[str, Any]:
    """Write the best output of each source to the file `outputs`, one per line. Return facts for the record.

    The fact `unfinished` is the number of outputs that reached their maximum length. `peak_memory_bytes` is the peak
    memory during the decoding.
    """
    _forget_peak(trained.device)
    found = translate(
        trained.model,
        trained.source_tokenizer.encode_batch(text.source, trained.device.threads),
        SearchSettings.of(settings),
        trained.device,
        progress=lambda done, total: context.emit("progress", what=f"decoding {text.name}", done=done, total=total),
        should_stop=context.should_stop,
    )
    best = [hypotheses[0].ids for hypotheses in found]
    tokenizers, replaces = (trained.source_tokenizer, trained.target_tokenizer), bool(settings.get("replace_unknown"))
    texts = texts_of(trained.model, tokenizers, text.source, best, trained.device, replace_unknown=replaces)
    write_lines(outputs, texts)
    words = np.array([len(sentence.split()) for sentence in text.source], dtype=np.int64)
    np.save(outputs.with_name("source_lengths.npy"), words, allow_pickle=False)
    return {
        "sentences": len(found),
        "unfinished": sum(not hypotheses[0].finished for hypotheses in found),
        "peak_memory_bytes": trained.device.peak_memory_bytes(),
        "set_facts": text.facts,
        **trained.device.describe(),
    }


def _forget_peak(device: Device) -> None:
    """Reset the measured peak memory. On a processor, this is possible only with Linux (proc(5): clear_refs)."""
    if device.is_cuda:
        torch.cuda.reset_peak_memory_stats(device.torch_device)
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


# --- Load the weights and the tokenizers


def load_model(
    config: RunConfig,
    choice: str,
    every: int,
    attempt: Path,
    device: Device,
    vocab_sizes: tuple[int, int] | None = None,
    change: Callable[[Network], object] = lambda model: None,
) -> Network:
    """Build the network and load the weights of an attempt.

    choice: the weights to load: "last", "best" (on dev) or "average:K".
    every: steps between the checkpoints of an average, or between the measurements for "best". 0 allows all of them.
    vocab_sizes: sizes of the target and source vocabulary, if they are neither data.vocab_size nor the sizes of the
        tokenizers.
    change: function that changes the trained network in place.

    Raises UserError if weights are damaged, if there are too few checkpoints for the average, or if no checkpoint has a
    measured perplexity for "best".
    """
    kind, _, number = choice.partition(":")
    if kind == "average":
        tensors = kept_average(attempt, int(number), every)
    elif kind == "best":
        best = kept_checkpoints.best(attempt, every)
        if best is None:
            raise UserError(
                f"The best checkpoint was requested, but {attempt} has none with a measured perplexity on dev: the "
                "training ran without training.eval_steps, or its checkpoints were pruned. Use the last one, or "
                "train with training.eval_steps set and keep the checkpoints."
            )
        tensors = checkpoint.load_weights(best)
    else:
        tensors = checkpoint.load_weights(attempt / "final")
    sizes = vocab_sizes or model_sizes(config, attempt)
    model = build_model(config.model, *sizes, device=device.torch_device)
    change_network(config, changes_of(config), model, saved=tensors)
    checkpoint.restore_model(model, tensors)
    change(model)
    return model


def load_chosen(config: RunConfig, choice: str | None, attempt: Path, device: Device) -> Network:
    """Return the network in evaluation mode. Raises as `load_model` does.

    choice: as in `load_model`. None means `evaluation.checkpoint` of the configuration.
    """
    choice = choice or config.evaluation.checkpoint
    return load_model(config, choice, spacing(config, choice), attempt, device).eval()


def model_sizes(config: RunConfig, attempt: Path) -> tuple[int, int]:
    """Return the target and source vocabulary sizes of a trained translation model."""
    if not config.data.sized_by_text:
        return config.data.vocab_size, config.data.vocab_size
    source, target = load_tokenizers(config, attempt)
    return target.vocab_size, source.vocab_size


def spacing(config: RunConfig, choice: str) -> int:
    """Return the steps between the checkpoints of a run, or between its measurements on dev if `choice` is "best"."""
    return config.training.eval_steps if choice == "best" else config.training.checkpoint_steps


def load_tokenizers(config: RunConfig, attempt: Path) -> tuple[Tokenizer, Tokenizer]:
    """Return the source and target tokenizers. They are the same object if the vocabulary is shared.

    Raises Damaged if a tokenizer is not the tokenizer of the training.
    """
    names = model_names(config.model.shared_vocabulary)
    source = _tokenizer(attempt, names[0])
    return source, source if names[0] == names[1] else _tokenizer(attempt, names[1])


def _tokenizer(attempt: Path, name: str) -> Tokenizer:
    path = attempt / "final" / name
    tokenizer = Tokenizer.load(path)
    if tokenizer.sha256 != kept_checkpoints.meta_of(path.parent)["files"].get(name, {}).get("sha256"):
        raise Damaged(
            f"{path} is not the tokenizer of the run's training: it was changed or damaged. Restore it from a "
            "backup, or rename the run's folder: `ablations run` then trains the run again."
        )
    return tokenizer


# --- Checkpoint averaging (section 6.1: the last 5 checkpoints of base, the last 20 of big)


def kept_average(attempt: Path, count: int, every: int) -> dict[str, Tensor]:
    """Return the mean of an attempt's last `count` checkpoints, and store it in <attempt>/averages.

    Only checkpoints at multiples of `every` and at the last step are used. Rows that differ only in their search read
    the stored average.

    Raises UserError if there are too few checkpoints or if one is damaged.
    """
    chosen = kept_checkpoints.last(attempt, count, every)
    path = attempt / "averages" / f"last-{count}-to-{chosen[-1].name}-every-{every}"
    if (path / "meta.json").exists():
        with contextlib.suppress(UserError):  # compute a damaged average again
            return checkpoint.load_weights(path)
    weights = average_weights(chosen)
    with contextlib.suppress(UserError):  # the store is read-only or full; the average is computed again next time
        checkpoint.save_weights(path, weights, {"averaged": [p.name for p in chosen]})
    return weights


def average_weights(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of several checkpoints, in the types of the weights.

    The checkpoints are loaded one after the other and summed in float64. Tensors that are not floating point are taken
    from the first checkpoint. Raises UserError if a checkpoint is damaged.
    """
    first = checkpoint.load_weights(checkpoints[0])
    sums = {name: tensor.double() for name, tensor in first.items() if tensor.is_floating_point()}
    for path in checkpoints[1:]:
        weights = checkpoint.load_weights(path)
        for name, total in sums.items():
            total += weights[name]
    return {n: (sums[n] / len(checkpoints)).to(t.dtype) if n in sums else t for n, t in first.items()}
